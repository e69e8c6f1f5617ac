"""From what the Gemini CLI prints (``--output-format stream-json``) to events.

Six types of line: ``init``, ``message``, ``tool_use``, ``tool_result``, ``error``, ``result``.  Pieces of text have no
id; those between two tool calls are one message.  When an answer breaks off and the CLI asks again, it does not say
so, and the text that has been streamed stays a part of the message.

A ``result`` with an error is kept until the process has ended: often its exit code alone has the status.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from adapters.gemini.failures import Failure, message_of, reason_of
from adapters.gemini.oneshot import words
from orchestrator.adapterkit.failures import (
    TEXT_IN_DETAILS,
    end_missing,
    last_words,
    not_in_image,
    with_words,
    without_end,
)
from orchestrator.adapterkit.kept_text import KeptText
from orchestrator.adapterkit.members import as_text, is_number, text_or_none
from orchestrator.adapterkit.parsing import JsonLinesParser
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
_SIGNALLED = frozenset({129, 130, 131, 134, 135, 136, 137, 139, 143})
"""Exit codes that mean a signal; others of that range are an HTTP status of which eight bits are left."""
_STOPS = {
    "Loop detected": "The agent repeated itself, and Gemini CLI stopped it. Say more precisely what is to be done.",
    "Maximum session turns": "The agent reached its limit of turns. Split the task, or raise the limit.",
    "Agent execution": "A hook or a policy stopped the agent.",
}
"""How a warning begins after which the CLI ends as if all were well, with exit code 0; and what it means."""


class GeminiParser(JsonLinesParser):
    """One run."""

    def __init__(self) -> None:
        super().__init__()
        self._session_id: str | None = None
        self._message = 1
        """Number of the message that text belongs to."""
        self._text = KeptText(TEXT_KEEP)
        self._calls: set[str] = set()
        self._error_line = ""
        self._stop = ""
        """The warning after which the CLI stops the agent."""
        self._result: dict[str, Any] | None = None
        """The ``result`` line of a run that failed."""

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line."""
        match obj["type"]:
            case "init":
                return self._init(obj)
            case "message":
                return self._say(obj)
            case "tool_use":
                return self._tool_use(obj)
            case "tool_result":
                return self._tool_result(obj)
            case "error":
                return self._warn(as_text(obj["message"]), severe=obj.get("severity") != "warning")
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
            return [not_in_image("Gemini CLI", details)]
        if self._session_id is None or self._error_line:
            # Before a session has begun stderr tells why; later it may hold anything.
            failure = Failure(text=self._error_line or words(stderr_tail), exit_code=exit_code)
            if reason_of(failure) != "cli_failed" or exit_code in {42, 52, 55}:
                return [_failed(failure, details)]
        elif (reason := reason_of(Failure(text="", exit_code=exit_code))) != "cli_failed":
            return [Error(reason=reason, message=message_of(reason, Failure(text="")), details=details)]
        if exit_code == 0 and self._is_speaking() and (text := self._text.join()):
            return [end_missing("Gemini CLI", text, details)]
        message = without_end("Gemini CLI", exit_code, last_words(words(stderr_tail)), signals=_SIGNALLED)
        return [Error(reason="cli_failed", message=message, details=details)]

    def _init(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        session_id, model = as_text(obj["session_id"]), obj.get("model")
        if self._session_id is not None:
            return ()
        self._session_id = session_id
        return [SessionStarted(session_id=session_id, model=text_or_none(model))]

    def _say(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        role, text = obj["role"], as_text(obj["content"])
        if role not in {"user", "assistant"}:
            raise ValueError("an unknown role")
        if role == "user" or not text:  # the prompt again
            return ()
        self._text.add(self._message_id, text)
        return [MessageDelta(text=text, message_id=self._message_id)]

    @property
    def _message_id(self) -> str:
        return f"message-{self._message}"

    def _is_speaking(self) -> bool:
        """Whether text has come since the newest tool call."""
        return self._text.message_id == self._message_id

    def _tool_use(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        call_id, name, arguments = as_text(obj["tool_id"]), as_text(obj["tool_name"]), obj["parameters"]
        if not isinstance(arguments, dict):
            raise TypeError("a tool's parameters are an object")
        if call_id in self._calls:
            return ()
        self._calls.add(call_id)
        self._message += self._is_speaking()
        return [ToolUse(tool_call_id=call_id, name=name, input=arguments)]

    def _tool_result(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """A command's exit code is nowhere: its failing is no error here, only that of a tool itself is one."""
        call_id, status = as_text(obj["tool_id"]), as_text(obj["status"])
        output, error = obj.get("output"), obj.get("error")
        if call_id not in self._calls:
            raise ValueError("the result of a call that was never made")
        if output is None and isinstance(error, dict):
            output = error.get("message")
        content = "" if output is None else as_text(output)
        return [ToolResult(tool_call_id=call_id, content=content, is_error=status != "success" or error is not None)]

    def _warn(self, message: str, *, severe: bool) -> Sequence[AgentEvent]:
        if severe:
            self._error_line = message
        elif message.startswith(tuple(_STOPS)):
            self._stop = message
        return [Status(phase="diagnostic", info={"stderr": message})]

    def _end(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """``status`` decides: the exit code is 0 when the answer broke off, too."""
        status, stats = as_text(obj["status"]), obj.get("stats")
        if status != "success":
            self._result = obj
            return ()
        tokens = _tokens(stats) or Tokens(input=0, output=0)
        if self._stop:
            return [self._stopped(tokens)]
        return [Completed(final_text=self._text.join(), tokens=tokens, duration_ms=_count(stats, "duration_ms"))]

    def _stopped(self, tokens: Tokens) -> Error:
        """The agent was ended before it had an answer, although the CLI calls it a success."""
        advice = next(advice for start, advice in _STOPS.items() if self._stop.startswith(start))
        details = {"cli_message": self._stop, "tokens": tokens.to_dict(), "text": self._text.join()[-TEXT_IN_DETAILS:]}
        return Error(reason="cli_failed", message=with_words(advice, "Gemini CLI", self._stop), details=details)


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


def _count(stats: Any, name: str) -> int:
    """A count that may be missing, and that nothing else depends on."""
    value = stats.get(name) if isinstance(stats, dict) else None
    return max(0, round(value)) if is_number(value) else 0
