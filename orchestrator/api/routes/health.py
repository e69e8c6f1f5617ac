"""Whether the service lives, whether it can work, and what it can be asked."""

from typing import Final, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict

from orchestrator.api import context
from orchestrator.api.answers import json_answer
from orchestrator.api.models.base import Answer
from orchestrator.api.routing import Reply, Route

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


class Health(Answer):
    """The process answers."""

    status: Literal["ok"]
    instance: str
    """Tells services on one machine apart."""
    version: str
    embedded: bool
    """The service is inside a command (``podmentor run``, for example) and ends with it."""


class Readiness(BaseModel):
    """Whether runs can be taken, and what stands in the way."""

    model_config = ConfigDict(extra="allow")

    ready: bool


async def get_health(request: web.Request) -> web.StreamResponse:
    """GET /healthz."""
    about = request.app[context.ABOUT]
    return json_answer(
        {"status": "ok", "instance": about.instance, "version": about.version, "embedded": about.embedded}
    )


async def get_readiness(request: web.Request) -> web.StreamResponse:
    """GET /readyz."""
    state = request.app[context.RUNS].readiness()
    return json_answer(state, status=200 if state.get("ready") else 503)


async def get_metrics(request: web.Request) -> web.StreamResponse:
    """GET /metrics."""
    page = await request.app[context.METRICS].page()
    return web.Response(body=page, headers={"Content-Type": METRICS_TYPE})


async def get_spec(request: web.Request) -> web.StreamResponse:
    """GET /openapi.json."""
    return web.Response(body=request.app[context.SPEC], content_type="application/json")


ROUTES: Final = (
    Route(
        method="GET",
        path="/healthz",
        handler=get_health,
        tag="service",
        summary="The process answers",
        public=True,
        replies=(Reply(description="It does.", model=Health),),
    ),
    Route(
        method="GET",
        path="/readyz",
        handler=get_readiness,
        tag="service",
        summary="Runs can be taken",
        public=True,
        replies=(
            Reply(description="They can.", model=Readiness),
            Reply(status=503, description="They cannot; the members say why.", model=Readiness),
        ),
    ),
    Route(
        method="GET",
        path="/metrics",
        handler=get_metrics,
        tag="service",
        summary="Numbers for Prometheus",
        description="Needs a token with the role `metrics`, which is good for nothing else, or `admin`.",
        roles=("metrics", "admin"),
        replies=(Reply(description="In Prometheus's text format.", media_type="text/plain"),),
    ),
    Route(
        method="GET",
        path="/openapi.json",
        handler=get_spec,
        tag="service",
        summary="This document",
        public=True,
        replies=(Reply(description="OpenAPI 3.1."),),
    ),
)
