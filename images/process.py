"""Running a build tool: its lines as they come, bounded in time, and nothing of it left when it is cancelled."""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence

from orchestrator.errors import ImageBuildError

TAIL_LINES = 20
_MAX_LINE = 2000
_TERM_GRACE = 20.0
"""Seconds that a tool gets to remove what it has begun (mmdebstrap: a whole root file system)."""
_KILL_GRACE = 5.0
_LINE_END = re.compile(rb"[\r\n]+")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


async def run_lines(argv: Sequence[str], *, timeout: float, on_line: Callable[[str], None]) -> None:
    """Run a command to its end; each line of its stdout and stderr goes to ``on_line``.

    Raises ImageBuildError, with the last lines, when it fails, cannot be started, or takes longer than ``timeout``
    seconds.  However this ends, no process of the command's group is left.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)

    def take(raw: bytes) -> None:
        line = _CONTROL.sub("", raw[:_MAX_LINE].decode(errors="replace")).strip()
        if line:
            tail.append(line)
            on_line(line)

    process = await _start(argv, stderr=asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(timeout):
            assert process.stdout is not None
            rest = b""
            while chunk := await process.stdout.read(65536):
                *lines, rest = _LINE_END.split(rest + chunk)
                rest = rest[-65536:]
                for raw in lines:
                    take(raw)
            take(rest)
            code = await process.wait()
    except TimeoutError:
        raise ImageBuildError(
            f"{_name(argv)} took longer than {timeout:.0f} s and was ended", lines=list(tail)
        ) from None
    finally:
        await _end(process)
    if code != 0:
        last = f": {tail[-1]}" if tail else ""
        raise ImageBuildError(f"{_name(argv)} failed with exit code {code}{last}", lines=list(tail), exit_code=code)


async def output(argv: Sequence[str], *, timeout: float = 60.0) -> bytes:
    """The stdout of a short command.  Raises ImageBuildError when it fails or takes longer than ``timeout`` seconds."""
    process = await _start(argv, stderr=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(timeout):
            stdout, stderr = await process.communicate()
    except TimeoutError:
        raise ImageBuildError(f"{_name(argv)} took longer than {timeout:.0f} s and was ended") from None
    finally:
        await _end(process)
    if process.returncode != 0:
        lines = stderr.decode(errors="replace").strip().splitlines()[-TAIL_LINES:]
        last = f": {lines[-1]}" if lines else ""
        raise ImageBuildError(
            f"{_name(argv)} failed with exit code {process.returncode}{last}", lines=lines, exit_code=process.returncode
        )
    return stdout


async def _start(argv: Sequence[str], *, stderr: int) -> asyncio.subprocess.Process:
    try:
        # A session of its own: a Ctrl-C at the terminal reaches us alone, and we end the whole group in order.
        return await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=stderr,
            cwd="/",  # Podman refuses to start where its user may not be
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ImageBuildError(f"{argv[0]} is not installed") from None
    except OSError as error:
        raise ImageBuildError(f"{argv[0]} cannot be started: {error.strerror}") from error


async def _end(process: asyncio.subprocess.Process) -> None:
    """TERM, wait, KILL, wait; at once when it has ended already."""
    try:
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGTERM)
            await _gone(process, _TERM_GRACE)
    finally:
        # Also when we are interrupted here, and for what the leader has left behind in its group.
        _signal_group(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await _gone(process, _KILL_GRACE)


async def _gone(process: asyncio.subprocess.Process, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            # What the tool still prints is read away: with a full pipe it could not end.
            if process.stdout is not None:
                while await process.stdout.read(65536):
                    pass
            await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _name(argv: Sequence[str]) -> str:
    """What to call the command in a message: program and subcommand."""
    words = [word for word in argv if "=" not in word and not word.startswith("-") and word != "env"]
    return " ".join(words[:2] if words[:1] == ["podman"] else words[:1])
