"""Running a build tool: its lines as they come, bounded in time, and nothing of it left when it is cancelled."""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import Callable, Sequence
from heapq import merge
from itertools import count

from orchestrator.errors import ImageBuildError

TAIL_LINES = 20
"""Lines of its output that the error of a tool has."""
_TAIL_OF_STDERR = 10
"""How many of them come from stderr at least, where there are as many."""
_MAX_LINE = 2000
_TERM_GRACE = 20.0
"""Seconds that a tool gets to remove what it has begun (mmdebstrap: a whole root file system)."""
_KILL_GRACE = 5.0
_LINE_END = re.compile(rb"[\r\n]+")
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class _Tail:
    """The last lines of both streams, for the error of a tool that fails.  Where they are one, it counts as stdout.

    What comes late is not what was written late: ``podman build`` hands stdout and stderr of a step on by two copiers
    that do not wait for one another, so the sentence that says what went wrong may come before a hundred lines of
    progress.  So stderr has a share of its own.
    """

    def __init__(self) -> None:
        self._numbers = count()
        self._stdout: deque[tuple[int, str]] = deque(maxlen=TAIL_LINES)
        self._stderr: deque[tuple[int, str]] = deque(maxlen=TAIL_LINES)

    def add(self, line: str, *, stderr: bool) -> None:
        (self._stderr if stderr else self._stdout).append((next(self._numbers), line))

    def lines(self) -> list[str]:
        """At most ``TAIL_LINES``, in the order in which they came."""
        share = max(_TAIL_OF_STDERR, TAIL_LINES - len(self._stdout))
        errors = list(self._stderr)[-share:]
        others = list(self._stdout)[max(0, len(self._stdout) + len(errors) - TAIL_LINES) :]
        return [line for _, line in merge(errors, others)]

    def last(self) -> str | None:
        """What names the cause best: the last line of stderr, else that of stdout."""
        said = self._stderr or self._stdout
        return said[-1][1] if said else None


async def run_lines(
    argv: Sequence[str], *, timeout: float, on_line: Callable[[str], None], apart: bool = False
) -> None:
    """Run a command to its end; each line of its stdout and stderr goes to ``on_line``.

    ``apart``: the streams are read each by itself.  Their common order is lost then, so this is for a tool that does
    not keep it: ``podman build`` (see ``_Tail``).  Otherwise both are one stream, in the order of writing.

    Raises ImageBuildError, with the last lines, when it fails, cannot be started, or takes longer than ``timeout``
    seconds.  However this ends, no process of the command's group is left.
    """
    tail = _Tail()

    async def read(stream: asyncio.StreamReader, *, stderr: bool) -> None:
        rest = b""
        while chunk := await stream.read(65536):
            *lines, rest = _LINE_END.split(rest + chunk)
            rest = rest[-65536:]
            for raw in lines:
                take(raw, stderr=stderr)
        take(rest, stderr=stderr)

    def take(raw: bytes, *, stderr: bool) -> None:
        line = _CONTROL.sub("", raw[:_MAX_LINE].decode(errors="replace")).strip()
        if line:
            tail.add(line, stderr=stderr)
            on_line(line)

    process = await _start(argv, stderr=asyncio.subprocess.PIPE if apart else asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(timeout):
            async with asyncio.TaskGroup() as group:
                for stream in (process.stdout, process.stderr):
                    if stream is not None:
                        group.create_task(read(stream, stderr=stream is process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise ImageBuildError(
            f"{_name(argv)} took longer than {timeout:.0f} s and was ended", lines=tail.lines()
        ) from None
    except ExceptionGroup as errors:
        raise errors.exceptions[0] from None  # what ``on_line`` has raised
    finally:
        await _end(process)
    if code != 0:
        raise _failed(argv, code, tail.last(), tail.lines())


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
        raise _failed(argv, process.returncode, lines[-1] if lines else None, lines)
    return stdout


def _failed(argv: Sequence[str], code: int | None, last: str | None, lines: list[str]) -> ImageBuildError:
    why = "" if last is None else f": {last}"
    return ImageBuildError(f"{_name(argv)} failed with exit code {code}{why}", lines=lines, exit_code=code)


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
            await asyncio.gather(_discard(process.stdout), _discard(process.stderr))
            await process.wait()


async def _discard(stream: asyncio.StreamReader | None) -> None:
    while stream is not None and await stream.read(65536):
        pass


def _signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _name(argv: Sequence[str]) -> str:
    """What to call the command in a message: program and subcommand."""
    words = [word for word in argv if "=" not in word and not word.startswith("-") and word != "env"]
    return " ".join(words[:2] if words[:1] == ["podman"] else words[:1])
