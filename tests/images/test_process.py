"""Running a tool: lines, failures, and that nothing is left of it."""

import asyncio
import os
import select
from pathlib import Path

import pytest

from images.process import output, run_lines
from orchestrator.errors import ImageBuildError


def gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return True
    return state == "Z"


async def test_lines_come_one_by_one_from_both_streams() -> None:
    lines: list[str] = []
    script = r"printf 'a\rb\n\n'; printf '\033[1mc\033[0m\n' >&2; printf 'no newline'"
    await run_lines(["sh", "-c", script], timeout=20, on_line=lines.append)
    assert lines == ["a", "b", "c", "no newline"]


async def test_a_failure_has_the_last_twenty_lines() -> None:
    with pytest.raises(ImageBuildError, match="sh failed with exit code 3: 30") as caught:
        await run_lines(["sh", "-c", "seq 30; exit 3"], timeout=20, on_line=lambda _: None)
    assert caught.value.details == {"lines": [str(number) for number in range(11, 31)], "exit_code": 3}


@pytest.mark.parametrize("lines", [100, 15, 3])
async def test_what_stderr_said_is_told_however_much_came_on_stdout_after_it(lines: int) -> None:
    script = f"echo this is why >&2; sleep 0.05; seq {lines}; exit 9"
    with pytest.raises(ImageBuildError, match="sh failed with exit code 9: this is why") as caught:
        await run_lines(["sh", "-c", script], timeout=20, on_line=lambda _: None, apart=True)
    last = [str(number) for number in range(max(1, lines - 18), lines + 1)]
    assert caught.value.details["lines"] == ["this is why", *last]


async def test_twenty_lines_are_told_of_both_streams_ten_of_stderr() -> None:
    script = "seq 101 130 >&2; sleep 0.05; seq 30; exit 9"
    with pytest.raises(ImageBuildError, match="exit code 9: 130") as caught:
        await run_lines(["sh", "-c", script], timeout=20, on_line=lambda _: None, apart=True)
    assert caught.value.details["lines"] == [str(number) for number in (*range(121, 131), *range(21, 31))]


async def test_all_twenty_may_be_of_stderr() -> None:
    with pytest.raises(ImageBuildError) as caught:
        await run_lines(["sh", "-c", "echo 1; seq 101 130 >&2; exit 9"], timeout=20, on_line=lambda _: None, apart=True)
    assert caught.value.details["lines"] == ["1", *(str(number) for number in range(112, 131))]


async def test_a_listener_that_fails_ends_the_tool_and_is_heard() -> None:
    pids: list[str] = []

    def on_line(line: str) -> None:
        pids.append(line)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        await run_lines(["sh", "-c", "echo $$ >&2; sleep 300"], timeout=60, on_line=on_line, apart=True)
    assert gone(int(pids[0]))


async def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    lines: list[str] = []
    await run_lines(["head", "-c", "3000000", "/dev/zero"], timeout=20, on_line=lines.append)
    assert sum(map(len, lines)) <= 4000


async def test_a_tool_that_is_not_there() -> None:
    with pytest.raises(ImageBuildError, match="no-such-tool is not installed"):
        await output(["no-such-tool"])


async def test_the_output_of_a_short_command() -> None:
    assert await output(["printf", "hello"]) == b"hello"
    with pytest.raises(ImageBuildError, match="sh failed with exit code 1: why"):
        await output(["sh", "-c", "echo why >&2; exit 1"])


async def test_too_long_is_ended_with_its_children() -> None:
    pids: list[str] = []
    with pytest.raises(ImageBuildError, match="took longer than"):
        await run_lines(["sh", "-c", "sleep 300 & echo $!; echo $$; wait"], timeout=0.5, on_line=pids.append)
    assert len(pids) == 2
    assert all(gone(int(pid)) for pid in pids)


async def test_cancelling_ends_the_tool_after_it_has_tidied_up(tmp_path: Path) -> None:
    marker = tmp_path / "tidy"
    pids: list[int] = []
    started = asyncio.Event()

    def on_line(line: str) -> None:
        pids.append(int(line))
        started.set()

    script = f"trap 'echo done > {marker}; exit 1' TERM; echo $$; while :; do sleep 0.1; done"
    work = asyncio.create_task(run_lines(["sh", "-c", script], timeout=60, on_line=on_line))
    async with asyncio.timeout(20):
        await started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert marker.read_text() == "done\n"
    assert gone(pids[0])


async def test_a_child_that_ignores_term_and_outlives_its_parent_is_killed() -> None:
    child: list[int] = []
    started = asyncio.Event()

    def on_line(line: str) -> None:
        child.append(os.pidfd_open(int(line)))
        started.set()

    # The child holds no pipe of ours, so the parent's end is all that we could wait for.
    script = "sh -c 'trap \"\" TERM; echo $$ >&3; exec >&- 2>&- 3>&-; while :; do sleep 1; done' 3>&1 & wait"
    work = asyncio.create_task(run_lines(["sh", "-c", script], timeout=60, on_line=on_line))
    async with asyncio.timeout(20):
        await started.wait()
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert select.select([child[0]], [], [], 10)[0], "the child lives on"
    os.close(child[0])


async def test_a_tool_has_a_process_group_of_its_own() -> None:
    group = (await output(["sh", "-c", "cut -d' ' -f5 /proc/$$/stat"])).decode().strip()
    assert int(group) != os.getpgrp()
