from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tenacity import wait_none

from orchestrator.config.models import PodmanConfig
from orchestrator.podman.runtime import PodmanRuntime
from tests.fakes.libpod import FakeLibpod

MakeRuntime = Callable[..., PodmanRuntime]


@pytest.fixture
def libpod(tmp_path: Path) -> Iterator[FakeLibpod]:
    with FakeLibpod(tmp_path / "libpod.sock") as fake:
        yield fake


@pytest.fixture
async def make_runtime(libpod: FakeLibpod, tmp_path: Path) -> AsyncIterator[MakeRuntime]:
    """Runtimes on the fake service (given as the configured socket); closed at the end."""
    made: list[PodmanRuntime] = []

    def make(
        *, oci_runtime: str | None = None, image_tags: dict[str, str] | None = None, **config: object
    ) -> PodmanRuntime:
        runtime = PodmanRuntime(
            config=PodmanConfig.model_validate({"socket": libpod.socket, **config}),
            runtime_dir=tmp_path / "run",
            instance="inst-1",
            oci_runtime=oci_runtime,
            owned_roots=[tmp_path / "state"],
            image_tags=image_tags,
            user_socket=tmp_path / "no.sock",
            retry_wait=wait_none(),
        )
        made.append(runtime)
        return runtime

    yield make
    for runtime in made:
        await runtime.aclose()


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> PodmanRuntime:
    made = make_runtime()
    await made.start()
    return made
