"""Reading Podman's listings, and which images may go."""

import json
from pathlib import Path
from typing import Any

import pytest

from images.store import StoredImage, leftover_containers, parse_images, parse_leftovers, stale
from orchestrator.errors import ImageBuildError

HOUSE = "localhost/podmentor"


def image(
    name: str, number: str, *, current: bool = False, parent: str = "", containers: int = 0, tagged: bool = True
) -> StoredImage:
    tags = [f"{HOUSE}/{name}:{number}"] if tagged else []
    if current:
        tags.append(f"{HOUSE}/{name}:current")
    labels = {"podmentor.image": name, "podmentor.parent": parent and f"{HOUSE}/{parent}"}
    if name not in {"base", "builder", "rootfs"}:
        labels["podmentor.cli_version"] = "1.0.0"
    return StoredImage(
        image_id=f"{name}-{number}",
        tags=tuple(tags),
        labels=labels,
        size_bytes=1,
        created=number,
        containers=containers,
    )


def ids(images: list[StoredImage]) -> list[str]:
    return [found.image_id for found in images]


STACK = [image("rootfs", "1"), image("base", "1", parent="rootfs:1"), image("builder", "1", parent="base:1")]


def test_current_and_wanted_images_stay_with_what_they_stand_on() -> None:
    images = [*STACK, image("agent", "1", current=True, parent="base:1")]
    assert ids(stale(images, set())) == ["builder-1"]
    assert ids(stale(images, {f"{HOUSE}/builder:1"})) == []


def test_an_old_stack_goes_from_the_top() -> None:
    new = [image("base", "2"), image("agent", "2", current=True, parent="base:2")]
    images = [*STACK, image("agent", "1", parent="base:1"), *new]
    assert ids(stale(images, set())) == ["agent-1", "builder-1", "base-1", "rootfs-1"]


def test_an_image_in_use_stays_whatever_its_age() -> None:
    images = [*STACK, image("agent", "1", parent="base:1", containers=1), image("agent", "2", current=True)]
    assert ids(stale(images, set())) == ["builder-1"]


def test_an_image_that_lost_its_tag_goes() -> None:
    assert ids(stale([image("agent", "1", tagged=False)], {f"{HOUSE}/agent:1"})) == ["agent-1"]


def row(**changes: Any) -> dict[str, Any]:
    return {
        "Id": "a" * 64,
        "Names": [f"{HOUSE}/agent:1.0.0-abc"],
        "Labels": {"podmentor.image": "agent", "podmentor.cli_version": "1.0.0", "podmentor.recipe": "abc"},
        "Size": 1000,
        "CreatedAt": "2026-11-30T13:31:24Z",
        "Containers": 2,
        **changes,
    }


def test_an_image_listed_once_per_tag_is_one_image() -> None:
    twice = [row(), row(Names=[f"{HOUSE}/agent:current"])]
    once = [row(Names=[f"{HOUSE}/agent:current", f"{HOUSE}/agent:1.0.0-abc"])]
    assert parse_images(json.dumps(twice).encode()) == parse_images(json.dumps(once).encode())
    [found] = parse_images(json.dumps(twice).encode())
    assert found.is_current
    assert found.containers == 2
    ref = found.ref(700)
    assert (ref.tag, ref.backend, ref.cli_version, ref.size_bytes) == (
        f"{HOUSE}/agent:1.0.0-abc",
        "agent",
        "1.0.0",
        700,
    )


def test_an_image_without_a_tag_goes_by_its_id() -> None:
    [found] = parse_images(json.dumps([row(Names=None, RepoTags=None, History=[f"{HOUSE}/agent:1.0.0-abc"])]).encode())
    assert found.ref(1).tag == "a" * 64


def test_an_image_that_a_user_built_from_ours_is_not_ours() -> None:
    """It inherits every label; its names, and those that it once had, are the user's."""
    theirs = [
        row(Id="b" * 64, Names=["localhost/mine:1"], History=["localhost/mine:1"]),
        row(Id="c" * 64, Names=None, History=["localhost/mine:1"]),
        row(Id="d" * 64, Names=None),
        row(Id="e" * 64, Names=["localhost/podmentor-mine/agent:1"]),
    ]
    assert [image.image_id for image in parse_images(json.dumps([row(), *theirs]).encode())] == ["a" * 64]


def test_an_image_of_ours_that_somebody_named_stays() -> None:
    named = row(Names=["localhost/mine:1"], History=[f"{HOUSE}/agent:0"], Containers=0)
    old = row(Id="b" * 64, Names=[f"{HOUSE}/agent:0.9"], Containers=0)
    images = parse_images(json.dumps([named, old]).encode())
    assert [image.image_id for image in stale(images, set())] == ["b" * 64]


@pytest.mark.parametrize("empty", [b"", b"[]", b"null"])
def test_an_empty_store(empty: bytes) -> None:
    assert parse_images(empty) == []
    assert parse_leftovers(empty) == []


@pytest.mark.parametrize("listing", [b"nonsense", b'[{"Id": 1}]', b'[{"no": 1}]', b'{"a": 1}'])
def test_an_answer_that_is_no_listing_is_an_error(listing: bytes) -> None:
    with pytest.raises(ImageBuildError, match="cannot be understood"):
        parse_images(listing)


def test_leftovers_are_our_builds_and_first_starts_alone() -> None:
    rows = [
        {
            "Id": "build",
            "State": "storage",
            "Image": f"{HOUSE}/base:1",
            "Labels": None,
            "Names": ["base-working-container"],
        },
        {"Id": "again", "State": "storage", "Image": f"{HOUSE}/base:1", "Names": ["base-working-container-1"]},
        # for a moment, while Podman makes it
        {
            "Id": "new",
            "State": "storage",
            "Image": f"{HOUSE}/agent:1",
            "Labels": None,
            "Names": [f"podmentor-{'0f' * 16}"],
        },
        {"Id": "by hand", "State": "storage", "Image": f"{HOUSE}/agent:1", "Names": ["eager_hopper"]},
        {"Id": "prime", "State": "created", "Image": f"{HOUSE}/agent:1", "Labels": {"podmentor.prime": "1"}},
        {"Id": "run", "State": "running", "Image": f"{HOUSE}/agent:1", "Labels": {"podmentor.run_id": "r"}},
        {"Id": "foreign build", "State": "storage", "Image": "docker.io/library/debian:trixie", "Labels": None},
    ]
    assert parse_leftovers(json.dumps(rows).encode()) == ["build", "again", "prime"]


def podman_that_fails(folder: Path, times: int) -> None:
    """A ``podman`` whose listing fails so many times, as it does when a container ends meanwhile."""
    script = folder / "podman"
    script.write_text(
        "#!/bin/sh\n"
        f"echo >> {folder}/calls\n"
        f"if [ $(wc -l < {folder}/calls) -le {times} ]; then\n"
        "  echo 'Error: determining buildah container for container e6a1' >&2; exit 125\n"
        "fi\n"
        "echo '[]'\n"
    )
    script.chmod(0o755)


async def test_a_container_that_ends_during_the_listing_fails_no_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman_that_fails(tmp_path, 3)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("images.store.LISTING_PAUSES", (0.0,) * 4)
    assert await leftover_containers() == []


async def test_a_listing_that_always_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman_that_fails(tmp_path, 100)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("images.store.LISTING_PAUSES", (0.0,) * 4)
    with pytest.raises(ImageBuildError, match="determining buildah container"):
        await leftover_containers()
    assert len((tmp_path / "calls").read_text().splitlines()) == 5
