import asyncio
from pathlib import Path

import pytest

from orchestrator.errors import RuntimeUnavailableError
from orchestrator.podman.exits import NO_CODE, ExitWatch, exit_dir, read_code
from tests.fakes.conmon import FakeConmon

CID = "ab" * 32


async def turns(count: int = 20) -> None:
    """Let the loop run what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_the_exit_file_tells_while_conmon_still_cleans_up(tmp_path: Path) -> None:
    watch = ExitWatch()
    with FakeConmon(CID, tmp_path) as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        assert not waiting.done()
        conmon.write_exit_file("7")
        assert await waiting == 7
    await watch.aclose()


async def test_an_exit_file_that_is_there_already(tmp_path: Path) -> None:
    watch = ExitWatch()
    with FakeConmon(CID, tmp_path) as conmon:
        conmon.write_exit_file("0\n")
        assert await watch.wait(CID, conmon.pid) == 0
    await watch.aclose()


async def test_a_killed_conmon_leaves_no_code(tmp_path: Path) -> None:
    watch = ExitWatch()
    with FakeConmon(CID, tmp_path) as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        conmon.kill()
        assert await waiting == NO_CODE
    await watch.aclose()


async def test_a_conmon_that_says_no_exit_dir_is_waited_for() -> None:
    """It has turned into its clean-up command already."""
    watch = ExitWatch()
    with FakeConmon(CID, None) as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        assert not waiting.done()
        conmon.end()
        assert await waiting == NO_CODE
    await watch.aclose()


async def test_an_exit_dir_that_cannot_be_watched(tmp_path: Path) -> None:
    watch = ExitWatch()
    with FakeConmon(CID, tmp_path / "missing") as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        assert not waiting.done()
        conmon.end()
        assert await waiting == NO_CODE
    await watch.aclose()


async def test_a_reused_pid_is_not_waited_for(tmp_path: Path) -> None:
    watch = ExitWatch()
    with FakeConmon("cd" * 32, tmp_path) as somebody:
        assert await watch.wait(CID, somebody.pid) == NO_CODE
    await watch.aclose()


@pytest.mark.parametrize("pid", [0, 1, -1])
async def test_no_pid(pid: int) -> None:
    assert await ExitWatch().wait(CID, pid) == NO_CODE


async def test_each_container_hears_of_its_own_end_only(tmp_path: Path) -> None:
    watch = ExitWatch()
    other = "ef" * 32
    with FakeConmon(CID, tmp_path) as first, FakeConmon(other, tmp_path) as second:
        waiting = [asyncio.ensure_future(watch.wait(CID, first.pid)) for _ in range(2)]
        late = asyncio.ensure_future(watch.wait(other, second.pid))
        await turns()
        first.write_exit_file("3")
        assert await asyncio.gather(*waiting) == [3, 3]
        assert not late.done()
        second.write_exit_file("137")
        assert await late == 137
    await watch.aclose()


async def test_letting_go_is_not_an_end(tmp_path: Path) -> None:
    """The container still runs: whoever waits must not take this for its exit."""
    watch = ExitWatch()
    with FakeConmon(CID, tmp_path) as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        await watch.aclose()
        with pytest.raises(RuntimeUnavailableError):
            await waiting


async def test_a_cancelled_wait_leaves_no_watch_and_no_descriptor(tmp_path: Path) -> None:
    watch = ExitWatch()
    before = set(Path("/proc/self/fd").iterdir())
    with FakeConmon(CID, tmp_path) as conmon:
        waiting = asyncio.ensure_future(watch.wait(CID, conmon.pid))
        await turns()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await turns()
    await watch.aclose()
    assert len(set(Path("/proc/self/fd").iterdir())) == len(before)


@pytest.mark.parametrize(("text", "code"), [("0", 0), ("255", 255), ("-1", None), ("256", None), ("", None), ("x", None)])
def test_exit_codes(tmp_path: Path, text: str, code: int | None) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert read_code(file) == code


def test_no_exit_file(tmp_path: Path) -> None:
    assert read_code(tmp_path / "missing") is None


def test_the_exit_dir_is_in_the_command_line(tmp_path: Path) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        assert exit_dir(conmon.pid) == tmp_path
    assert exit_dir(0) is None
