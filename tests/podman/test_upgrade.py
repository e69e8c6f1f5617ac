"""Upgrades of an image with real builds; what the npm registry would answer is made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import images.build
from images.upgrade import Npm, PodmanImageUpgrader
from orchestrator.contract.images import BuildProgress
from orchestrator.errors import InvalidRequestError
from tests.podman import session
from tests.podman.images_kit import run_to_end
from tests.podman.test_images import CURRENT, NAME, image_id, ours_alone
from tests.podman.test_images import recipe as recipe  # noqa: PLC0414  # a fixture

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(1800),
]  # builds take turns, also with those of other checkouts


class Registry:
    """npm's answers: the newest is 2.0.0, and 3.0.0 does not exist."""

    async def newest(self, _npm: object, package: str) -> str:
        assert package == "x"
        return "2.0.0"

    async def check(self, _npm: object, package: str, version: str) -> None:
        if version == "3.0.0":
            raise InvalidRequestError("the npm registry has no x 3.0.0")

    async def lock(self, _npm: object, package_json: bytes, package: str, version: str, work: Path) -> dict[str, bytes]:
        assert work.is_dir()
        return {
            "package.json": json.dumps({"dependencies": {package: version}}).encode(),
            "package-lock.json": json.dumps({"packages": {f"node_modules/{package}": {"version": version}}}).encode(),
        }


def quiet(_: BuildProgress) -> None:
    return


@pytest.fixture
def upgrader(tmp_path: Path, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> PodmanImageUpgrader:
    registry = Registry()
    for name in ("newest", "check", "lock"):
        method: Callable[..., object] = getattr(registry, name)

        def call(npm: Npm, *rest: object, method: Callable[..., object] = method) -> object:
            return method(npm, *rest)

        monkeypatch.setattr(Npm, name, call)
    monkeypatch.setattr(images.build, "stale", ours_alone)
    return PodmanImageUpgrader(state_dir=tmp_path / "state", extra_recipes={NAME: recipe})


def states(listed: list[object]) -> dict[str, tuple[bool, bool, bool]]:
    return {
        image.ref.cli_version: (image.current, image.candidate, image.upgraded)  # type: ignore[attr-defined]
        for image in listed
        if image.ref.backend == NAME  # type: ignore[attr-defined]
    }


async def test_a_candidate_changes_nothing_until_it_is_promoted(upgrader: PodmanImageUpgrader) -> None:
    await upgrader.build([NAME], progress=quiet)
    before = image_id(CURRENT)
    candidate = await upgrader.candidate(NAME, to=None, progress=quiet)
    assert candidate is not None
    assert (candidate.from_version, candidate.version, candidate.made) == ("1.0.0", "2.0.0", True)
    assert image_id(CURRENT) == before != candidate.ref.image_id
    assert states(list(await upgrader.list_images())) == {"1.0.0": (True, False, False), "2.0.0": (False, True, False)}
    await upgrader.prune(quiet)
    assert image_id(candidate.ref.tag) == candidate.ref.image_id, "what is being tried is not pruned"

    await upgrader.promote(candidate, quiet)
    assert image_id(CURRENT) == candidate.ref.image_id
    assert states(list(await upgrader.list_images()))["2.0.0"] == (True, False, True)
    assert upgrader.wanted([NAME]) == {NAME: candidate.ref.tag}
    assert await upgrader.candidate(NAME, to="2.0.0", progress=quiet) is None
    (built,) = await upgrader.build([NAME], progress=quiet)
    assert built.cli_version == "2.0.0", "a later build keeps the version"

    back = await upgrader.candidate(NAME, to="1.0.0", progress=quiet)
    assert back is not None
    assert not back.made
    await upgrader.promote(back, quiet)
    assert image_id(CURRENT) == before
    assert upgrader.wanted([NAME]) == {NAME: back.ref.tag}


async def test_a_candidate_that_is_discarded_leaves_nothing(upgrader: PodmanImageUpgrader, tmp_path: Path) -> None:
    await upgrader.build([NAME], progress=quiet)
    before = image_id(CURRENT)
    candidate = await upgrader.candidate(NAME, to="2.0.0", progress=quiet)
    assert candidate is not None
    await upgrader.discard(candidate, quiet)
    assert image_id(candidate.ref.tag) == ""
    assert image_id(CURRENT) == before
    assert list((tmp_path / "state" / "candidates").iterdir()) == []
    assert not (tmp_path / "state" / "images").exists()


async def test_what_runs_keeps_its_image(upgrader: PodmanImageUpgrader) -> None:
    await upgrader.build([NAME], progress=quiet)
    before = image_id(CURRENT)
    label = f"--label={session.LABEL}={session.SESSION}"
    argv = ["podman", "run", "--detach", "--rm", label, "--network=none", "--runtime=runc", before, "sleep", "60"]
    started = run_to_end(argv)
    assert started.returncode == 0, started.stderr
    container = started.stdout.strip()
    try:
        candidate = await upgrader.candidate(NAME, to="2.0.0", progress=quiet)
        assert candidate is not None
        await upgrader.promote(candidate, quiet)
        shown = run_to_end(["podman", "inspect", "--format={{.State.Running}} {{.Image}}", container]).stdout.split()
        assert shown == ["true", before]
    finally:
        run_to_end(["podman", "rm", "--force", container])


async def test_a_version_that_does_not_exist(upgrader: PodmanImageUpgrader, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"no x 3\.0\.0"):
        await upgrader.candidate(NAME, to="3.0.0", progress=quiet)
    assert not (tmp_path / "state" / "candidates").exists()
