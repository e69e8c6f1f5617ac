"""The walk over what an agent has on disk: against a simple oracle, and against trees that mean harm."""

# ruff: noqa: PTH102, PTH108, PTH116, PTH123, PTH208, PTH211
# (pathlib cannot hold names that are bytes)
from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.runs.limits import file_usage
from orchestrator.runs.limits.file_usage import ENTRY_BYTES, Walk, counted, open_files

NAMES = st.binary(min_size=1, max_size=12).filter(lambda name: not {0, 47} & set(name) and name not in {b".", b".."})
TREES = st.recursive(
    st.one_of(
        st.integers(0, 40_000),  # a file of that size
        st.just("link"),  # a symbolic link to the root
        st.just("again"),  # a further name of the last file
        st.just("sparse"),
        st.just("pipe"),
    ),
    lambda inner: st.dictionaries(NAMES, inner, max_size=6),
    max_leaves=25,
)


def build(top: bytes, tree: object, files: list[bytes]) -> None:
    if not isinstance(tree, dict):
        tree = {b"only": tree}
    for name, node in tree.items():
        path = top + b"/" + name
        if isinstance(node, dict):
            os.mkdir(path)
            build(path, node, files)
        elif isinstance(node, int):
            with open(path, "wb") as file:
                file.write(b"x" * node)
            files.append(path)
        elif node == "link":
            os.symlink(b"/", path)
        elif node == "pipe":
            os.mkfifo(path)
        elif node == "again" and files:
            os.link(files[-1], path)
        else:
            with open(path, "wb") as file:
                file.truncate(1 << 30)


def oracle(top: bytes) -> tuple[int, int]:
    """Bytes and entries, by os.walk."""
    seen = {}
    for directory, names, files in os.walk(top):
        for path in [directory, *(directory + b"/" + name for name in [*names, *files])]:
            found = os.lstat(path)
            seen[found.st_ino] = max(found.st_blocks * 512, ENTRY_BYTES)
    return sum(seen.values()), len(seen)


def walked(*roots: Path | bytes, **options: object) -> Walk:
    walk = Walk(**options)  # type: ignore[arg-type]
    for root in roots:
        walk.add(os.fsencode(root))
    return walk


@settings(max_examples=150, deadline=None)
@given(TREES)
def test_it_counts_what_os_walk_counts(tree: object) -> None:
    with tempfile.TemporaryDirectory() as directory:
        top = os.fsencode(directory)
        build(top, tree, [])
        found = walked(top).result
        assert (found.bytes, found.entries) == oracle(top)
        assert found.whole
        assert not found.closed


def test_a_file_with_names_in_two_roots_counts_once(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    (tmp_path / "one" / "f").write_bytes(bytes(100_000))
    os.link(tmp_path / "one" / "f", tmp_path / "two" / "f")
    assert walked(tmp_path / "one", tmp_path / "two").result.bytes < 100_000 + 5 * ENTRY_BYTES


def test_a_sparse_file_counts_for_what_it_takes(tmp_path: Path) -> None:
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    assert counted(os.stat(tmp_path / "sparse")) == ENTRY_BYTES


def test_links_are_not_followed_and_a_root_that_is_one_is_not_walked(tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("/usr")
    assert walked(tmp_path).result.entries == 2
    assert walked(tmp_path / "out").result.entries == 0
    assert walked(tmp_path / "missing").result.bytes == 0


def test_another_file_system_is_not_entered() -> None:
    """/dev has mounts below it on every machine that has /dev/shm or /dev/pts."""
    device = os.stat("/dev").st_dev
    expected = {os.stat("/dev").st_ino}
    for directory, names, files in os.walk("/dev"):
        own = [name for name in [*names, *files] if os.lstat(f"{directory}/{name}").st_dev == device]
        expected |= {os.lstat(f"{directory}/{name}").st_ino for name in own}
        names[:] = [name for name in names if name in own]
    assert walked(b"/dev").result.entries == len(expected)


@contextmanager
def few_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 10, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_tree_deeper_than_any_path_costs_no_descriptors(tmp_path: Path) -> None:
    depth = 2000
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 30, dir_fd=fd)
        inner = os.open("d" * 30, os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    before = len(os.listdir("/proc/self/fd"))
    try:
        with few_descriptors():
            found = walked(tmp_path).result
    finally:
        subprocess.run(["rm", "-rf", tmp_path / ("d" * 30)], check=True)  # too deep for shutil.rmtree
    assert found.entries == depth + 1
    assert not found.closed
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_directory_without_permissions_is_told(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may look everywhere")
    for mode, name in ((0, "shut"), (0o400, "listed")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("x")
        (tmp_path / name).chmod(mode)
    try:
        for name in ("shut", "listed"):
            assert walked(tmp_path / name).result.closed
    finally:
        for name in ("shut", "listed"):
            (tmp_path / name).chmod(0o700)


def test_it_ends_when_there_is_more_than_enough(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / str(number)).touch()
    found = walked(tmp_path, stop_above=100 * ENTRY_BYTES).result
    assert not found.whole
    assert 100 * ENTRY_BYTES < found.bytes < 600 * ENTRY_BYTES


def test_it_ends_when_nobody_wants_it_any_more(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / str(number)).touch()
    found = walked(tmp_path, stopped=lambda: True).result
    assert not found.whole
    assert found.entries <= 1


def test_a_tree_that_moves_under_the_walk_is_survived(tmp_path: Path) -> None:
    """Directories come, go and change places all the time: no crash, no way out of the root, no descriptor is lost."""
    top = tmp_path / "top"
    (tmp_path / "outside").mkdir()
    for number in range(3):
        (tmp_path / "outside" / str(number)).write_bytes(bytes(1 << 20))
    top.mkdir()
    for name in ("a/b/c", "x/y/z"):
        (top / name).mkdir(parents=True)
    done = threading.Event()

    def shuffle() -> None:
        number = 0
        while not done.is_set():
            number += 1
            for move in (
                (top / "a/b", top / "b2"),
                (top / "b2", top / "a/b"),
                (top / "x", tmp_path / "x"),
                (tmp_path / "x", top / "x"),
            ):
                try:
                    move[0].rename(move[1])
                except OSError:
                    continue
            (top / "x/y/z" / str(number % 5)).mkdir(exist_ok=True)

    mover = threading.Thread(target=shuffle)
    before = len(os.listdir("/proc/self/fd"))
    mover.start()
    try:
        for _ in range(400):
            found = walked(top).result
            assert found.bytes < 1 << 20, "what is beside the root was counted"
    finally:
        done.set()
        mover.join()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_deleted_files_that_are_still_open_are_found_once(tmp_path: Path) -> None:
    here = os.getpid()
    device = os.stat(tmp_path).st_dev
    with open(tmp_path / "f", "wb") as file, open(tmp_path / "kept", "wb") as kept:
        file.write(bytes(300_000))
        file.flush()
        kept.write(bytes(50_000))
        base = open_files("/proc", [here], [device]).deleted
        second = os.dup(file.fileno())
        os.unlink(tmp_path / "f")
        found = open_files("/proc", [here, here, 2**22 + 1], [device])
        assert found.deleted - base >= 300_000
        assert found.deleted - base < 400_000
        assert not found.closed
        os.close(second)
    assert open_files("/proc", [here], [device]).deleted == base


def test_files_without_a_name_are_memory_not_disk(tmp_path: Path) -> None:
    fd = os.memfd_create("x")
    try:
        os.write(fd, bytes(200_000))
        found = open_files("/proc", [os.getpid()], [os.stat(tmp_path).st_dev])
        assert found.nameless >= 200_000
        assert os.fstat(fd).st_ino in found.nameless_at
        assert found.deleted == open_files("/proc", [os.getpid()], [os.stat(tmp_path).st_dev]).deleted
    finally:
        os.close(fd)


def test_as_a_program_it_tells_the_same(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(10_000))
    asked = {
        "walks": [{"roots": [os.fsencode(tmp_path).hex()], "stop_above": None}],
        "proc": "/proc",
        "pids": [],
        "devices": [],
    }
    done = subprocess.run(
        [sys.executable, "-I", "-S", file_usage.__file__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["walks"][0]["bytes"] == walked(tmp_path).result.bytes
