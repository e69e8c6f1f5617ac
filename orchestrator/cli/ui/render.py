"""A run's events as a transcript: fed one event at a time, prints as it goes, and never trusts a byte of them."""

import json
from collections.abc import Mapping
from typing import Any, Final

from rich.console import Console

from orchestrator.cli.ui.quantities import warning_words
from orchestrator.cli.ui.safe import clean, one_line

RESULT_LINES: Final = 8
_RESULT_WIDTH: Final = 200
_INPUT_WIDTH: Final = 120
_TELLING: Final = ("command", "file_path", "path", "pattern", "url", "query", "description", "prompt")
"""Members of a tool's input that say by themselves what it does."""

_THINKING: Final = "dim italic"
_QUIET: Final = "dim"
_WARNING: Final = "yellow"


class Transcript:
    """Prints events to ``console``.  ``feed`` them in order; ``close`` ends an unfinished line."""

    def __init__(self, console: Console, *, result_lines: int = RESULT_LINES) -> None:
        self._console = console
        self._result_lines = result_lines
        self._flow: tuple[str, ...] | None = None
        """What the open text belongs to: kind, parent, message."""
        self._column = 0
        """Not 0: the last line has no end yet."""
        self._depth: dict[str, int] = {}
        self._tool_names: dict[str, str] = {}
        self._last_tool: str | None = None
        self._answer_id: str | None = None
        self._answer: list[str] = []

    def feed(self, event: Mapping[str, Any]) -> None:
        """Print one event."""
        data: Mapping[str, Any] = event.get("data") or {}
        parent = event.get("parent_tool_call_id")
        depth = self._depth.get(parent, 1) if isinstance(parent, str) else 0
        match event.get("kind"):
            case "thinking":
                self._text(_str(data, "text"), ("thinking", str(parent)), depth, _THINKING)
            case "message_delta":
                self._message(data, parent, depth)
            case "tool_use":
                self._tool_use(data, depth)
            case "tool_result":
                self._tool_result(data, depth)
            case "completed":
                self._completed(data)
            case "error":
                self._error(data)
            case "status":
                self._status(data, depth)
            case "session_started":
                model = f", {one_line(_str(data, 'model'), 60)}" if data.get("model") else ""
                self._remark(f"session {one_line(_str(data, 'session_id'), 80)}{model}", depth)
            case kind:
                self._remark(f"{one_line(str(kind), 40)} {_compact(data)}", depth)

    @property
    def in_line(self) -> bool:
        """Whether the last line has no end yet."""
        return self._column > 0

    def close(self) -> None:
        """End the line that is open."""
        if self._column:
            self._put("\n")
        self._flow = None

    # --- text that flows -------------------------------------------------------------------------------------------

    def _message(self, data: Mapping[str, Any], parent: str | None, depth: int) -> None:
        text, message_id = _str(data, "text"), _str(data, "message_id")
        if parent is None:
            if message_id != self._answer_id:
                self._answer_id, self._answer = message_id, []
            self._answer.append(text)
        self._text(text, ("message", str(parent), message_id), depth, None)

    def _text(self, text: str, flow: tuple[str, ...], depth: int, style: str | None) -> None:
        if flow != self._flow:
            self.close()
            text = text.lstrip("\n")
            if not text:
                return
            self._flow = flow
        lines = clean(text).split("\n")
        for index, line in enumerate(lines):
            if index:
                self._put("\n")
            if line:
                if not self._column and depth:
                    self._put("│ " * depth, _QUIET)
                self._put(line, style)

    def _put(self, text: str, style: str | None = None) -> None:
        """The only place that prints: nothing is wrapped, cut, or read as markup."""
        self._console.out(text, end="", style=style, highlight=False)
        self._column = 0 if text.endswith("\n") else 1

    def _line(self, text: str, depth: int, style: str | None) -> None:
        self.close()
        if depth:
            self._put("│ " * depth, _QUIET)
        self._put(text, style)
        self._put("\n")

    def _remark(self, text: str, depth: int = 0, style: str = _QUIET) -> None:
        self._line(f"· {text}", depth, style)

    # --- tools -----------------------------------------------------------------------------------------------------

    def _tool_use(self, data: Mapping[str, Any], depth: int) -> None:
        call_id, name = _str(data, "tool_call_id"), one_line(_str(data, "name"), 60)
        self._depth[call_id] = depth + 1
        self._tool_names[call_id] = name
        self._last_tool = call_id
        self._line(f"● {name}  {short_input(data.get('input'))}".rstrip(), depth, "bold cyan")

    def _tool_result(self, data: Mapping[str, Any], depth: int) -> None:
        call_id, failed = _str(data, "tool_call_id"), data.get("is_error") is True
        style = "red" if failed else _QUIET
        lines = clean(_str(data, "content")).strip("\n").split("\n")
        shown = [_cut(line) for line in lines[: self._result_lines]] if lines != [""] else []
        if len(lines) > self._result_lines:
            shown.append(f"… {len(lines) - self._result_lines} more lines")
        if failed:
            shown.insert(0, "failed")
        elif not shown:
            shown = ["(nothing printed)"]
        if call_id != self._last_tool:  # another call began meanwhile: say whose result this is
            shown.insert(0, f"{self._tool_names.get(call_id, 'a tool')}:")
        for index, line in enumerate(shown):
            self._line(f"  {'└' if not index else ' '} {line}".rstrip(), depth, style)

    # --- the end, and what the orchestrator says -------------------------------------------------------------------

    def _completed(self, data: Mapping[str, Any]) -> None:
        self.close()
        final = clean(_str(data, "final_text")).strip()
        if final and final != clean("".join(self._answer)).strip():
            self._text(final, ("final",), 0, None)
        self.close()

    def _error(self, data: Mapping[str, Any]) -> None:
        reason = one_line(_str(data, "reason"), 40)
        message = clean(_str(data, "message")).strip()
        cancelled = reason == "cancelled"
        self._line(f"✗ {reason}: {message}", 0, _WARNING if cancelled else "bold red")

    def _status(self, data: Mapping[str, Any], depth: int) -> None:
        phase = one_line(_str(data, "phase"), 40)
        if phase == "heartbeat" or (phase == "queued" and data.get("position") == 0 and not data.get("waiting_for")):
            return  # nobody is ahead: nothing to wait for
        text, style = _status_words(phase, data)
        self._remark(text, depth, style)


_LACKING: Mapping[object, str] = {"home": "the account", "subagent": "the conversation"}


def _status_words(phase: str, data: Mapping[str, Any]) -> tuple[str, str]:
    match phase:
        case "queued":
            ahead = data.get("position")
            if (lacking := _LACKING.get(data.get("waiting_for"))) is not None:
                return f"waiting until {lacking} is free", _QUIET
            if not isinstance(ahead, int):
                return "waiting", _QUIET
            return f"waiting, {ahead} {'run' if ahead == 1 else 'runs'} ahead in the queue", _QUIET
        case "starting":
            return "starting the container", _QUIET
        case "running":
            return "running", _QUIET
        case "retrying":
            return _retry_words(data), _WARNING
        case "egress_denied":
            host, port = one_line(str(data.get("host", "?")), 200), one_line(str(data.get("port", "?")), 8)
            times = f" ({count} times)" if isinstance(count := data.get("count"), int) and count > 1 else ""
            reason = f": {one_line(str(data['reason']), _INPUT_WIDTH)}" if data.get("reason") else ""
            return f"the agent was kept from reaching {host}:{port}{times}{reason}", _WARNING
        case "egress_allowed":
            port = one_line(str(data.get("port") or "443 or 80"), 12)
            return f"the run may reach {one_line(str(data.get('host', '?')), 200)} at port {port} now", _QUIET
        case "diagnostic":
            return f"stderr: {one_line(str(data.get('stderr', '')), _RESULT_WIDTH)}", _QUIET
        case "unparsed":
            line = data.get("raw") or data.get("line") or ""
            return f"a line that was not understood: {one_line(str(line), _INPUT_WIDTH)}", _QUIET
        case _:
            words = warning_words(data) if phase == "limit_warning" else None
            style = _WARNING if phase in {"limit_warning", "mcp_unavailable", "output_lost"} else _QUIET
            return words or f"{phase.replace('_', ' ')} {_compact(data)}".rstrip(), style


def _retry_words(data: Mapping[str, Any]) -> str:
    text = "the provider is asked again"
    if isinstance(attempt := data.get("attempt"), int):
        text += f" (attempt {attempt})"
    if isinstance(delay := data.get("delay_ms"), int | float):
        text += f" in {delay / 1000:.1f} s"
    return f"{text}: {one_line(str(data['cause']), _INPUT_WIDTH)}" if data.get("cause") else text


def short_input(value: Any) -> str:
    """What a tool was asked to do, on one line."""
    if isinstance(value, Mapping):
        for name in _TELLING:
            if isinstance(found := value.get(name), str) and found.strip():
                return one_line(found, _INPUT_WIDTH)
        if not value:
            return ""
    return one_line(json.dumps(value, ensure_ascii=False, default=str), _INPUT_WIDTH)


def _compact(data: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in data.items() if key != "phase"}
    return one_line(json.dumps(rest, ensure_ascii=False, default=str), _INPUT_WIDTH) if rest else ""


def _cut(line: str) -> str:
    return line if len(line) <= _RESULT_WIDTH else line[: _RESULT_WIDTH - 1] + "…"


def _str(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return value if isinstance(value, str) else "" if value is None else str(value)
