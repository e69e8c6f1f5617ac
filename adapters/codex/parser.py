"""From what Codex prints (``codex exec --json``) to events, in today's shape and in the documented older one.

Three things are not as they look.  An ``error`` line is a notice: what ends a run is ``turn.failed`` (in the older
shape the end of the output).  After a broken stream the CLI asks again and prints the new answer from its beginning,
so what has become events is printed again; that is left out here.  And token counts are those of the thread, not of
the run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from adapters.codex.failures import message_of, reason_of, said, status_of
from adapters.codex.items import TOOLS, todo_text
from adapters.codex.repeats import Texts
from adapters.codex.usage import tokens_of
from orchestrator.adapterkit.failures import end_missing, last_words, not_in_image, without_end
from orchestrator.adapterkit.members import as_text, number_or_none, text_or_none
from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import Resumed
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

_RETRY = re.compile(r"Reconnecting\.\.\. (\d+)/\d+(?: \((.*)\))?", re.DOTALL)
_LOG_LINE = re.compile(r"\s*\d{4}-\d\d-\d\dT\S+\s+[A-Z]+ codex_")
"""What the CLI notes on stderr for its own developers."""
STAGES = {"item.started": "started", "item.updated": "updated", "item.completed": "completed"}
OLDER_ITEMS = frozenset({"item.reasoning", "item.agent_message", "item.command_execution"})
QUIET = frozenset({"turn.started", "item.file_changes", "item.mcp_tool_calls"})
"""Lines that say nothing about the run; the last two are reserved in the older shape."""


class CodexParser(JsonLinesParser):
    """One run.  ``resumed``: the thread that it should continue."""

    def __init__(self, resumed: Resumed | None = None) -> None:
        super().__init__()
        self._resumed = resumed
        self._thread_id: str | None = None
        self._texts = Texts()
        self._calls: dict[str, bool] = {}
        """Tool calls that became events, and whether their result has."""
        self._plans: dict[str, tuple[int, str]] = {}
        """For each plan: how many events it has become, and its newest text."""
        self._final_text: str | None = None
        self._answered = False
        """The agent's last act was text, not a tool call."""
        self._held: dict[str, Any] | None = None
        """An ``error`` line whose meaning the next line shows: the reason of the end, or a mere notice."""
        self._last_retry: dict[str, Any] | None = None

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line."""
        kind = obj["type"]
        if kind == "error":
            return self._error(obj)
        if kind == "turn.failed":
            error = obj.get("error")
            return [self._failure({**(self._held or {}), **(error if isinstance(error, dict) else {"message": error})})]
        events = self._line(kind, obj)
        if events is None:
            return [self._unparsed(json.dumps(obj, ensure_ascii=False))]
        notice = [_notice(_message(self._held))] if self._held is not None else []
        self._held = None
        return [*notice, *events]

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """No line ended the turn: killed, never started, or an output of the older shape."""
        if self._held is not None:
            return [self._failure({"exit_code": exit_code, **self._held})]
        details: dict[str, Any] = {"exit_code": exit_code, "stderr": stderr_tail}
        if exit_code == 0 and self._answered:
            return [end_missing("Codex", self._final_text or "", details)]
        if self._last_retry is not None:
            details["last_retry"] = self._last_retry
        if self._thread_id is None and exit_code in {126, 127}:
            return [not_in_image("Codex", details)]
        # Before a thread has begun stderr tells why; later it may hold anything, also what tools printed.
        words = last_words("\n".join(line for line in stderr_tail.splitlines() if not _LOG_LINE.match(line)))
        reason = reason_of(words) if self._thread_id is None else "cli_failed"
        if reason != "cli_failed":
            return [Error(reason=reason, message=message_of(reason, words), details=details)]
        return [Error(reason=reason, message=without_end("Codex", exit_code, words), details=details)]

    # --- lines --------------------------------------------------------------------------------------------------

    def _line(self, kind: str, obj: dict[str, Any]) -> Sequence[AgentEvent] | None:
        """Events of a line that is no error; None when it is not known."""
        if kind == "thread.started":
            return self._started(as_text(obj["thread_id"] if "thread_id" in obj else obj["session_id"]))
        if kind in STAGES:
            return self._item(STAGES[kind], obj["item"])
        if kind == "turn.completed":
            return [self._completed(obj)]
        if kind in OLDER_ITEMS:
            return self._older_item(kind.removeprefix("item."), obj)
        return () if kind in QUIET else None

    def _started(self, thread_id: str) -> Sequence[AgentEvent]:
        if self._thread_id is not None:
            return ()
        self._thread_id = thread_id
        asked = self._resumed.session_id if self._resumed is not None else thread_id
        if asked.lower() != thread_id.lower():
            message = message_of("resume_failed", f"it has begun the new thread {thread_id} instead of {asked}")
            return [Error(reason="resume_failed", message=message, details={"asked": asked, "thread_id": thread_id})]
        return [SessionStarted(session_id=thread_id)]

    def _item(self, stage: str, item: dict[str, Any]) -> Sequence[AgentEvent] | None:
        kind = as_text(item["type"])
        if kind == "error":
            return [_notice(as_text(item["message"]))]
        item_id = as_text(item["id"])
        if kind == "agent_message":
            return self._say(item_id, as_text(item["text"]))
        if kind == "reasoning":
            return self._think(item_id, as_text(item["text"]))
        if kind == "todo_list":
            return self._plan(item_id, todo_text(item), item)
        return self._tool(kind, item_id, item, ended=stage == "completed") if kind in TOOLS else None

    def _older_item(self, kind: str, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        item_id = obj.get("item_id") or obj.get("id") or f"line-{self._line_no}"
        if kind == "command_execution":
            return self._tool(kind, as_text(item_id), obj, ended=True)
        text = as_text(obj["content"] if "content" in obj else obj["text"])
        return self._say(as_text(item_id), text) if kind == "agent_message" else self._think(as_text(item_id), text)

    def _say(self, item_id: str, text: str) -> Sequence[AgentEvent]:
        message_id, rest = self._texts.add("message", item_id, text)
        self._final_text, self._answered = text, True
        return [MessageDelta(text=rest, message_id=message_id)] if rest else ()

    def _think(self, item_id: str, text: str) -> Sequence[AgentEvent]:
        _, rest = self._texts.add("thought", item_id, text)
        return [Thinking(text=rest)] if rest else ()

    def _tool(self, kind: str, item_id: str, item: dict[str, Any], *, ended: bool) -> Sequence[AgentEvent]:
        call, outcome = TOOLS[kind]
        events: list[AgentEvent] = []
        if item_id not in self._calls:
            events.append(ToolUse(tool_call_id=item_id, name=(made := call(item)).name, input=made.input))
        result = outcome(item) if ended and not self._calls.get(item_id) else None
        if result is not None:
            events.append(ToolResult(tool_call_id=item_id, content=result.content, is_error=result.is_error))
        self._calls[item_id] = self._calls.get(item_id, False) or ended
        self._texts.acted()
        self._answered = False
        return events

    def _plan(self, item_id: str, text: str, item: dict[str, Any]) -> Sequence[AgentEvent]:
        """Each version of the plan is a call of its own, since a call's input is reported once."""
        count, newest = self._plans.get(item_id, (0, ""))
        if text == newest:
            return ()
        self._plans[item_id] = (count + 1, text)
        call_id = f"{item_id}.{count}" if count else item_id
        return [
            ToolUse(tool_call_id=call_id, name="TodoList", input={"items": item["items"]}),
            ToolResult(tool_call_id=call_id, content=text, is_error=False),
        ]

    # --- ends ---------------------------------------------------------------------------------------------------

    def _completed(self, obj: dict[str, Any]) -> Completed:
        return Completed(
            final_text=self._final_text or "",
            tokens=tokens_of(obj.get("usage"), self._resumed.tokens if self._resumed is not None else None),
            duration_ms=0,
            stop_reason=text_or_none(obj.get("stop_reason")),
            cost_usd=number_or_none(obj.get("cost", obj.get("cost_usd"))),
        )

    def _error(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        message = _message(obj)
        found = _RETRY.fullmatch(message)
        notice = [_notice(_message(self._held))] if self._held is not None else []
        if found is None:
            self._held = {name: value for name, value in obj.items() if name != "type"}
            return notice
        self._held = None
        self._texts.again()
        self._last_retry = {"attempt": int(found.group(1)), "cause": said(found.group(2) or "the answer broke off")}
        return [*notice, Status(phase="retrying", info=self._last_retry)]

    def _failure(self, obj: dict[str, Any]) -> Error:
        """The end, by what a ``turn.failed`` or a last ``error`` line says."""
        message = said(_message(obj))
        reason = reason_of(message)
        details = {name: value for name, value in obj.items() if name not in {"type", "message", "error"}}
        details |= {"cli_message": message, "http_status": status_of(message), "last_retry": self._last_retry}
        known = {name: value for name, value in details.items() if value is not None}
        return Error(reason=reason, message=message_of(reason, message), details=known)


def _message(obj: dict[str, Any]) -> str:
    """What an error says; the older shape has it in ``error`` as well."""
    found = obj.get("message") or obj.get("error") or ""
    found = found.get("message", found) if isinstance(found, dict) else found
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _notice(text: str) -> Status:
    return Status(phase="diagnostic", info={"stderr": text})
