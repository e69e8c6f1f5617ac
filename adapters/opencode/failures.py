"""Why a run failed, from what the CLI says about it; a pure table with tests of its own."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orchestrator.adapterkit.failures import ADVICE, with_words
from orchestrator.events import ErrorReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """What is known of a failure.

    ``text``: the CLI's own words.  ``name``: its class of error.  ``status``: the provider's HTTP status.  ``body``:
    the provider's answer.  ``retries`` and ``retry_after_ms``: of a provider that was given up.
    """

    text: str
    name: str | None = None
    status: int | None = None
    body: str = ""
    retries: int | None = None
    retry_after_ms: int | None = None

    def details(self) -> dict[str, Any]:
        """What of it goes with the error event."""
        known = {
            "kind": self.name,
            "http_status": self.status,
            "cli_message": self.text,
            "retries": self.retries,
            "retry_after_ms": self.retry_after_ms,
        }
        return {name: value for name, value in known.items() if value is not None}


TOO_LONG = "MessageOutputLengthError"
ABORTED = "MessageAbortedError"

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RESUME = re.compile(r"session not found", re.IGNORECASE)
_CREDIT = re.compile(
    r"insufficient.?quota|exceeded your current quota|credit balance|insufficient (credits|balance)"
    r"|payment required|billing",
    re.IGNORECASE,
)
_REFUSED = re.compile(
    r"(incorrect|invalid|expired|revoked) (api key|token|credentials)|unauthorized"
    r"|token refresh failed: 4",
    re.IGNORECASE,
)
_MISSING = re.compile(r"api key is missing|no api key|not logged in|missing credentials", re.IGNORECASE)
_CONFIG = re.compile(r"(?:Config file at|Configuration is invalid at) (\S+)")
"""What OpenCode says of a configuration file that it cannot read or does not take."""
_SHUT_IN = re.compile(r"podmentor: \S+ denied")
"""The egress proxy's words: the refusal is not the provider's."""
_LIMIT = re.compile(r"rate.?limit|too many requests|usage limit", re.IGNORECASE)
_PROVIDER = re.compile(
    r"overloaded|unavailable|connection|socket|network|fetch failed|unable to connect|timed? ?out|terminated"
    r"|server.?error|ECONN|ENOTFOUND|EAI_AGAIN|upstream|at capacity|token refresh failed",
    re.IGNORECASE,
)


def plain(text: str) -> str:
    """``text`` without colours."""
    return _ANSI.sub("", text)


def words(text: str) -> str:
    """The provider's words alone, where OpenCode passes on the whole object of an error."""
    try:
        message = json.loads(text)["message"] if text.startswith("{") else text
    except (ValueError, KeyError, RecursionError):
        return text
    return message if isinstance(message, str) else text


def names_config(text: str) -> bool:
    """Whether OpenCode refuses a configuration file."""
    return _CONFIG.search(text) is not None


def reason_of(failure: Failure) -> ErrorReason:
    """The reason, most telling sign first: a used-up quota comes with the status of a rate limit."""
    text, status = failure.text, failure.status
    if _RESUME.search(text):
        return "resume_failed"
    if _SHUT_IN.search(text):
        return "provider_unavailable"
    if names_config(text):
        return "cli_failed"
    if status == 402 or _CREDIT.search(text) or _CREDIT.search(failure.body):
        return "credit_exhausted"
    if _MISSING.search(text):
        return "auth_required"
    if status in {401, 403} or failure.name == "ProviderAuthError" or (status is None and _REFUSED.search(text)):
        return "auth_rejected"
    if status == 429 or (status is None and _LIMIT.search(text)):
        return "rate_limited"
    if (status or 0) >= 500 or (status is None and failure.name != TOO_LONG and _PROVIDER.search(text)):
        return "provider_unavailable"
    return "cli_failed"


_NAMES = {
    TOO_LONG: "The answer was longer than the model may write. Ask for less at once.",
    ABORTED: "The agent was interrupted before it had finished.",
    "ContextOverflowError": "The conversation is too long for the model. Start a new one.",
    "ProviderModelNotFoundError": "The model does not exist. Choose another one.",
}


def message_of(reason: ErrorReason, failure: Failure) -> str:
    """A sentence for a person: what happened, what to do, and the CLI's own words."""
    advice = ADVICE.get(reason) or _NAMES.get(failure.name or "")
    if found := _CONFIG.search(failure.text):
        advice = f"OpenCode does not take the repository's configuration file {found[1]}: correct it, or remove it."
    if _SHUT_IN.search(failure.text):
        advice = "The run may not reach its provider: put the provider's host into allowed_egress, or leave that out."
    if advice is None and failure.status == 404:
        advice = "The provider does not know the model, or its base URL is wrong. Check model and base_url."
    return with_words(advice or "OpenCode could not finish the run.", "OpenCode", words(plain(failure.text)))
