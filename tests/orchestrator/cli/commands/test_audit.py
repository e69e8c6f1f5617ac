"""podmentor audit tail | show."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.audit import AuditLog
from orchestrator.cli.main import cli
from orchestrator.config.models import Paths

RUN = "0123456789abcdef" * 2
ROOT = Path(__file__).parents[4]


@pytest.fixture
def state(paths: Paths) -> Path:
    return paths.state_dir


async def _fill(state: Path) -> None:
    log = AuditLog(state / "audit.log", max_bytes=400)
    await log.record("key.set", actor="user:alice", user_id="alice", backend="codex")
    await log.record("run.started", user_id="alice", run_id=RUN, backend="codex", tier=1, cli_version=None)
    await log.record(
        "egress.denied",
        user_id="alice",
        run_id=RUN,
        backend="codex",
        host="evil\x1b[2J",
        port=443,
        reason="no such rule",
    )
    await log.record("run.ended", user_id="bob", run_id="f" * 32, backend="codex", outcome="completed")


@pytest.fixture
def filled(state: Path) -> Path:
    asyncio.run(_fill(state))
    return state


def call(state: Path, *argv: str) -> Result:
    return CliRunner().invoke(cli, ["--state", str(state), "audit", *argv], catch_exceptions=False)


def test_tail_is_a_table(filled: Path) -> None:
    result = call(filled, "tail")
    assert result.exit_code == 0
    heading, *rows = result.stdout.splitlines()
    assert heading.split() == ["TIME", "EVENT", "ACTOR", "USER", "RUN", "BACKEND", "FACTS"]
    assert [row.split()[1] for row in rows] == ["key.set", "run.started", "egress.denied", "run.ended"]
    assert rows[1].split()[2:] == ["service", "alice", "01234567", "codex", "tier=1"]
    assert rows[2].endswith('host=evil port=443 reason="no such rule"')
    assert "\x1b" not in result.stdout


def test_tail_chooses(filled: Path) -> None:
    assert len(call(filled, "tail", "-n", "2").stdout.splitlines()) == 3
    assert call(filled, "tail", "--user", "bob", "--json").stdout.count("\n") == 1
    lines = [json.loads(line) for line in call(filled, "tail", "--event", "run.*", "--json").stdout.splitlines()]
    assert [line["event"] for line in lines] == ["run.started", "run.ended"]


def test_show_has_every_line_of_a_run(filled: Path) -> None:
    for name in (RUN, RUN[:8]):
        lines = [json.loads(line) for line in call(filled, "show", "--run", name, "--json").stdout.splitlines()]
        assert [line["event"] for line in lines] == ["run.started", "egress.denied"]
    assert call(filled, "show", "--run", RUN).stdout.count("\n") == 3


def test_show_of_a_run_that_nobody_knows(filled: Path) -> None:
    result = call(filled, "show", "--run", "abc")
    assert (result.exit_code, "has nothing about a run abc" in result.stderr) == (5, True)
    assert call(filled, "show", "--run", "").exit_code == 2


def test_a_damaged_line_is_told_beside_the_good_ones(filled: Path) -> None:
    with (filled / "audit.log").open("a") as file:
        file.write('{"ts": "2030')
    result = call(filled, "tail", "--json")
    assert "cannot be read (12 bytes, cut?); skipped" in result.stderr
    assert len(result.stdout.splitlines()) == 4


def test_there_is_nothing_yet(state: Path) -> None:
    result = call(state, "tail", "--json")
    assert (result.exit_code, result.stdout) == (0, "")


def test_it_is_read_where_it_is(state: Path) -> None:
    result = CliRunner().invoke(cli, ["--url", "http://127.0.0.1:1", "audit", "tail"])
    assert (result.exit_code, "on the machine where podmentor runs" in result.stderr) == (2, True)


@pytest.mark.parametrize("form", [[], ["--json"]])
async def test_tail_follows_over_a_rotation_until_ctrl_c(filled: Path, form: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator",
        "--state",
        str(filled),
        "audit",
        "tail",
        "-f",
        "-n",
        "1",
        *form,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None
    log = AuditLog(filled / "audit.log", max_bytes=400)

    async def upto(word: str) -> None:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            while word not in (line := (await process.stdout.readline()).decode()):
                assert line

    try:
        await upto("run.ended")
        for number in range(10):
            await log.record("gc", older_than_days=str(number), unapplied=False)
        await upto('"older_than_days":"9"' if form else "older_than_days=9")
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
