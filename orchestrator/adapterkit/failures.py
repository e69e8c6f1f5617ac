"""How a run that failed is reported: what a person should do, and the errors that are the same for every CLI.

Which reason it is, each adapter finds out from its CLI's own words (``adapters/<name>/failures.py``).
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, Final

from orchestrator.events import AgentEvent, Completed, Error, ErrorReason

ADVICE: Final[Mapping[ErrorReason, str]] = {
    "resume_failed": "The conversation cannot be continued: the CLI's own record of it is gone. Start a new one.",
    "credit_exhausted": "The account behind this key has no credit left. Top it up, or use another key.",
    "auth_rejected": "The provider refused the key or login. Check the one that is configured for this backend.",
    "auth_required": "There is nothing to log in with. Set a key for this backend, or log in with a subscription.",
    "rate_limited": "The provider's rate limit is reached. Wait and run it again, or use an account with a higher one.",
    "provider_unavailable": "The provider could not answer, or its answer broke off. Run it again in a while.",
}
"""For the reasons that mean the same whatever the CLI: what has happened, and what to do."""

TEXT_IN_DETAILS = 20_000
"""Characters of an unfinished answer that go with its error."""
WORDS_MAX = 500
"""Characters of a CLI's own words in a message."""
LAST_WORDS_MAX = 300
"""Characters of the last line of stderr in a message."""


def with_words(advice: str, cli: str, words: str) -> str:
    """``advice``, and behind it what the CLI itself said, on one line."""
    said = " ".join(words.split())
    return f"{advice} {cli} said: {said[:WORDS_MAX]}" if said else advice


def last_words(stderr: str) -> str:
    """The last line of stderr that is not empty."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    return lines[-1][:LAST_WORDS_MAX] if lines else ""


def without_end(
    cli: str, exit_code: int | None, words: str, *, lacks: str = "a result", signals: Container[int] | None = None
) -> str:
    """The message for a CLI that ended without saying how.

    ``words``: the last ones on stderr.  ``signals``: the exit codes that mean 128 + a signal, for a CLI that uses
    others of that range itself; None: all above 128.
    """
    if exit_code is None:
        how = "ended"
    elif exit_code > 128 if signals is None else exit_code in signals:
        how = f"was ended by signal {exit_code - 128}"
    else:
        how = f"ended with exit code {exit_code}"
    return f"{cli} {how} without {lacks}." + (f" Its last words on stderr: {words}" if words else "")


def not_in_image(cli: str, details: dict[str, Any]) -> Error:
    """The end of a run whose CLI could not be started (exit codes 126 and 127, and no output)."""
    message = f"{cli} cannot be started: it is not in the image. Build the image of this backend again."
    return Error(reason="cli_not_installed", message=message, details=details)


def end_missing(cli: str, text: str, details: Mapping[str, Any]) -> Error:
    """The end of a run whose CLI spoke, exited with 0, and never said that this was its answer.

    Its output has lost its end (a full disk, say), or something inside the sandbox has ended it.  The text may be whole
    or stop in the middle of a sentence, and nothing shows which: to call half an answer an answer would be worse than
    to call a whole one a failure, since of the failure nothing is lost.  ``text`` goes with it, its end if it is long.
    """
    message = (
        f"{cli} ended as if all were well, but without a result: its answer may lack its end. What it said until then"
        " is in the events. Continue the conversation, or run it again."
    )
    return Error(reason="cli_failed", message=message, details={**details, "text": text[-TEXT_IN_DETAILS:]})


def bytes_lost(event: AgentEvent, lines: int) -> AgentEvent:
    """The event of a run in which so many ``lines`` of the CLI had NUL bytes in the place of others.

    A good end becomes an error, since nothing shows what those lines said: text, a tool's result, a refusal.
    """
    if not isinstance(event, Completed):
        return event
    message = (
        f"{lines} line(s) of the CLI's output were damaged: NUL bytes stand where others were, so the answer may lack"
        " text. All that could be read is in the events. Run it again; should it happen again, look at the disk."
    )
    details = {"damaged_lines": lines, "tokens": event.tokens.to_dict(), "text": event.final_text[-TEXT_IN_DETAILS:]}
    return Error(reason="cli_failed", message=message, details=details)
