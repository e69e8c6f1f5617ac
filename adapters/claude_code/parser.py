"""From what Claude Code prints (``--output-format stream-json``) to events.

With partial messages each text comes twice: as deltas in ``stream_event`` lines, then whole in an ``assistant`` line
of the same message id.  ``Message`` remembers what has been streamed so that it becomes events once; without deltas the
whole block does.  Older releases print the same objects with fewer members, some without the ``stream_event`` wrapper.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from adapters.claude_code.blocks import Message, content_blocks, result_text
from adapters.claude_code.failures import Failure, message_of, reason_of
from adapters.claude_code.outcome import Usage, denials, read_result
from orchestrator.adapterkit.failures import end_missing, last_words, not_in_image, without_end
from orchestrator.adapterkit.kept_text import KeptText
from orchestrator.adapterkit.members import as_number, as_text, text_or_none
from orchestrator.adapterkit.parsing import UNREADABLE, JsonLinesParser, mcp_unavailable
from orchestrator.events import (
    AgentEvent,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    ToolResult,
    ToolUse,
)

TEXT_KEEP = 256 * 1024
"""Characters of the newest message, for a run whose ``result`` line is missing or has no text."""

BlockReader: TypeAlias = Callable[[dict[str, Any]], Sequence[AgentEvent]]
QUIET_TYPES = frozenset(
    {
        "control_response",
        "control_cancel_request",
        "keep_alive",
        "tool_progress",
        "tool_use_summary",
        "prompt_suggestion",
        "transcript_mirror",
        "attachment",
        "tombstone",
    }
)
"""Lines that say nothing about the run that another line does not say."""
QUIET_SYSTEM = frozenset(
    {
        "status",
        "thinking",
        "thinking_tokens",
        "session_state_changed",
        "turn_starting",
        "turn_duration",
        "task_started",
        "task_progress",
        "task_updated",
        "task_notification",
        "task_summary",
        "background_tasks",
        "hook_started",
        "hook_progress",
        "hook_response",
        "stop_hook_summary",
        "permission_denied",
        "compact_boundary",
        "commands_changed",
        "file_snapshot",
        "files_persisted",
        "memory_recall",
        "memory_saved",
        "plugin_install",
        "elicitation_complete",
        "post_turn_summary",
        "worker_shutting_down",
    }
)
STREAM_TYPES = frozenset(
    {
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
        "ping",
        "error",
    }
)
QUIET_DELTAS = frozenset({"signature_delta", "input_json_delta", "citations_delta", "compaction_delta"})
QUIET_BLOCKS = frozenset({"redacted_thinking", "image", "document", "fallback", "compaction"})


class ClaudeCodeParser(JsonLinesParser):
    """One run."""

    def __init__(self) -> None:
        super().__init__()
        self._session_id: str | None = None
        self._messages: dict[str | None, Message] = {}
        """The message being streamed, per speaker: None is the agent, else the tool call whose sub-agent speaks."""
        self._calls: set[str] = set()
        self._last_text = KeptText(TEXT_KEEP)
        self._answered = False
        """The agent's last act was text, not a tool call."""
        self._failure: Failure | None = None
        self._last_retry: dict[str, Any] | None = None
        self._usage = Usage()

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        """Events of one line."""
        kind = obj["type"]
        if kind == "stream_event":
            return self._stream(obj["event"], obj.get("parent_tool_use_id"))
        if kind in STREAM_TYPES and kind != "error":  # an error that is no part of a stream must be seen
            return self._stream(obj, obj.get("parent_tool_use_id"))
        if kind == "assistant":
            return self._assistant(obj)
        if kind == "user":
            return self._user(obj)
        if kind == "system":
            return self._system(obj)
        if kind == "result":
            end = read_result(obj, usage=self._usage, last_text=self._last_text.join(), failure=self._failure)
            return [*denials(obj), end]
        if kind == "rate_limit_event":
            return _limit_warning(obj["rate_limit_info"])
        return () if kind in QUIET_TYPES else [self._unknown(obj)]

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        """No ``result`` line came: killed, never started, or an output that lacks its end."""
        details: dict[str, Any] = {"exit_code": exit_code, "stderr": stderr_tail}
        if exit_code == 0 and self._answered and self._failure is None:
            return [end_missing("Claude Code", self._last_text.join(), details)]
        if self._last_retry is not None:
            details["last_retry"] = self._last_retry
        if self._failure is not None:
            reason = reason_of(self._failure)
            return [Error(reason=reason, message=message_of(reason, self._failure), details=details)]
        if self._session_id is None and exit_code in {126, 127}:
            return [not_in_image("Claude Code", details)]
        # Before a session has begun stderr tells why; later it may hold anything, also what tools printed.
        said = Failure(text=stderr_tail if self._session_id is None else "")
        reason = reason_of(said)
        if reason != "cli_failed":
            return [Error(reason=reason, message=message_of(reason, said), details=details)]
        message = without_end("Claude Code", exit_code, last_words(stderr_tail))
        return [Error(reason="cli_failed", message=message, details=details)]

    # --- partial messages ---------------------------------------------------------------------------------------

    def _stream(self, event: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        kind = event["type"]
        if kind == "message_start":
            message_id = as_text(event["message"]["id"])
            self._messages[parent] = Message(message_id)
            self._usage.count(message_id, event["message"].get("usage"))
        elif kind == "content_block_start":
            self._message(parent).begin(event["index"], event["content_block"]["type"])
        elif kind == "content_block_delta":
            return self._delta(event["index"], event["delta"], parent)
        elif kind == "message_delta":
            self._usage.count(self._message(parent).id, event.get("usage"))
        elif kind not in STREAM_TYPES:
            return [self._unknown(event)]
        return ()

    def _delta(self, index: int, delta: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        kind = delta["type"]
        if kind in QUIET_DELTAS:
            return ()
        if kind not in {"text_delta", "thinking_delta"}:
            return [self._unknown(delta)]
        message = self._message(parent)
        name = "text" if kind == "text_delta" else "thinking"
        text = as_text(delta[name])
        message.streamed(index, name, text)
        return self._say(text, message.id, parent) if name == "text" else _think(text, parent)

    # --- whole messages -----------------------------------------------------------------------------------------

    def _assistant(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        parent = obj.get("parent_tool_use_id")
        body = obj["message"]
        blocks = content_blocks(body["content"])
        if obj.get("error"):
            # Made up by the CLI to show what went wrong; the result line repeats it, and the error event has it.
            text = "\n".join(as_text(block["text"]) for block in blocks if block["type"] == "text")
            self._failure = Failure(text=text, kind=as_text(obj["error"]))
            return ()
        message_id = as_text(body.get("id") or f"line-{self._line_no}")
        message = self._messages.get(parent)
        if message is None or message.id != message_id:
            message = self._messages[parent] = Message(message_id)
            self._usage.count(message_id, body.get("usage"))
        return self._each(blocks, lambda block: self._block(block, message, parent))

    def _block(self, block: dict[str, Any], message: Message, parent: str | None) -> Sequence[AgentEvent]:
        kind = block["type"]
        if kind == "text":
            return self._say(message.rest_of(kind, as_text(block["text"])), message.id, parent)
        if kind == "thinking":
            return _think(message.rest_of(kind, as_text(block["thinking"])), parent)
        if kind in {"tool_use", "server_tool_use", "mcp_tool_use"}:
            return self._tool_use(block, parent)
        if kind.endswith("tool_result"):
            return [_tool_result(block, parent)]
        return () if kind in QUIET_BLOCKS else [self._unknown(block)]

    def _tool_use(self, block: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        call_id, name, arguments = as_text(block["id"]), as_text(block["name"]), block["input"]
        if not isinstance(arguments, dict):
            raise TypeError("a tool's input is an object")
        if call_id in self._calls:
            return ()
        self._calls.add(call_id)
        if parent is None:
            self._answered = False
        return [ToolUse(tool_call_id=call_id, name=name, input=arguments, parent_tool_call_id=parent)]

    def _user(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        parent = obj.get("parent_tool_use_id")
        return self._each(content_blocks(obj["message"]["content"]), lambda block: self._said_by_user(block, parent))

    def _said_by_user(self, block: dict[str, Any], parent: str | None) -> Sequence[AgentEvent]:
        """Tool results; what else is said in the user's name (the prompt again, "[Request interrupted…") is known."""
        kind = block["type"]
        if kind.endswith("tool_result"):
            return [_tool_result(block, parent)]
        return () if kind == "text" or kind in QUIET_BLOCKS else [self._unknown(block)]

    def _each(self, blocks: list[dict[str, Any]], read: BlockReader) -> list[AgentEvent]:
        """Block by block: one that is not understood does not hide the others of its message."""
        events: list[AgentEvent] = []
        for block in blocks:
            try:
                events += read(block)
            except UNREADABLE:
                events.append(self._unknown(block))
        return events

    # --- the rest -----------------------------------------------------------------------------------------------

    def _system(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        if "subtype" not in obj and self._session_id is not None:
            return [self._unknown(obj)]
        subtype = obj.get("subtype", "init")
        if subtype == "init":
            return self._init(obj)
        if subtype == "api_retry":
            status, cause = obj.get("error_status"), obj.get("error") or "unknown"
            retry = {
                "attempt": as_number(obj["attempt"]),
                "delay_ms": as_number(obj["retry_delay_ms"]),
                "cause": f"{cause} (HTTP {status})" if status else f"{cause} (no answer)",
            }
            self._last_retry = retry
            return [Status(phase="retrying", info=retry)]
        if subtype == "informational":
            return [Status(phase="diagnostic", info={"stderr": as_text(obj["content"])})]
        return () if subtype in QUIET_SYSTEM else [self._unknown(obj)]

    def _init(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        session_id = as_text(obj["session_id"])
        if self._session_id is not None:
            return ()
        tools, servers = obj.get("tools"), obj.get("mcp_servers")
        if not isinstance(servers, list) or not all(isinstance(server, dict) for server in servers):
            servers = None
        events: list[AgentEvent] = [
            SessionStarted(
                session_id=session_id,
                model=text_or_none(obj.get("model")),
                cli_version=text_or_none(obj.get("claude_code_version")),
                tools=[as_text(tool) for tool in tools] if isinstance(tools, list) else None,
                mcp_servers=servers,
            )
        ]
        events += [
            mcp_unavailable(server["name"], server["status"])
            for server in servers or ()
            if server.get("status") in {"failed", "needs-auth"} and isinstance(server.get("name"), str)
        ]
        self._session_id = session_id
        return events

    def _say(self, text: str, message_id: str, parent: str | None) -> Sequence[AgentEvent]:
        if not text:
            return ()
        if parent is None:
            self._answered = True
            self._last_text.add(message_id, text)
        return [MessageDelta(text=text, message_id=message_id, parent_tool_call_id=parent)]

    def _message(self, parent: str | None) -> Message:
        """The message being streamed; one whose beginning was lost gets a name of its own."""
        return self._messages.setdefault(parent, Message(f"line-{self._line_no}"))

    def _unknown(self, obj: dict[str, Any]) -> Status:
        return self._unparsed(json.dumps(obj, ensure_ascii=False))


def _think(text: str, parent: str | None) -> Sequence[AgentEvent]:
    return [Thinking(text=text, parent_tool_call_id=parent)] if text else ()


def _tool_result(block: dict[str, Any], parent: str | None) -> ToolResult:
    return ToolResult(
        tool_call_id=as_text(block["tool_use_id"]),
        content=result_text(block.get("content")),
        is_error=block.get("is_error") is True,
        parent_tool_call_id=parent,
    )


def _limit_warning(info: dict[str, Any]) -> Sequence[AgentEvent]:
    """Comes with a subscription; says most of the time that all is well."""
    state = as_text(info["status"])
    if state == "allowed" and not info.get("isUsingOverage"):
        return ()
    known = {
        "state": state,
        "limit": info.get("rateLimitType"),
        "resets_at": info.get("resetsAt"),
        "utilization": info.get("utilization"),
        "overage": info.get("isUsingOverage"),
    }
    return [Status(phase="limit_warning", info={name: value for name, value in known.items() if value is not None})]
