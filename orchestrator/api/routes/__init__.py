"""Every route of the API, in the order of the document."""

from orchestrator.api.routes import backends, changes, events, health, runs, subagents, tools
from orchestrator.api.routing import Route

ROUTES: tuple[Route, ...] = (
    *runs.ROUTES, *events.ROUTES, *subagents.ROUTES, *changes.ROUTES, *backends.ROUTES, *tools.ROUTES, *health.ROUTES,
)  # fmt: skip
