"""What a run ends with: the error of one that could not go on, with advice, and the columns that go with the end."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.runs import RunState
from orchestrator.errors import PodmentorError, StorageError
from orchestrator.events import Completed, Error, ErrorReason, TerminalEvent
from orchestrator.runs.state import advance, outcome_of
from orchestrator.runs.storage.database import clean, to_json
from orchestrator.system.times import now

LOCAL_USER: Final = "local"
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
    """The columns of the run; ``usage`` is what was ``measured`` and what the CLI reports."""
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


def login_command(key: HomeKey) -> str:
    """What to type to log in (again), on the machine where podmentor runs."""
    return f"podmentor login {key.backend}" + ("" if key.user_id == LOCAL_USER else f" --user {key.user_id}")


def about_subscription(error: Error, key: HomeKey) -> Error:
    """The error of a run that used a subscription, with what to do about the account when that is what it is about.

    The adapter's parser does not know what the CLI logged in with, and its advice is about keys.
    """
    advice: dict[ErrorReason, str] = {
        "auth_required": f"The connected account has no login any more. Log in again: {login_command(key)}",
        "auth_rejected": "The provider refused the connected account's login, or it has expired and could not be "
        f"renewed from inside the sandbox. Log in again: {login_command(key)}",
        "credit_exhausted": "The connected account has nothing left to use. Wait until its allowance is renewed or "
        "extend it with the provider, or use a key for this backend.",
        "rate_limited": "The connected account has reached a limit of its plan. Wait until it is renewed, or use a key "
        "for this backend.",
    }
    if error.reason not in advice:
        return error
    said = error.details.get("cli_message") or error.message
    return replace(
        error,
        message=f"{advice[error.reason]}  (The CLI said: {' '.join(str(said).split())[:500]})",
        details={**error.details, "source": "byo_subscription"},
    )
