"""Why a run failed, from what the CLI says about it; a pure table with tests of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass

from orchestrator.adapterkit.failures import ADVICE, with_words
from orchestrator.events import ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is known of a failure.

    ``text``: the CLI's own words.  ``kind``: the ``error`` member of its last ``assistant`` line.  ``status``: the
    provider's HTTP status.  ``ending``: ``terminal_reason`` or ``subtype`` of its ``result`` line.
    """

    text: str
    kind: str | None = None
    status: int | None = None
    ending: str | None = None


_STATUS = re.compile(r"API Error:? (?:Request rejected \()?(\d{3})\b")
_RESUME = re.compile(r"no conversation found|--resume requires|is not a (valid )?uuid", re.IGNORECASE)
_LOGGED_OUT = re.compile(r"not logged in|no api key|run /login|claude auth login|setup-token", re.IGNORECASE)
_REFUSED = re.compile(
    r"invalid (api key|x-api-key|bearer token)|oauth token (has )?(expired|been revoked|revoked)"
    r"|failed to authenticate|organization has been disabled",
    re.IGNORECASE,
)
_CREDIT = re.compile(r"credit balance|out of (extra usage|credits)|monthly spend limit", re.IGNORECASE)
_LIMIT = re.compile(r"usage limit|rate.?limit|hit your (\S+ )?limit|too many requests", re.IGNORECASE)
_PROVIDER = re.compile(
    r"overloaded|connection (error|closed|refused|reset)|socket|stream (idle|ended|was cut|closed)"
    r"|timed? ?out|unable to connect|fetch failed|ECONN|ENOTFOUND|EAI_AGAIN|network|server_error|terminated"
    r"|internal server error|mid-response",
    re.IGNORECASE,
)


def reason_of(failure: Failure) -> ErrorReason:
    """The reason, most telling sign first: the CLI gives a refused key and a missing one the same ``kind``."""
    text, kind, status = failure.text, failure.kind, failure.status
    if status is None and (shown := _STATUS.search(text)):
        status = int(shown.group(1))
    if _RESUME.search(text):
        return "resume_failed"
    if kind == "billing_error" or status == 402 or _CREDIT.search(text):
        return "credit_exhausted"
    if status in {401, 403} or _REFUSED.search(text):
        return "auth_rejected"
    if _LOGGED_OUT.search(text):
        return "auth_required"
    if kind in {"authentication_failed", "oauth_org_not_allowed"}:
        return "auth_rejected"
    if status == 429 or kind == "rate_limit" or (status is None and _LIMIT.search(text)):
        return "rate_limited"
    if (status or 0) >= 500 or kind in {"server_error", "overloaded"}:
        return "provider_unavailable"
    # Without a status the provider never answered, or its answer broke off: "API Error: " is how the CLI begins then.
    if status is None and kind != "max_output_tokens" and text.startswith("API Error") and _PROVIDER.search(text):
        return "provider_unavailable"
    return "cli_failed"


_ENDINGS = {
    "max_turns": "The agent reached its limit of turns. Split the task, or raise the limit.",
    "error_max_turns": "The agent reached its limit of turns. Split the task, or raise the limit.",
    "error_max_budget_usd": "The agent reached its budget. Split the task, or raise the budget.",
    "aborted_streaming": "The agent was interrupted before it had finished.",
    "aborted_tools": "The agent was interrupted while a tool was running.",
    "prompt_too_long": "The conversation is too long for the model. Start a new one.",
}
_KINDS = {
    "max_output_tokens": "The answer was longer than the model may write. Ask for less at once.",
    "model_not_found": "The model does not exist or this account may not use it. Choose another one.",
}


def message_of(reason: ErrorReason, failure: Failure) -> str:
    """A sentence for a person: what happened, what to do, and the CLI's own words."""
    advice = (
        ADVICE.get(reason)
        or _ENDINGS.get(failure.ending or "")
        or _KINDS.get(failure.kind or "")
        or "Claude Code could not finish the run."
    )
    # What the CLI prints for its own developers helps nobody.
    words = "" if failure.text.lstrip().startswith("[ede_diagnostic]") else failure.text
    return with_words(advice, "Claude Code", words)
