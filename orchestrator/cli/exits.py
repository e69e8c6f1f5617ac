"""Exit codes, in one place: they are part of the interface and stay as they are."""

from collections.abc import Mapping
from typing import Any

import click

from orchestrator.cli.ui.safe import clean
from orchestrator.errors import PodmentorError

OK = 0
FAILED = 1
USAGE = 2
UNAVAILABLE = 3
DENIED = 4
NOT_FOUND = 5
TIMED_OUT = 124
INTERRUPTED = 130

HELP = """\b
Exit codes:
    0  fine
    1  the run failed, or a check failed
    2  wrong usage or configuration
    3  the service or the sandbox is not available
    4  not allowed, or no (good) credential
    5  no such thing
  124  the run reached a time limit
  130  cancelled by Ctrl-C
"""

_BY_CODE: Mapping[str, int] = {
    "invalid_request": USAGE,
    "payload_too_large": USAGE,
    "invalid_config": USAGE,
    "unauthorized": DENIED,
    "forbidden": DENIED,
    "auth_required": DENIED,
    "secret_unreadable": DENIED,
    "vault_unavailable": UNAVAILABLE,
    "not_found": NOT_FOUND,
    "unknown_backend": NOT_FOUND,
    "queue_full": UNAVAILABLE,
    "sandbox_failed": UNAVAILABLE,
    "sandbox_busy": UNAVAILABLE,
    "sandbox_gone": UNAVAILABLE,
    "runtime_unavailable": UNAVAILABLE,
    "image_missing": UNAVAILABLE,
    "shutting_down": UNAVAILABLE,
    "storage_failed": UNAVAILABLE,
    "service_unavailable": UNAVAILABLE,
}

_BY_REASON: Mapping[str, int] = {
    "timeout": TIMED_OUT,
    "idle_timeout": TIMED_OUT,
    "start_timeout": TIMED_OUT,
    "auth_required": DENIED,
    "auth_rejected": DENIED,
    "image_missing": UNAVAILABLE,
    "sandbox_failed": UNAVAILABLE,
    "cli_not_installed": UNAVAILABLE,
}

_HINTS: Mapping[str, str] = {
    "runtime_unavailable": "podmentor doctor tells what is missing and how to mend it",
    "sandbox_failed": "podmentor doctor tells what is missing and how to mend it",
    "image_missing": "podmentor images build {backend} makes it",
    "auth_required": "podmentor auth explain {backend} shows where a key or login is looked for, and how to bring one",
    "auth_rejected": "podmentor auth explain {backend} shows which key or login is used",
    "unauthorized": "the token comes from $PODMENTOR_TOKEN with --url, else from the service's own token file",
    "invalid_config": "podmentor config check looks at the whole file",
    "unknown_backend": "podmentor backends lists the enabled ones",
    "queue_full": "try again when some runs have finished: podmentor runs list --state running",
}


class CliError(click.ClickException):
    """An error on its way to the user: one clear line, perhaps a hint, and the exit code."""

    def __init__(self, message: str, *, code: str, exit_code: int, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.exit_code = exit_code  # type: ignore[misc]  # click says the same of its own subclasses
        self.hint = hint

    def show(self, file: Any = None) -> None:
        """Write it to stderr (or ``file``)."""
        click.echo(f"error: {clean(self.message)} [{clean(self.code)}]", file=file, err=file is None)
        if self.hint:
            click.echo(f"hint: {self.hint}", file=file, err=file is None)


def shown(error: PodmentorError) -> CliError:
    """An error of ours as the user gets to see it."""
    hint = _hint(error.code, error.details.get("backend"))
    return CliError(error.message, code=error.code, exit_code=exit_of_code(error.code), hint=hint)


def exit_of_code(code: str) -> int:
    """The exit code for the ``code`` of an error."""
    return _BY_CODE.get(code, FAILED)


def exit_of_run(run: Mapping[str, Any]) -> int:
    """The exit code for a finished run."""
    if run.get("outcome") == "completed":
        return OK
    reason = (run.get("error") or {}).get("reason", "")
    return _BY_REASON.get(reason, FAILED)


def hint_of_run(run: Mapping[str, Any]) -> str | None:
    """What to do about a run that failed, where we know."""
    return _hint((run.get("error") or {}).get("reason", ""), run.get("backend"))


def _hint(code: str, backend: object) -> str | None:
    hint = _HINTS.get(code)
    return None if hint is None else hint.replace("{backend}", clean(str(backend or "BACKEND")))
