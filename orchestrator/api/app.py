"""The application: what it needs is handed in, nothing is looked up."""

from typing import Final

from aiohttp import web

from orchestrator.api import context
from orchestrator.api.answers import dumps
from orchestrator.api.middleware import add_headers, errors_as_problems, host_guard
from orchestrator.api.openapi import build_spec, with_version
from orchestrator.api.routes import ROUTES
from orchestrator.api.routing import register
from orchestrator.api.tokens import TokenStore
from orchestrator.config.models import Config
from orchestrator.contract.accounts import AccountService
from orchestrator.contract.changes import ChangeService
from orchestrator.contract.credentials import Credentialing, UserKeys
from orchestrator.contract.metrics import MetricsPage
from orchestrator.contract.runs import RunService
from orchestrator.system.tasks import TaskOwner

_SPEC: Final = build_spec(ROUTES)  # not in create_app: it reads source files, for which no event loop should wait
STALL_SECONDS: Final = 60.0
_CLOSE_SECONDS: Final = 1.0


def create_app(
    *,
    runs: RunService,
    changes: ChangeService,
    accounts: AccountService,
    tokens: TokenStore,
    credentials: Credentialing,
    own_keys: UserKeys,
    metrics: MetricsPage,
    config: Config,
    instance: str,
    version: str,
    embedded: bool = False,
    stall_seconds: float = STALL_SECONDS,
) -> web.Application:
    """The HTTP API over the services that are handed in.

    ``instance``: tells services on one machine apart (shown by /healthz, as is ``embedded``: the service ends with the
    command that it is inside of).  ``stall_seconds``: how long one write to a
    streaming client may take.  The application owns nothing of what it is handed: whoever made it closes it.
    """
    app = web.Application(
        middlewares=[errors_as_problems, host_guard(config.server)], client_max_size=config.server.max_body_bytes
    )
    app[context.RUNS] = runs
    app[context.CHANGES] = changes
    app[context.ACCOUNTS] = accounts
    app[context.TOKENS] = tokens
    app[context.CREDENTIALS] = credentials
    app[context.OWN_KEYS] = own_keys
    app[context.METRICS] = metrics
    app[context.CONFIG] = config
    app[context.ABOUT] = context.About(instance=instance, version=version, embedded=embedded)
    app[context.TASKS] = TaskOwner("api")
    app[context.STALL_SECONDS] = stall_seconds
    app[context.SPEC] = dumps(with_version(_SPEC, version))
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(_end_streams)
    register(app, ROUTES)
    return app


async def _end_streams(app: web.Application) -> None:
    """Streams and waits end with their tasks; their clients get a clean end without a last event and come back."""
    await app[context.TASKS].aclose(grace=_CLOSE_SECONDS)
