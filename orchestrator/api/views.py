"""Records as JSON.  Pure; ``responses`` describes the results."""

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from orchestrator.contract.adapter import BackendInfo
from orchestrator.contract.changes import ApplyResult, CommitInfo, FileChange
from orchestrator.contract.credentials import KeyInfo
from orchestrator.contract.gc import GcResult
from orchestrator.contract.runs import RunRecord, SubagentRecord
from orchestrator.contract.types import AuthStatus

_LIST_CHARS: Final = 1000


def dumps(value: object) -> bytes:
    """ASCII JSON: text that is not Unicode (lone surrogates from a path or an agent) stays as an escape.

    NaN and the infinities, which JSON does not have, become null.
    """
    try:
        return json.dumps(value, allow_nan=False, default=_plain, separators=(",", ":")).encode()
    except ValueError:
        return json.dumps(_finite(value), allow_nan=False, separators=(",", ":")).encode()


def _plain(value: object) -> dict[Any, Any]:
    """Records and read-only mappings as dicts."""
    if isinstance(value, Mapping):
        return dict(value)
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _finite(value: object) -> object:
    match value:
        case float() if not math.isfinite(value):
            return None
        case None | str() | int() | float():
            return value
        case list() | tuple():
            return [_finite(item) for item in value]
        case _:
            return {key: _finite(item) for key, item in _plain(value).items()}


def run_url(run_id: str) -> str:
    """Where the run is."""
    return f"/v1/runs/{run_id}"


def run_view(record: RunRecord) -> dict[str, Any]:
    """RunView."""
    view = _plain(record)
    url = run_url(record.run_id)
    view["links"] = {"self": url, "events": f"{url}/events", "cancel": f"{url}/cancel"}
    return view


def run_in_list(record: RunRecord) -> dict[str, Any]:
    """RunView, long texts cut: a page of runs stays small."""
    view = run_view(record)
    for name in ("query", "final_text"):
        text = view[name]
        if text is not None and len(text) > _LIST_CHARS:
            view[name] = text[:_LIST_CHARS] + "…"
    return view


def result_view(record: RunRecord) -> dict[str, Any]:
    """ResultView."""
    return {
        "final_text": record.final_text or "",
        "is_error": record.outcome != "completed",
        **_usage(record),
        "error": None if record.error is None else dict(record.error),
    }


def waited_view(record: RunRecord) -> dict[str, Any]:
    """WaitedRun."""
    return {"run": run_view(record), "envelope": record.envelope(), "result": result_view(record)}


def tool_view(record: RunRecord) -> dict[str, Any]:
    """ToolResultView."""
    names = (
        "run_id",
        "subagent_id",
        "backend",
        "state",
        "outcome",
        "cli_version",
        "error",
        "started_at",
        "finished_at",
    )
    return {
        "content": record.envelope(),
        "is_error": record.outcome != "completed",
        "metadata": {**{name: getattr(record, name) for name in names}, **_usage(record)},
    }


def _usage(record: RunRecord) -> dict[str, Any]:
    usage = record.usage
    return {
        "tokens": dict(usage.get("tokens") or {}),
        "cost_usd": usage.get("cost_usd"),
        "turns": usage.get("turns"),
    }


def subagent_view(record: SubagentRecord) -> dict[str, Any]:
    """SubagentView."""
    return _plain(record)


def session_map(records: list[SubagentRecord]) -> dict[str, Any]:
    """SessionMapView: the conversations whose CLI has told its session id."""
    names = ("backend", "backend_session_id", "created_at", "last_used_at")
    known = [record for record in records if record.backend_session_id is not None]
    sessions = {record.subagent_id: {name: getattr(record, name) for name in names} for record in known}
    return {"external_agent": {"session_map": sessions}}


def change_list(changes: list[FileChange]) -> dict[str, Any]:
    """ChangeList."""
    return {
        "changes": [_plain(change) for change in changes if not change.ignored],
        "ignored": [_plain(change) for change in changes if change.ignored],
    }


def apply_view(result: ApplyResult) -> dict[str, Any]:
    """ApplyView."""
    return _plain(result)


def gc_view(result: GcResult) -> dict[str, Any]:
    """GcView."""
    return _plain(result)


def commit_view(commit: CommitInfo) -> dict[str, Any]:
    """CommitView."""
    return _plain(commit)


def key_view(info: KeyInfo) -> dict[str, Any]:
    """KeyView."""
    return _plain(info)


def backend_view(info: BackendInfo) -> dict[str, Any]:
    """BackendView."""
    return _plain(info)


def probe_view(status: AuthStatus) -> dict[str, Any]:
    """ProbeView."""
    view: dict[str, Any] = {"installed": status.installed, "authenticated": status.authenticated}
    return view if status.error is None else {**view, "error": status.error}
