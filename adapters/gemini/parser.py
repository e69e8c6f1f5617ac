"""From what the Gemini CLI prints (``--output-format stream-json``) to events.

Six types of line: ``init``, ``message``, ``tool_use``, ``tool_result``, ``error``, ``result``.  Pieces of text have no
id; those between two tool calls are one message.  When an answer breaks off and the CLI asks again, it does not say
so, and the text that has been streamed stays a part of the message.

A ``result`` that tells of an error is kept until the process has ended: often its exit code alone has the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.gemini.failures import Failure, message_of, reason_of
from adapters.gemini.oneshot import words
from orchestrator.adapterkit.parsing import JsonLinesParser, end_missing
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Tokens,
    ToolResult,
    ToolUse,
)

TEXT_KEEP = 8 * 1024**2
"""Characters of the last message that the final text has; the CLI's result does not repeat it."""
_STOPS = {"Loop detected": "loop_detected", "Maximum session turns": "max_turns", "Agent execution": "stopped"}
"""How a warning begins after which the CLI ends, as if all were well."""


class GeminiParser(JsonLinesParser):
    """One run."""

    def __init__(self) -> None:
        super().__init__()
        self._session_id: str | None = None
        self._message = 1
        """Number of the message being told."""
        self._told = _Kept()
        self._calls: set[str] = set()
        self._error_line = ""
        self._stop: str | None = None
        self._result: dict[str, Any] | None = None
        """The line that tells of the failure."""

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line."""
        match obj["type"]:
            case "init":
                return self._init(obj)
            case "message":
                return self._text(obj)
            case "tool_use":
                return self._tool_use(obj)
            case "tool_result":
                return self._tool_result(obj)
            case "error":
                return self._warn(whole(obj["message"]), severe=obj.get("severity") != "warning")
            case "result":
                return self._end(obj)
            case _:
                raise ValueError("an unknown type of line")

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """The CLI said that it failed, or it said nothing: killed (which it ends with 0), cut off, never started."""
        details: dict[str, Any] = {"exit_code": exit_code, "stderr": stderr_tail}
        if self._result is not None:
            error = self._result.get("error")
            error = error if isinstance(error, dict) else {}
            text = error.get("message") or self._error_line
            if (tokens := _tokens(self._result.get("stats"))) is not None:
                details["tokens"] = tokens.to_dict()
            if isinstance(error.get("type"), str):
                details["cli_error"] = error["type"]
            return [_failed(Failure(text=text if isinstance(text, str) else str(text), exit_code=exit_code), details)]
        if self._session_id is None and exit_code in {126, 127}:
            message = "Gemini CLI cannot be started: it is not in the image. Build the image of this backend again."
            return [Error(reason="cli_not_installed", message=message, details=details)]
        if self._session_id is None or self._error_line:
            # Before a session has begun stderr tells why; later it may hold anything.
            failure = Failure(text=self._error_line or words(stderr_tail), exit_code=exit_code)
            if reason_of(failure) != "cli_failed" or exit_code in {42, 52, 55}:
                return [_failed(failure, details)]
        elif (reason := reason_of(Failure(text="", exit_code=exit_code))) != "cli_failed":
            return [Error(reason=reason, message=message_of(reason, Failure(text="")), details=details)]
        if exit_code == 0 and self._told.number == self._message and (text := self._told.join()):
            return [end_missing("Gemini CLI", text, details)]
        how = "ended" if exit_code is None else f"ended with exit code {exit_code}"
        if exit_code is not None and exit_code in {129, 130, 131, 134, 135, 136, 137, 139, 143}:
            how = f"was ended by signal {exit_code - 128}"
        last = words(stderr_tail).rpartition("\n")[2]
        said = f" Its last words on stderr: {last[:300]}" if last else ""
        return [Error(reason="cli_failed", message=f"Gemini CLI {how} without a result.{said}", details=details)]

    def _init(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        session_id, model = whole(obj["session_id"]), obj.get("model")
        if self._session_id is not None:
            return ()
        self._session_id = session_id
        return [SessionStarted(session_id=session_id, model=model if isinstance(model, str) else None)]

    def _text(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        role, text = obj["role"], whole(obj["content"])
        if role not in {"user", "assistant"}:
            raise ValueError("an unknown role")
        if role == "user" or not text:  # the prompt again
            return ()
        self._told.add(self._message, text)
        return [MessageDelta(text=text, message_id=f"message-{self._message}")]

    def _tool_use(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        call_id, name, arguments = whole(obj["tool_id"]), whole(obj["tool_name"]), obj["parameters"]
        if not isinstance(arguments, dict):
            raise TypeError("a tool's parameters are an object")
        if call_id in self._calls:
            return ()
        self._calls.add(call_id)
        self._message += self._told.number == self._message
        return [ToolUse(tool_call_id=call_id, name=name, input=arguments)]

    def _tool_result(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """A command's exit code is nowhere: its failing is no error here, only that of a tool itself is one."""
        call_id, status = whole(obj["tool_id"]), whole(obj["status"])
        output, error = obj.get("output"), obj.get("error")
        if call_id not in self._calls:
            raise ValueError("the result of a call that was never made")
        if output is None and isinstance(error, dict):
            output = error.get("message")
        content = "" if output is None else whole(output)
        return [ToolResult(tool_call_id=call_id, content=content, is_error=status != "success" or error is not None)]

    def _warn(self, message: str, *, severe: bool) -> Sequence[AgentEvent]:
        if severe:
            self._error_line = message
        self._stop = next((stop for start, stop in _STOPS.items() if message.startswith(start)), self._stop)
        return [Status(phase="diagnostic", info={"stderr": message})]

    def _end(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """``status`` decides: the exit code is 0 when the answer broke off, too."""
        status, stats = whole(obj["status"]), obj.get("stats")
        if status != "success":
            self._result = obj
            return ()
        return [
            Completed(
                final_text=self._told.join(),
                tokens=_tokens(stats) or Tokens(input=0, output=0),
                duration_ms=_count(stats, "duration_ms"),
                stop_reason=self._stop,
            )
        ]


class _Kept:
    """The text of the newest message, bounded."""

    def __init__(self) -> None:
        self.number = 0
        self._parts: list[str] = []
        self._size = 0

    def add(self, number: int, text: str) -> None:
        if number != self.number:
            self.number, self._parts, self._size = number, [], 0
        room = TEXT_KEEP - self._size
        if room > 0:
            self._parts.append(text[:room])
        self._size += len(text)

    def join(self) -> str:
        cut = self._size - TEXT_KEEP
        return "".join(self._parts) + (f" …[cut: {cut} characters, the whole is in the run's log]" if cut > 0 else "")


def _failed(failure: Failure, details: dict[str, Any]) -> Error:
    reason = reason_of(failure)
    if failure.status is not None:
        details = {**details, "http_status": failure.status}
    return Error(reason=reason, message=message_of(reason, failure), details=details)


def _tokens(stats: Any) -> Tokens | None:
    """``input_tokens`` has the cached ones in it, ``input`` has not; what is missing in the sum are thoughts."""
    if not isinstance(stats, dict):
        return None
    prompt, output, cached = _count(stats, "input_tokens"), _count(stats, "output_tokens"), _count(stats, "cached")
    return Tokens(
        input=max(0, prompt - cached),
        output=output,
        cache_read=cached,
        reasoning=max(0, _count(stats, "total_tokens") - prompt - output),
    )


def whole(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def _count(stats: Any, name: str) -> int:
    """A count that may be missing, and that nothing else depends on."""
    value = stats.get(name) if isinstance(stats, dict) else None
    return max(0, round(value)) if isinstance(value, int | float) and not isinstance(value, bool) else 0
