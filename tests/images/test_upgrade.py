"""npm in a container: what is asked, and what its answers mean."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from images import upgrade as module
from images.upgrade import Npm, npm_argv
from orchestrator.errors import ImageBuildError, InvalidRequestError

Answer = Callable[[Sequence[str]], bytes]


class Podman:
    """Stands in for ``output``."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.calls: list[list[str]] = []

    async def output(self, argv: Sequence[str], *, timeout: float) -> bytes:
        self.calls.append(list(argv))
        return self.answer(argv)


@pytest.fixture
def podman(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], Podman]:
    def make(answer: Answer) -> Podman:
        podman = Podman(answer)
        monkeypatch.setattr(module, "output", podman.output)
        return podman

    return make


def failing(code: int, *lines: str) -> Answer:
    def answer(_: Sequence[str]) -> bytes:
        raise ImageBuildError("podman run failed", exit_code=code, lines=list(lines))

    return answer


def test_the_container_has_nothing_but_the_network_and_its_directory() -> None:
    argv = npm_argv("builder:1", "runc", ["view", "x"], mount=Path("/work"))
    assert argv[:3] == ["podman", "--runtime=runc", "run"]
    assert {"--rm", "--pull=never", "--cap-drop=all", "--volume=/work:/build"} <= set(argv)
    assert argv[-4:] == ["builder:1", "npm", "view", "x"]


async def test_the_newest_version(podman: Callable[[Answer], Podman]) -> None:
    asked = podman(lambda _: b'"2.0.1"\n')
    assert await Npm("builder", [None]).newest("@acme/cli") == "2.0.1"
    assert asked.calls[0][-4:] == ["view", "@acme/cli@latest", "version", "--json"]


@pytest.mark.parametrize("answer", [lambda _: b"", lambda _: b'"2.0.0"', failing(1, "npm ERR! code E404")])
async def test_a_version_that_is_not_there_is_refused(podman: Callable[[Answer], Podman], answer: Answer) -> None:
    podman(answer)
    with pytest.raises(InvalidRequestError, match=r"no @acme/cli 9\.9\.9"):
        await Npm("builder", [None]).check("@acme/cli", "9.9.9")


@pytest.mark.parametrize("version", ["latest", "^1.0.0", "1.0", "--help", "1.0.0 || 2.0.0"])
async def test_what_is_no_version_is_not_even_asked_for(podman: Callable[[Answer], Podman], version: str) -> None:
    asked = podman(lambda _: b"")
    with pytest.raises(InvalidRequestError, match="not a version"):
        await Npm("builder", [None]).check("@acme/cli", version)
    assert asked.calls == []


async def test_a_registry_out_of_reach_is_no_missing_version(podman: Callable[[Answer], Podman]) -> None:
    podman(failing(1, "npm ERR! code EAI_AGAIN"))
    with pytest.raises(ImageBuildError):
        await Npm("builder", [None]).check("@acme/cli", "1.0.0")


async def test_a_runtime_that_refuses_the_host_is_not_the_last_word(podman: Callable[[Answer], Podman]) -> None:
    def answer(argv: Sequence[str]) -> bytes:
        if "--runtime=runc" in argv:
            return b'"1.0.0"'
        raise ImageBuildError("no", exit_code=126)

    asked = podman(answer)
    assert await Npm("builder", [None, "runc", "crun"]).newest("x") == "1.0.0"
    assert len(asked.calls) == 2


async def test_the_lock_is_made_for_the_one_version(podman: Callable[[Answer], Podman], tmp_path: Path) -> None:
    def answer(_: Sequence[str]) -> bytes:
        (tmp_path / "package-lock.json").write_text("locked")
        return b""

    asked = podman(answer)
    shipped = json.dumps({"name": "podmentor-acme", "dependencies": {"@acme/cli": "1.0.0"}}).encode()
    files = await Npm("builder", [None]).lock(shipped, "@acme/cli", "2.0.0", tmp_path)
    assert json.loads(files["package.json"]) == {"name": "podmentor-acme", "dependencies": {"@acme/cli": "2.0.0"}}
    assert files["package-lock.json"] == b"locked"
    assert {"--package-lock-only", "--ignore-scripts"} <= set(asked.calls[0])
