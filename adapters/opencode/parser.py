"""From what OpenCode prints (``run --format json``) to events.

Most lines come twice: from the plugin in the image (``podmentor.js``) when something happens, and from OpenCode itself
when it is over, in the same form but without the pieces of a text.  So each part becomes events once, by its id, and
without the plugin what OpenCode prints is enough.  There is no last line: the run has ended well when the last step
says ``stop`` and the exit code is 0.  Older releases (``session.start`` and others with a dot) are read by ``older``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from adapters.opencode.failures import ABORTED, TOO_LONG, Failure, message_of, names_config, plain, reason_of, words
from adapters.opencode.messages import Messages, Usage, is_countable
from adapters.opencode.older import OLDER_TYPES, read_older
from orchestrator.adapterkit.failures import end_missing, last_words, not_in_image, without_end
from orchestrator.adapterkit.kept_text import KeptText
from orchestrator.adapterkit.members import as_object, as_text, text_or_none
from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.events import (
    AgentEvent,
    Completed,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    ToolResult,
    ToolUse,
)

Reader: TypeAlias = Callable[[dict[str, Any], str | None], Sequence[AgentEvent]]
"""Events of a line; the second argument: the id of the tool call whose sub-agent it comes from."""
UNFINISHED: Final = frozenset({"tool-calls", "tool_use", "error"})
"""Reasons for the end of a step that are no end of the answer."""


TEXT_KEEP: Final = 4 * 1024 * 1024
"""Characters of the newest message that the final text has; OpenCode does not repeat it."""


class OpenCodeParser(JsonLinesParser):
    """One run."""

    def __init__(self) -> None:
        super().__init__()
        self._session_id: str | None = None
        self._messages = Messages()
        self._done: set[tuple[str, str]] = set()
        """Line types of parts that have become events."""
        self._streamed: dict[str, int] = {}
        """Characters, per part."""
        self._calls: dict[str, str] = {}
        """Tool calls by the id of their part."""
        self._text = KeptText(TEXT_KEEP)
        self._usage = Usage()
        self._ended_by: str | None = None
        """The reason that the agent's last step gave; None while a step goes on."""
        self._failure: Failure | None = None
        self._announced = False
        """The next attempt has been reported as a retry."""
        self._last_retry: dict[str, Any] | None = None
        self._times: tuple[int, int] | None = None
        """Of the first line and the newest, in milliseconds."""
        self._readers: dict[str, Reader] = {
            "session": self._session,
            "step_start": self._step_start,
            "delta": self._delta,
            "text": self._block,
            "reasoning": self._block,
            "tool_start": self._tool,
            "tool_use": self._tool,
            "step_finish": self._step_finish,
            "retry": self._retry,
            "error": self._error,
        }
        """By the type of the line."""

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line."""
        kind = obj["type"]
        if kind in OLDER_TYPES or (kind in {"reasoning", "error"} and "part" not in obj and kind not in obj):
            events = list(read_older(obj, self._text, f"line-{self._line_no}", opened=self._session_id is not None))
            if events and isinstance(events[0], SessionStarted):
                self._session_id = events[0].session_id
            return events
        read = self._readers.get(kind)
        if read is None:
            return [self._unknown(obj)]
        session_id, parent = as_text(obj["sessionID"]), obj.get("parent")
        events = list(read(obj, None if parent is None else self._calls.get(as_text(parent))))
        if is_countable(obj.get("timestamp")):
            now = round(obj["timestamp"])
            self._times = (self._times[0] if self._times else now, now)
        if self._session_id is None and parent is None:
            self._session_id = session_id
            if kind != "session":
                events.insert(0, SessionStarted(session_id=session_id))
        return events

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """OpenCode has no line that ends a run."""
        failure = self._failure
        if failure is None and self._ended_by == "length":
            failure = Failure(text="", name=TOO_LONG)
        if failure is None and exit_code == 0 and self._ended_by is not None and self._ended_by not in UNFINISHED:
            return [
                Completed(
                    final_text=self._text.join(),
                    tokens=self._usage.tokens(),
                    duration_ms=max(0, self._times[1] - self._times[0]) if self._times else 0,
                    stop_reason=self._ended_by,
                    cost_usd=self._usage.cost_usd,
                    turns=self._usage.turns,
                )
            ]
        details: dict[str, Any] = {"exit_code": exit_code, "stderr": stderr_tail}
        if self._usage.turns:
            details |= {"tokens": self._usage.tokens().to_dict(), "cost_usd": self._usage.cost_usd}
        if self._last_retry is not None:
            details["last_retry"] = self._last_retry
        if failure is not None:
            reason = reason_of(failure)
            return [Error(reason=reason, message=message_of(reason, failure), details=details | failure.details())]
        if self._session_id is None and exit_code in {126, 127}:
            return [not_in_image("OpenCode", details)]
        if exit_code == 0 and self._ended_by is None and (text := self._text.join()):
            return [end_missing("OpenCode", text, details)]
        # Before a session has begun stderr tells why; later it may hold anything.
        said = Failure(text=plain(stderr_tail) if self._session_id is None else "")
        reason = reason_of(said)
        if reason != "cli_failed" or names_config(said.text):
            return [Error(reason=reason, message=message_of(reason, said), details=details)]
        message = without_end("OpenCode", exit_code, last_words(plain(stderr_tail)), lacks="an answer")
        return [Error(reason="cli_failed", message=message, details=details)]

    # --- lines --------------------------------------------------------------------------------------------------

    def _session(self, obj: dict[str, Any], _: str | None) -> Sequence[AgentEvent]:
        if self._session_id is not None:
            return ()
        model, version = obj.get("model"), obj.get("version")
        return [
            SessionStarted(
                session_id=as_text(obj["sessionID"]),
                model=text_or_none(model),
                cli_version=text_or_none(version),
            )
        ]

    def _step_start(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        part = as_object(obj["part"])
        part_id, message = as_text(part["id"]), as_text(part["messageID"])
        if not self._first("step_start", part_id):
            return ()
        attempt = self._messages.step_begins(message, part_id)
        if parent is None:
            self._ended_by = None
        announced, self._announced = self._announced, False
        if attempt == 1 or announced:
            return ()
        return self._retrying(attempt - 1, 0, "the provider's answer broke off")

    def _delta(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        part, text = as_object(obj["part"]), as_text(obj["delta"])
        part_id, kind = as_text(part["id"]), as_text(part["type"])
        if (kind, part_id) in self._done:
            return ()
        message = self._messages.id_of(as_text(part["messageID"]), part_id)
        self._streamed[part_id] = self._streamed.get(part_id, 0) + len(text)
        return self._say(kind, text, message, parent)

    def _block(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        part = as_object(obj["part"])
        part_id, text, kind = as_text(part["id"]), as_text(part["text"]), as_text(obj["type"])
        message = self._messages.id_of(as_text(part["messageID"]), part_id)
        if not self._first(kind, part_id):
            return ()
        return self._say(kind, text[self._streamed.pop(part_id, 0) :], message, parent)

    def _tool(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        part = as_object(obj["part"])
        part_id, state = as_text(part["id"]), as_object(part["state"])
        name, arguments = as_text(part["tool"]), as_object(state["input"])
        if name == "invalid" and isinstance(arguments.get("tool"), str):
            name = arguments["tool"]  # what the model asked for
        ended = obj["type"] == "tool_use"
        content, is_error = _result(as_text(part["tool"]), state) if ended else ("", False)
        events: list[AgentEvent] = []
        if part_id not in self._calls:
            # Some providers count the calls of each answer from 0.
            given = as_text(part["callID"])
            call_id = self._calls[part_id] = part_id if given in self._calls.values() else given
            events.append(ToolUse(tool_call_id=call_id, name=name, input=arguments, parent_tool_call_id=parent))
        if ended and self._first("tool_use", part_id):
            call_id = self._calls[part_id]
            events.append(
                ToolResult(tool_call_id=call_id, content=content, is_error=is_error, parent_tool_call_id=parent)
            )
        return events

    def _step_finish(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        part = as_object(obj["part"])
        part_id, reason = as_text(part["id"]), as_text(part["reason"])
        if self._first("step_finish", part_id):
            self._usage.add(part)
            self._messages.step_ends(as_text(part["messageID"]))
            if parent is None:
                self._usage.turns += 1
                self._ended_by = reason
        return ()

    def _retry(self, obj: dict[str, Any], _: str | None) -> Sequence[AgentEvent]:
        message, attempt, delay = words(as_text(obj["message"])), obj["attempt"], obj["delay"]
        if not is_countable(attempt) or not is_countable(delay):
            raise TypeError("a retry has a number and a delay")
        self._announced = True
        status = _http_error(obj.get("statusCode"))
        cause = f"{message} (HTTP {status})" if status else message
        return self._retrying(round(attempt), round(delay), cause)

    def _error(self, obj: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        """Remembered for the end: more lines may follow.  The first one is the cause."""
        error = as_object(obj["error"])
        data = error.get("data") if isinstance(error.get("data"), dict) else {}
        assert data is not None
        message, body = data.get("message"), data.get("responseBody")
        attempts, wait = data.get("attempts"), data.get("retryAfter")
        found = Failure(
            text=text_or_none(message) or "",
            name=text_or_none(error.get("name")),
            status=_http_error(data.get("statusCode")),
            body=text_or_none(body) or "",
            retries=round(attempts) - 1 if is_countable(attempts) else None,
            retry_after_ms=round(wait) if is_countable(wait) else None,
        )
        if parent is None and (self._failure is None or self._failure.name == ABORTED):
            self._failure = found
        return ()

    # --- common -------------------------------------------------------------------------------------------------

    def _say(self, kind: str, text: str, message: str, parent: str | None) -> Sequence[AgentEvent]:
        if kind not in {"text", "reasoning"}:
            raise ValueError(f"{kind} is no kind of text")
        if not text:
            return ()
        if kind == "reasoning":
            return [Thinking(text=text, parent_tool_call_id=parent)]
        if parent is None:
            self._text.add(message, text)
        return [MessageDelta(text=text, message_id=message, parent_tool_call_id=parent)]

    def _retrying(self, attempt: int, delay_ms: int, cause: str) -> Sequence[AgentEvent]:
        self._last_retry = {"attempt": attempt, "delay_ms": delay_ms, "cause": cause}
        return [Status(phase="retrying", info=self._last_retry)]

    def _first(self, kind: str, part_id: str) -> bool:
        """Whether this line of this part has not been seen."""
        if (kind, part_id) in self._done:
            return False
        self._done.add((kind, part_id))
        return True

    def _unknown(self, obj: dict[str, Any]) -> Status:
        return self._unparsed(json.dumps(obj, ensure_ascii=False))


def _result(tool: str, state: dict[str, Any]) -> tuple[str, bool]:
    """What a tool gave back.  A command that fails has ``completed`` and its exit code; None: it was ended."""
    status = as_text(state["status"])
    if status == "error":
        return as_text(state["error"]), True
    metadata = state.get("metadata") or {}
    failed = tool == "invalid" or metadata.get("exit", 0) != 0
    attached = [f"[{file.get('mime') or 'file'}]" for file in state.get("attachments") or ()]
    return "\n".join([as_text(state["output"]), *attached]), failed


def _http_error(status: Any) -> int | None:
    """An answer that broke off has the status of its good beginning, which means nothing."""
    return round(status) if is_countable(status) and status >= 400 else None
