"""The builder's decisions that need no Podman."""

import asyncio
from pathlib import Path

import pytest

from images.build import PodmanImageBuilder, build_lock
from orchestrator.contract.images import ImageBuilder
from orchestrator.errors import ImageBuildError, InvalidRequestError, UnknownBackendError
from tests.fakes.images import FakeImageBuilder

CERT = "-----BEGIN CERTIFICATE-----\nQUFB\n-----END CERTIFICATE-----\n"


def test_the_builder_and_its_fake_fit_the_contract(tmp_path: Path) -> None:
    builders: list[ImageBuilder] = [PodmanImageBuilder(state_dir=tmp_path), FakeImageBuilder()]
    assert all("claude-code" in builder.backends() for builder in builders)


def test_wanted_follows_the_configured_base_and_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "ca.pem"
    bundle.write_text(CERT)
    builders = [
        PodmanImageBuilder(state_dir=tmp_path),
        PodmanImageBuilder(state_dir=tmp_path, base="debian:trixie-slim"),
        PodmanImageBuilder(state_dir=tmp_path, ca_bundle=bundle),
    ]
    tags = {builder.wanted(["claude-code"])["claude-code"] for builder in builders}
    assert len(tags) == 3
    assert all(tag.startswith("localhost/podmentor/claude-code:2.1.197-") for tag in tags)


async def test_what_cannot_be_built_is_refused_before_anything_is_touched(tmp_path: Path) -> None:
    builder = PodmanImageBuilder(state_dir=tmp_path / "state")
    with pytest.raises(UnknownBackendError):
        await builder.build(["nonsense"], progress=lambda _: None)
    with pytest.raises(InvalidRequestError):
        await builder.build(base="--help", progress=lambda _: None)
    with pytest.raises(ImageBuildError, match="cannot be read"):
        await builder.build(ca_bundle=tmp_path / "absent", progress=lambda _: None)
    assert not (tmp_path / "state").exists()


async def test_the_lock_is_waited_for_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "new" / "images.build"
    waits: list[str] = []
    waited = asyncio.Event()

    def on_wait() -> None:
        waits.append("second")
        waited.set()

    async def second() -> None:
        async with build_lock(path, timeout=20, on_wait=on_wait):
            waits.append("got it")

    async with build_lock(path, timeout=1, on_wait=lambda: waits.append("first")):
        task = asyncio.create_task(second())
        await asyncio.wait_for(waited.wait(), 20)
        assert waits == ["second"]
    await asyncio.wait_for(task, 20)
    assert waits == ["second", "got it"]


async def test_a_lock_that_stays_taken_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "images.build"
    async with build_lock(path, timeout=1, on_wait=lambda: None):
        with pytest.raises(ImageBuildError, match="another build still holds"):
            async with build_lock(path, timeout=0, on_wait=lambda: None):
                pytest.fail("two have the lock")
