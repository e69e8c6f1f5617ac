"""Real builds in the user's own image store, with a recipe of the tests' own that needs no network."""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import images.build
from images.build import PodmanImageBuilder, build_lock
from images.store import StoredImage, leftover_containers, stale
from images.trust import extra_certificates
from orchestrator.contract.images import BuildProgress
from orchestrator.errors import ImageBuildError
from tests.podman import session
from tests.podman.images_kit import IMAGE, container, run_to_end

pytestmark = [
    pytest.mark.podman,
    pytest.mark.timeout(1800),
]  # builds take turns, also with those of other checkouts

NAME = session.image_name()
CURRENT = f"localhost/podmentor/{NAME}:current"


def podman(*args: str, check: bool = True) -> str:
    done = run_to_end(["podman", *args])
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout


def remove_test_images() -> None:
    ids = podman("images", "--quiet", "--no-trunc", f"--filter=label=podmentor.image={NAME}").split()
    if ids:
        podman("rmi", "--force", *set(ids))


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Path]:
    context = tmp_path / NAME
    context.mkdir()
    write(context, "RUN echo one > /version")
    (context / "package.json").write_text('{"dependencies": {"x": "1.0.0"}}')
    (context / "package-lock.json").write_text('{"packages": {"node_modules/x": {"version": "1.0.0"}}}')
    remove_test_images()
    yield context
    remove_test_images()


def write(context: Path, *steps: str) -> None:
    """A recipe whose image has no more in it than the tests run: at an image's first start Podman copies it whole."""
    small = "cp --parents --dereference /usr/bin/cat /usr/bin/true /usr/bin/sleep $(ldd /usr/bin/cat | grep -o '/[^ ]*') /small"
    lines = (
        "ARG BASE",
        "FROM ${BASE} AS work",
        "USER 0:0",
        f"RUN mkdir /small && {small}",
        *steps,
        "RUN test ! -e /version || cp /version /small",
        "FROM scratch",
        "COPY --from=work /small /",
        "ENV PATH=/usr/bin",
        "USER 1000:1000",
    )
    (context / "Containerfile").write_text("\n".join(lines) + "\n")


@pytest.fixture
def builder(tmp_path: Path, recipe: Path) -> PodmanImageBuilder:
    return PodmanImageBuilder(state_dir=tmp_path / "state", extra_recipes={recipe.name: recipe})


def image_id(tag: str) -> str:
    return podman("image", "inspect", "--format={{.Id}}", tag, check=False).strip()


async def leftovers(builder: PodmanImageBuilder) -> set[str]:
    """The working containers that are there while nobody builds."""
    async with build_lock(builder._lock_file, timeout=1500, on_wait=lambda: None):
        return set(await leftover_containers())


def ours_alone(stored: list[StoredImage], wanted: set[str]) -> list[StoredImage]:
    """What a prune may take: the user's own stay."""
    return [image for image in stale(stored, wanted) if image.name == NAME]


def into(events: list[BuildProgress]) -> Callable[[BuildProgress], None]:
    """Keeps what is reported, but for the wait for builds of others."""

    def keep(event: BuildProgress) -> None:
        if event.step != "lock":
            events.append(event)

    return keep


def shape(events: list[BuildProgress]) -> list[tuple[str, str]]:
    return [(event.step, event.kind) for event in events if event.kind != "detail"]


@pytest.fixture(scope="module")
def claude(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The id of an image of Claude Code that is up to date: built now if need be."""
    builder = PodmanImageBuilder(state_dir=tmp_path_factory.mktemp("state"))
    [ref] = asyncio.run(builder.build(["claude-code"], progress=lambda _: None))
    return ref.image_id


async def test_the_second_build_does_nothing(builder: PodmanImageBuilder) -> None:
    first: list[BuildProgress] = []
    [built] = await builder.build([NAME], progress=into(first))
    assert shape(first)[-4:] == [(NAME, "started"), (NAME, "finished")] * 2
    assert [event.total for event in first] == [first[-1].number] * len(first)

    second: list[BuildProgress] = []
    [again] = await builder.build([NAME], progress=into(second))
    assert shape(second) == [(NAME, "skipped")]
    assert again == built
    assert built.tag == builder.wanted([NAME])[NAME]
    assert image_id(CURRENT) == built.image_id


async def test_a_changed_recipe_makes_a_new_image_and_the_old_one_can_be_pruned(
    builder: PodmanImageBuilder, recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [old] = await builder.build([NAME], progress=lambda _: None)
    write(recipe, "RUN echo two > /version")
    assert [image.up_to_date for image in await builder.list_images() if image.ref.backend == NAME] == [False]
    [new] = await builder.build([NAME], progress=lambda _: None)
    assert new.tag != old.tag
    assert image_id(CURRENT) == new.image_id
    assert podman("run", "--rm", "--network=none", new.image_id, "cat", "/version") == "two\n"
    listed = [image for image in await builder.list_images() if image.ref.backend == NAME]
    assert [(image.ref.tag, image.current, image.up_to_date) for image in listed] == [
        (new.tag, True, True),
        (old.tag, False, False),
    ]

    monkeypatch.setattr(images.build, "stale", ours_alone)
    holder = podman("create", f"--label={session.LABEL}={session.SESSION}", old.image_id, "true").strip()
    assert await builder.prune(lambda _: None) == []
    podman("rm", holder)
    assert [removed.name for removed in await builder.prune(lambda _: None)] == [old.tag]
    assert not image_id(old.tag)
    assert image_id(new.tag) == new.image_id


async def test_no_cache_makes_the_same_tag_anew(builder: PodmanImageBuilder, monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_top(everything, names, *, present, no_cache):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
        return [everything[name] for name in names]  # the base would take minutes

    [first] = await builder.build([NAME], progress=lambda _: None)
    monkeypatch.setattr(images.build, "to_build", only_the_top)
    [second] = await builder.build([NAME], no_cache=True, progress=lambda _: None)
    assert second.tag == first.tag
    assert second.image_id != first.image_id
    assert image_id(CURRENT) == second.image_id


async def test_a_failing_build_tells_what_the_tool_said_and_leaves_nothing(
    builder: PodmanImageBuilder, recipe: Path, tmp_path: Path
) -> None:
    before = await leftovers(builder)
    write(recipe, "RUN seq 100 && echo this is why >&2 && exit 9")
    with pytest.raises(ImageBuildError, match="podman build failed") as caught:
        await builder.build([NAME], progress=lambda _: None)
    assert caught.value.details["step"] == NAME
    assert "this is why" in caught.value.details["lines"]
    assert len(caught.value.details["lines"]) == 20
    assert await leftovers(builder) <= before
    assert not (tmp_path / "state" / "images").exists()
    assert not image_id(CURRENT)


def running(words: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if words in line:
            found.append(line)
    return found


async def test_a_cancelled_build_leaves_no_process_no_container_and_no_tag(
    builder: PodmanImageBuilder, recipe: Path, tmp_path: Path
) -> None:
    [good] = await builder.build([NAME], progress=lambda _: None)
    before = await leftovers(builder)
    sleep = f"sleep {86400 + os.getpid()}"
    write(recipe, f"RUN echo now && {sleep}")
    started = asyncio.Event()

    def progress(event: BuildProgress) -> None:
        if event.kind == "detail" and event.text == "now":
            started.set()

    work = asyncio.create_task(builder.build([NAME], progress=progress))
    async with asyncio.timeout(120):
        await started.wait()
        assert running(sleep)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
    assert running(sleep) == []
    assert running(f"--tag={builder.wanted([NAME])[NAME]}") == []
    assert await leftovers(builder) <= before
    assert not (tmp_path / "state" / "images").exists()
    assert not image_id(builder.wanted([NAME])[NAME])
    assert image_id(CURRENT) == good.image_id


async def test_two_builds_at_once_take_turns_whatever_their_state_directories(
    builder: PodmanImageBuilder, tmp_path: Path, recipe: Path
) -> None:
    other = PodmanImageBuilder(state_dir=tmp_path / "another", extra_recipes={recipe.name: recipe})
    events: list[BuildProgress] = []
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one.build([NAME], progress=events.append)) for one in (builder, other)]
    assert tasks[0].result() == tasks[1].result()
    steps = [step for step in shape(events) if step != ("lock", "started")]
    assert steps[-1] == (NAME, "skipped")
    assert ("lock", "started") in shape(events)


def test_claude_code_runs_without_a_network(claude: str) -> None:
    done = run_to_end(container(claude, "claude", "--version"))
    assert done.stdout == "2.1.197 (Claude Code)\n"


def test_the_run_time_image_has_what_agents_use_and_no_installer_or_compiler(claude: str) -> None:
    script = 'for tool; do command -v "$tool" >/dev/null && echo "$tool"; done; id; pwd; echo $HOME'
    absent = ("npm", "npx", "yarn", "gcc", "cc", "g++", "make")
    there = ("git", "rg", "socat", "node", "python3", "jq", "curl", "patch", "ps")
    argv = container(claude, "sh", "-c", script, "sh", *absent, *there)
    done = run_to_end(argv)
    assert done.stdout.splitlines() == [
        *there,
        "uid=1000(agent) gid=1000(agent) groups=1000(agent)",
        "/workspace",
        "/home/agent",
    ]


def test_the_labels_and_the_certificates_are_in_the_image(claude: str) -> None:
    labels = json.loads(podman("image", "inspect", "--format={{json .Labels}}", claude))
    assert labels["podmentor.image"] == "claude-code"
    assert labels["podmentor.cli_version"] == "2.1.197"
    assert len(labels["podmentor.recipe"]) == 64
    assert image_id(IMAGE) == claude
    trusted = podman("run", "--rm", "--network=none", claude, "cat", "/etc/ssl/certs/ca-certificates.crt")
    for certificate in extra_certificates(None).decode().split("-----END CERTIFICATE-----\n"):
        assert certificate in trusted


async def test_the_size_does_not_grow_by_a_run(claude: str, capsys: pytest.CaptureFixture[str]) -> None:
    builder = PodmanImageBuilder(state_dir=Path("/nonexistent"))
    [size] = [image.ref.size_bytes for image in await builder.list_images() if image.ref.image_id == claude]
    with capsys.disabled():
        print(f"\n  claude-code image: {size / 1e6:.0f} MB")
    assert (await asyncio.to_thread(run_to_end, container(claude, "true"))).returncode == 0
    [after] = [image.ref.size_bytes for image in await builder.list_images() if image.ref.image_id == claude]
    assert after == size
    assert size < 700e6
