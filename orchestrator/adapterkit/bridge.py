"""A ``StreamParser`` for adapters that bring only the documented members (C1).

``StreamBridge`` drives an adapter's ``parse_stream`` by hand: the coroutine is stepped until it asks for more input, so
no event loop is needed and the parser stays pure.  ``OneshotBridge`` collects the output for ``parse_oneshot``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Generator
from typing import Any

from orchestrator.contract.adapter import AgentAdapter
from orchestrator.contract.types import AgentResult
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Tokens

ONESHOT_MAX_BYTES = 16 * 1024**2
"""Of an output that can only be read as a whole, no more than this is kept."""


class _MoreInput:
    """What the input iterator awaits while it has nothing: suspends the coroutine once."""

    def __await__(self) -> Generator[_MoreInput, None, None]:
        yield self


class _Input:
    """The stdout that ``parse_stream`` reads: chunks as they are fed, then the end."""

    def __init__(self) -> None:
        self.chunks: list[bytes] = []
        self.closed = False

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while not self.chunks:
            if self.closed:
                raise StopAsyncIteration
            await _MoreInput()
        return self.chunks.pop(0)


class StreamBridge:
    """Feeds ``parse_stream``.  Raises RuntimeError when it awaits anything but its input."""

    def __init__(self, adapter: AgentAdapter) -> None:
        self._name = adapter.name
        self._input = _Input()
        events: Any = adapter.parse_stream(self._input)
        # The documents write ``async def parse_stream(...) -> AsyncIterator``: an async generator, or a coroutine that
        # returns one.  Both are taken.
        self._opening: Awaitable[Any] | None = events if not hasattr(events, "__anext__") else None
        self._events: Any = None if self._opening is not None else events
        self._step: Generator[Any, None, Any] | None = None
        self._done = False
        self._text: list[str] = []

    def feed(self, data: bytes) -> list[AgentEvent]:
        """Take the next bytes."""
        if data:
            self._input.chunks.append(data)
        return self._drive()

    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        """The process has ended."""
        self._input.closed = True
        out = self._drive()
        if not self._done:
            self._done = True
            out.append(_ending(self._name, exit_code, stderr_tail, "".join(self._text)))
        return out

    def _drive(self) -> list[AgentEvent]:
        out: list[AgentEvent] = []
        while not self._done:
            if self._step is None:
                awaitable = self._opening if self._opening is not None else self._events.__anext__()
                self._step = awaitable.__await__()
            try:
                waits_for = self._step.send(None)
            except StopAsyncIteration:
                break
            except StopIteration as stop:
                self._step = None
                self._take(stop.value, out)
            else:
                if not isinstance(waits_for, _MoreInput):
                    message = f"parse_stream of {self._name} awaits something other than its input"
                    raise RuntimeError(message)  # noqa: TRY004  # not a wrong argument: the adapter misbehaves
                break
        return out

    def _take(self, value: Any, out: list[AgentEvent]) -> None:
        if self._opening is not None:
            self._opening, self._events = None, value
            return
        if isinstance(value, MessageDelta):
            self._text.append(value.text)
        out.append(value)
        self._done = isinstance(value, Completed | Error)


class OneshotBridge:
    """Collects the output (at most ONESHOT_MAX_BYTES of it) and has ``parse_oneshot`` read it at the end."""

    def __init__(self, adapter: AgentAdapter) -> None:
        self._adapter = adapter
        self._output = bytearray()

    def feed(self, data: bytes) -> list[AgentEvent]:
        """Keep the bytes; nothing can be said before the end."""
        self._output += data[: max(0, ONESHOT_MAX_BYTES - len(self._output))]
        return []

    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        """The result as events."""
        text = self._output.decode("utf-8", errors="replace")
        result = self._adapter.parse_oneshot(text, stderr_tail, -1 if exit_code is None else exit_code)
        return _as_events(self._adapter.name, result)


def _as_events(name: str, result: AgentResult) -> list[AgentEvent]:
    out: list[AgentEvent] = []
    if result.session_id:
        out.append(SessionStarted(session_id=result.session_id))
    if result.final_text:
        out.append(MessageDelta(text=result.final_text, message_id="1"))
    if result.is_error:
        given = result.error or {}
        message = str(given.get("message") or result.final_text or f"{name} failed")
        out.append(Error(reason=given.get("reason", "cli_failed"), message=message, details=given.get("details", {})))
    else:
        counts = result.tokens
        tokens = Tokens(
            input=counts.get("input", 0),
            output=counts.get("output", 0),
            cache_read=counts.get("cache_read"),
            cache_write=counts.get("cache_write"),
            reasoning=counts.get("reasoning"),
        )
        out.append(
            Completed(
                final_text=result.final_text,
                tokens=tokens,
                duration_ms=0,
                stop_reason=result.stop_reason,
                cost_usd=result.cost_usd,
            )
        )
    return out


def _ending(name: str, exit_code: int | None, stderr_tail: str, text: str) -> AgentEvent:
    if exit_code == 0 and text:
        return Completed(final_text=text, tokens=Tokens(input=0, output=0), duration_ms=0)
    how = "ended" if exit_code is None else f"ended with exit code {exit_code}"
    return Error(
        reason="cli_failed",
        message=f"{name} {how} without a result",
        details={"exit_code": exit_code, "stderr": stderr_tail},
    )
