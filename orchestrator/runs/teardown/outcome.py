"""What a run ends with when it could not go on, and what is noted of it with its last event."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import Any, Final

from orchestrator.contract.runs import RunState
from orchestrator.errors import PodmentorError, StorageError
from orchestrator.events import Completed, Error, ErrorReason, TerminalEvent
from orchestrator.runs.clock import now
from orchestrator.runs.state import advance, outcome_of
from orchestrator.runs.stream.journal import clean, to_json

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_REASONS: Final[dict[str, ErrorReason]] = {
    "auth_required": "auth_required",
    "secret_unreadable": "auth_required",
    "vault_unavailable": "auth_required",
    "image_missing": "image_missing",
    "disk_exceeded": "disk_exceeded",
}


def failure(error: PodmentorError | OSError) -> Error:
    """What a run ends with that could not be started or followed."""
    if isinstance(error, PodmentorError):
        reason = _REASONS.get(error.code, "sandbox_failed")
        return Error(reason=reason, message=error.message, details={"code": error.code, **error.details})
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in _FULL:
        return Error(
            reason="disk_exceeded",
            message=f"The disk is full{where}: make room (podmentor gc), then run it again.",
            details={"code": StorageError.code},
        )
    return Error(
        reason="sandbox_failed", message=f"{error.strerror or error}{where}", details={"code": StorageError.code}
    )


def closing_columns(
    last: TerminalEvent, *, state: RunState, exit_code: int | None, measured: Mapping[str, Any]
) -> dict[str, object]:
    """The columns of the run; ``usage`` is what was ``measured`` and what the CLI tells."""
    usage = dict(measured)
    columns: dict[str, object] = {
        "state": advance(state, "ended"),
        "outcome": outcome_of(last),
        "finished_at": now(),
        "exit_code": exit_code,
    }
    match last:
        case Completed():
            usage |= {"tokens": last.tokens.to_dict(), "cost_usd": last.cost_usd, "turns": last.turns}
            columns |= {"final_text": clean(last.final_text), "error": None}
        case Error():
            usage |= {k: v for k, v in last.details.items() if k in {"tokens", "cost_usd", "turns"}}
            columns["error"] = to_json(last.data())
    columns["usage"] = to_json(usage)
    return columns
