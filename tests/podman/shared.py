"""One service for the tests of a module that neither end nor configure it; a start costs more than most tests.

Such a module imports all fixtures from here, is listed in ONE_SERVICE (tests/conftest.py) and has its tests run in its
own event loop (MARKS).  It names its backend in BACKEND, and the backend's settings in SETTINGS, where they are not the
usual ones.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import pytest
import pytest_asyncio

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, STARTED, LiveService, live_service

MARKS: Final = [pytest.mark.podman, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider(api_key=REAL_KEY) as provider:
        yield provider


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def module_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, module_provider: ScriptedProvider
) -> AsyncIterator[LiveService]:
    async with live_service(
        tmp_path_factory.mktemp("service"),
        module_provider.base_url,
        backend_name=getattr(request.module, "BACKEND", "claude-code"),
        backend=getattr(request.module, "SETTINGS", {}),
    ) as service:
        yield service


@pytest.fixture
def provider(module_provider: ScriptedProvider) -> ScriptedProvider:
    """The module's provider, which knows of no request of the tests before."""
    module_provider.requests.clear()
    return module_provider


@pytest.fixture
def service(module_service: LiveService) -> LiveService:
    """The module's service; its log is shown with this test when it fails."""
    if module_service not in STARTED:
        STARTED.append(module_service)
    return module_service
