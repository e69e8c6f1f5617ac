"""Every route of the API, in the order of the document."""

from orchestrator.api.routes import (
    accounts,
    backends,
    changes,
    events,
    health,
    keys,
    probe,
    repos,
    runs,
    subagents,
    tools,
)
from orchestrator.api.routing import Route

ROUTES: tuple[Route, ...] = (
    *runs.ROUTES,
    *events.ROUTES,
    *subagents.ROUTES,
    *changes.ROUTES,
    *backends.ROUTES,
    *repos.ROUTES,
    *keys.ROUTES,
    *accounts.ROUTES,
    *tools.ROUTES,
    *probe.ROUTES,
    *health.ROUTES,
)
