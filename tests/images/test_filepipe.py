"""The script of the gemini image that lets a CLI write to a file and relays it."""

from __future__ import annotations

import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from images.catalogue import RECIPES

SCRIPT = RECIPES / "base" / "podmentor-filepipe"
CLI_OF_NODE = RECIPES / "gemini" / "gemini"


def argv(*command: str) -> list[str]:
    return [sys.executable, "-IS", str(SCRIPT), *command]


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}


@contextmanager
def started(env: dict[str, str], *command: str) -> Iterator[tuple[subprocess.Popen[bytes], IO[bytes], IO[bytes]]]:
    """The process, its standard input and its standard output."""
    with subprocess.Popen(argv(*command), env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process, process.stdin, process.stdout
        finally:
            process.kill()  # a failed test must not wait for an end that does not come


def run(env: dict[str, str], script: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(argv("sh", "-c", script), env=env, capture_output=True, check=False, timeout=60)


def test_output_errors_input_and_exit_code_are_the_clis(env: dict[str, str]) -> None:
    done = subprocess.run(
        argv("sh", "-c", "cat; echo err >&2; exit 7"),
        env=env,
        input=b"in",
        capture_output=True,
        check=False,
        timeout=30,
    )
    assert (done.stdout, done.stderr, done.returncode) == (b"in", b"err\n", 7)


def test_the_cli_writes_to_a_file_without_a_name(env: dict[str, str], tmp_path: Path) -> None:
    done = run(env, "stat -L -c '%F %a %h' /proc/self/fd/1; ls -A $HOME")
    assert done.stdout == b"regular empty file 600 0\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_cli_that_dies_of_a_signal(env: dict[str, str], number: signal.Signals) -> None:
    done = run(env, f"ulimit -c 0; echo before; kill -{number} $$")
    assert (done.stdout, done.returncode) == (b"before\n", 128 + number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_are_passed_on(env: dict[str, str], number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 3' {number}; echo ready; while :; do sleep 0.05; done"
    with started(env, "sh", "-c", script) as (process, _, stdout):
        assert stdout.read(6) == b"ready\n"
        process.send_signal(number)
        assert stdout.read(100) == b"caught\n"
        assert process.wait(30) == 3


def test_what_is_written_comes_at_once_and_not_at_the_end(env: dict[str, str]) -> None:
    script = "echo one; read line; echo $line; read line; printf last"
    with started(env, "sh", "-c", script) as (process, stdin, stdout):
        assert stdout.read(4) == b"one\n"
        stdin.write(b"two\n")
        assert stdout.read(4) == b"two\n"
        stdin.write(b"x\n")
        assert stdout.read(100) == b"last"
        assert process.wait(30) == 0


def test_64_mib_come_whole_and_in_order_to_a_reader_that_is_late(env: dict[str, str]) -> None:
    script = "import sys; [sys.stdout.write(f'{n:063d}\\n') for n in range(1 << 20)]; sys.stderr.write('done')"
    done = subprocess.run(
        ["sh", "-c", '"$@" | { sleep 0.3; sha256sum; }', "sh", *argv(sys.executable, "-c", script)],
        env=env,
        capture_output=True,
        check=True,
        timeout=120,
    )
    expected = hashlib.sha256()
    for number in range(1 << 20):
        expected.update(f"{number:063d}\n".encode())
    assert done.stdout.split()[0].decode() == expected.hexdigest()


GIVE_BACK = 1 << 24
"""As the script has it: after so many bytes the file system gets them back."""


def bytes_on_disk(pid: int) -> int:
    """What the relayed file takes, as the relay itself has it open."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        if ".podmentor-stdout-" in str(descriptor.readlink()):
            return descriptor.stat().st_blocks * 512
    raise AssertionError("the relay has no such file open")


def test_bytes_that_nobody_has_read_yet_outlive_their_part_of_the_file(env: dict[str, str]) -> None:
    """Were the file's own pages in the pipe, giving back the part that ends within one would make NUL bytes of it."""
    script = """
import sys
for number in range(6):
    sys.stdout.write(f"{number}" * ((1 << 24) - 500)); sys.stdout.flush(); sys.stdin.readline()
    sys.stdout.write("last" * 251); sys.stdout.flush(); sys.stdin.readline()
"""
    with started(env, sys.executable, "-c", script) as (process, stdin, stdout):
        for number in range(6):
            left = GIVE_BACK - 500
            while left:
                data = stdout.read(min(left, 1 << 16))
                assert set(data) == {ord(str(number))}
                left -= len(data)
            stdin.write(b"and the last of it\n")
            deadline = time.monotonic() + 60
            while bytes_on_disk(process.pid) > GIVE_BACK // 2:
                assert time.monotonic() < deadline, "nothing is given back"
                os.sched_yield()
            assert stdout.read(1004) == b"last" * 251
            stdin.write(b"go on\n")
        assert stdout.read(1) == b""
        assert process.wait(30) == 0


def test_output_that_somebody_cuts_off_is_told_and_what_follows_comes(env: dict[str, str]) -> None:
    """A tool that inherits the file and opens it anew, as ``> /dev/stdout`` does, empties it."""
    script = "echo first; read line; : > /dev/stdout; read line; echo second >> /dev/stdout"
    with subprocess.Popen(
        argv("sh", "-c", script),
        env=env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            assert process.stdout.read(6) == b"first\n"
            process.stdin.write(b"x\n")
            assert b"output was lost" in process.stderr.read(1000)
            process.stdin.write(b"x\n")
            assert process.stdout.read(100) == b"second\n"
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_what_has_been_relayed_does_not_stay_on_the_disk(env: dict[str, str]) -> None:
    script = "head -c 67108864 /dev/zero; read line; stat -L -c '%s %b' /proc/self/fd/1"
    with started(env, "sh", "-c", script) as (process, stdin, stdout):
        left = 67108864
        while left:
            left -= len(stdout.read(min(left, 1 << 20)))
        stdin.write(b"go on\n")
        size, blocks = map(int, stdout.read(100).split())
        assert size == 67108864
        assert blocks * 512 < 67108864 // 2
        assert process.wait(30) == 0


def test_killed_it_leaves_neither_file_nor_process(env: dict[str, str], tmp_path: Path) -> None:
    with started(env, "sh", "-c", "echo $$; exec sleep 300") as (process, _, stdout):
        child = int(stdout.read(20))
        ended = os.pidfd_open(child)
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
        assert select.select([ended], [], [], 30)[0], "the CLI outlives the relay"
        os.close(ended)
    assert list(tmp_path.iterdir()) == []


def test_when_nobody_reads_any_more_the_cli_is_ended(env: dict[str, str]) -> None:
    with started(env, "sh", "-c", "while :; do echo x; sleep 0.01; done") as (process, _, stdout):
        assert stdout.read(1) == b"x"
        stdout.close()
        assert process.wait(30) == 128 + signal.SIGKILL


def test_a_cli_that_is_not_there(env: dict[str, str]) -> None:
    done = subprocess.run(argv("no-such-cli"), env=env, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == 127
    assert "no-such-cli: No such file or directory" in done.stderr


def test_without_a_writable_home_the_file_is_in_tmp(env: dict[str, str]) -> None:
    assert run({**env, "HOME": "/proc/no-such-place"}, "echo fine").stdout == b"fine\n"


def test_the_cli_gets_no_ignored_signals_from_python(env: dict[str, str]) -> None:
    done = run(env, "grep SigIgn /proc/self/status")
    assert int(done.stdout.split()[1], 16) & (1 << (signal.SIGPIPE - 1)) == 0


@pytest.mark.parametrize(("words", "stdin"), [(["--output-format", "json"], "from stdin"), (["--prompt", "x y"], "")])
def test_the_launcher_gives_no_input_beside_a_prompt(tmp_path: Path, words: list[str], stdin: str) -> None:
    """The CLI would put the one before the other."""
    fake = tmp_path / "podmentor-filepipe"
    fake.write_text('#!/bin/sh\nprintf "%s|" "$@"\ncat\n')
    fake.chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(CLI_OF_NODE), *words],
        env={"PATH": path},
        input="from stdin",
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    program = "/opt/gemini/node_modules/@google/gemini-cli/bundle/gemini.js"
    preloaded = ["--import", "/etc/podmentor/gemini-repository.mjs"]
    assert done.stdout == "|".join(["node", *preloaded, program, *words, stdin])
