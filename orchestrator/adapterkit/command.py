"""What adapters that start a CLI repeat: session ids that are safe on a command line, and probes that did not run."""

from __future__ import annotations

from uuid import UUID

from orchestrator.contract.types import AuthStatus
from orchestrator.errors import InvalidRequestError

OUTPUT_TAIL = 300
"""Characters of a probe's output in its error."""


def uuid_session(session_id: str, *, backend: str, what: str) -> str:
    """``session_id`` if it is a UUID, in any case of letters.

    A CLI takes other words for a title, a place in a list or an option, and some begin a new session silently.
    ``what``: what the id should be, for people.  Raises InvalidRequestError.
    """
    try:
        if str(UUID(session_id)) == session_id.lower():
            return session_id
    except ValueError:
        pass
    raise InvalidRequestError(f"the session id is not {what} (a UUID)", backend=backend)


def no_command(prompt: str) -> str:
    """The prompt with a newline before it when it begins with a slash.

    Claude Code and Gemini CLI take such a word for a command: for one of their own, so that the model is never asked,
    or for one that the repo defines (``.claude/commands``, ``.gemini/commands``), which puts its text in place of the
    prompt.  Both look at the very first character only.
    """
    return f"\n{prompt}" if prompt.startswith("/") else prompt


def output_tail(text: str) -> str:
    """The end of what a command printed, for an error."""
    return text.strip()[-OUTPUT_TAIL:] or "no output"


def cannot_be_run(binary: str, stderr: str) -> AuthStatus:
    """What a probe with exit code 126 or 127 says."""
    error = f"{binary} cannot be run: {output_tail(stderr)}"
    return AuthStatus(installed=False, authenticated=False, error=error)
