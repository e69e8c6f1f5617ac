"""The check of a backend's login."""

from typing import Any

from orchestrator.api.models.base import Answer, PlainName, Query
from orchestrator.contract.types import AuthStatus


class ProbeQuery(Query):
    """Which backend to ask."""

    backend: PlainName


class ProbeView(Answer):
    """Whether a backend's CLI is there and has something to log in with."""

    installed: bool
    authenticated: bool
    error: str | None = None
    """Why not; left out when all is well.  Never a secret."""


def probe_view(status: AuthStatus) -> dict[str, Any]:
    """ProbeView."""
    view: dict[str, Any] = {"installed": status.installed, "authenticated": status.authenticated}
    return view if status.error is None else {**view, "error": status.error}
