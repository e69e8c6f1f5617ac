"""What to do about a failed run that used a subscription.

An adapter's parser does not know what the CLI logged in with, and its advice is about keys; here it is known.
"""

from __future__ import annotations

from dataclasses import replace

from orchestrator.contract.accounts import HomeKey, SubscriptionHomes
from orchestrator.errors import PodmentorError
from orchestrator.events import Error, ErrorReason

LOCAL_USER = "local"


def login_command(key: HomeKey) -> str:
    """What to type to log in (again), on the machine where podmentor runs."""
    return f"podmentor login {key.backend}" + ("" if key.user_id == LOCAL_USER else f" --user {key.user_id}")


async def advised(error: Error, key: HomeKey, run_id: str, homes: SubscriptionHomes) -> Error:
    """The error of a run, with advice when it has really used the account; never fails."""
    try:
        used = run_id in await homes.leases()
    except (PodmentorError, OSError):
        return error
    return about_subscription(error, key) if used else error


def about_subscription(error: Error, key: HomeKey) -> Error:
    """The error with what to do about the account, when that is what it is about."""
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
        details={**error.details, "link": "byo_subscription"},
    )
