"""The API on real sockets, over a RunService that the test steers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from blockbuster import blockbuster_ctx

from orchestrator.api.app import create_app
from orchestrator.api.local_token import ensure_local_token
from orchestrator.api.server import start_servers
from orchestrator.api.tokens import TokenStore
from orchestrator.config.models import Config, Paths
from orchestrator.credentials import ByoKey, CredentialChain, OwnKeys, TechnicalUser
from orchestrator.telemetry import PrometheusMetrics
from tests.fakes.account_service import FakeAccounts
from tests.fakes.audit import FakeAudit
from tests.fakes.run_service import FakeRunService
from tests.orchestrator.api.harness import Api
from tests.orchestrator.vault.kit import opened_vault

Start = Callable[..., Any]
BACKENDS: dict[str, Any] = {"claude-code": {"api_key": "sk-technical"}, "codex": {}}


@pytest.fixture(autouse=True)
def _no_blocking() -> Iterator[None]:
    """A blocking call of ours on the event loop fails the test."""
    with blockbuster_ctx(["orchestrator"]):
        yield


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start the service: ``await start(server={...}, stall_seconds=…)``."""
    async with AsyncExitStack() as stack:

        async def begin(*, server: dict[str, Any] | None = None, vault: bool = True, **settings: Any) -> Api:
            paths = Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run")
            local = await asyncio.to_thread(ensure_local_token, paths)
            tokens = await stack.enter_async_context(TokenStore(paths.database, local_token=local))
            config = Config.model_validate({"server": server or {}, "external_agent": {"backends": BACKENDS}})
            runs, accounts, audit = FakeRunService(), FakeAccounts(), FakeAudit()
            store = await stack.enter_async_context(opened_vault(paths)) if vault else None
            app = create_app(
                runs=runs,
                changes=runs,
                accounts=accounts,
                tokens=tokens,
                config=config,
                instance="i-1",
                version="1.2.3",
                credentials=CredentialChain([ByoKey(store), TechnicalUser()], config),
                own_keys=OwnKeys(store, audit, BACKENDS),
                metrics=PrometheusMetrics(),
                **settings,
            )
            servers = await start_servers(app, host="127.0.0.1", port=0, unix_socket=paths.api_socket)
            stack.push_async_callback(servers.aclose)
            session = await stack.enter_async_context(aiohttp.ClientSession())
            api = Api(
                runs=runs,
                accounts=accounts,
                tokens=tokens,
                config=config,
                servers=servers,
                session=session,
                directory=tmp_path,
                vault=store,
                audit=audit,
            )
            api.token["local"] = local
            for name, role in (
                ("alice", "user"),
                ("bob", "user"),
                ("svc", "service"),
                ("root", "admin"),
                ("prometheus", "metrics"),
            ):
                api.token[name] = (await tokens.create(name, role)).text  # type: ignore[arg-type]
            return api

        yield begin


@pytest.fixture
async def api(start: Start) -> Api:
    """The service with its defaults."""
    started = await start()
    assert isinstance(started, Api)
    return started
