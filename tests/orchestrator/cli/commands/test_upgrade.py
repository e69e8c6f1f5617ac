"""podmentor images upgrade: adopted or rolled back, and never in between; images and stage are fakes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.images import Candidate, ListedImage, ProgressSink
from orchestrator.errors import ImageBuildError
from tests.fakes.images import REF, FakeImageBuilder
from tests.orchestrator.bench.actor import Actors, fails
from tests.orchestrator.cli.commands.test_bench import House
from tests.orchestrator.cli.commands.test_bench import house as house  # noqa: PLC0414  # a fixture
from tests.orchestrator.cli.conftest import Invoke

NEW = replace(REF, tag="localhost/podmentor/claude-code:2.2.0-abc", cli_version="2.2.0")


class Upgrader(FakeImageBuilder):
    """Notes what becomes of its candidate."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str | None]] = []
        self.done: list[str] = []
        self.found: Candidate | None = Candidate(
            backend="claude-code", package="@acme/cli", from_version="2.1.197", version="2.2.0", ref=NEW, made=True
        )
        self.promotion_fails = False

    async def candidate(self, backend: str, *, to: str | None, progress: ProgressSink) -> Candidate | None:
        self.asked.append((backend, to))
        return self.found

    async def promote(self, candidate: Candidate, progress: ProgressSink) -> None:
        if self.promotion_fails:
            raise ImageBuildError("podman tag failed")
        self.done.append("promoted")

    async def discard(self, candidate: Candidate, progress: ProgressSink) -> None:
        self.done.append("discarded")


@pytest.fixture
def upgrader(house: House) -> Upgrader:
    upgrader = Upgrader()
    module: Any = sys.modules["orchestrator.bootstrap.bench"]
    module.image_builder = lambda config, paths: upgrader

    def with_logs(actors: Actors) -> None:
        play = actors.on_submit
        path = actors.paths.state_dir / "ctr.log"
        path.write_text('2026-01-01T00:00:00.000000001+00:00 stdout F {"done": "x"}\n')

        def submit(record: Any) -> None:
            actors.logs[record.run_id] = path
            play(record)

        actors.on_submit = submit

    house.change = with_logs
    return upgrader


def audited(state: Path) -> list[tuple[str, str, str]]:
    lines = [json.loads(line) for line in (state / "audit.log").read_text().splitlines()]
    assert all(line["actor"].startswith("command:uid ") and line["backend"] == "claude-code" for line in lines)
    return [(line["event"], line["version"], line["from_version"]) for line in lines]


def test_a_version_that_proves_itself_is_adopted(invoke: Invoke, house: House, upgrader: Upgrader, place: Path) -> None:
    found = invoke("images", "upgrade", "claude-code", "--to", "2.2.0", "--yes")
    assert found.exit_code == 0, found.output
    assert upgrader.asked == [("claude-code", "2.2.0")]
    assert upgrader.done == ["promoted"]
    assert [call["image"] for call in house.calls] == [None, "2.2.0-abc"]
    assert "the same shape in every case" in found.stdout
    assert found.stdout.endswith("adopted: new runs of claude-code start from 2.2.0 (before: 2.1.197)\n")
    state = place / "s/podmentor"
    assert sorted(path.name for path in (state / "recordings/claude-code").iterdir()) == ["2.1.197", "2.2.0"]
    assert "claude-code" in json.loads((state / "seen.json").read_text())["backends"]
    assert audited(state) == [("image.adopted", "2.2.0", "2.1.197")]


def test_the_version_before_is_recorded_only_once(
    invoke: Invoke, house: House, upgrader: Upgrader, place: Path
) -> None:
    upgrade = ("images", "upgrade", "claude-code", "--yes")
    assert invoke(*upgrade).exit_code == 0
    assert invoke(*upgrade).exit_code == 0
    assert [call["image"] for call in house.calls] == [None, "2.2.0-abc", "2.2.0-abc"]


def test_what_changed_is_shown(invoke: Invoke, house: House, upgrader: Upgrader, place: Path) -> None:
    case = place / "s/podmentor/recordings/claude-code/2.1.197/text"
    case.mkdir(parents=True)
    (case / "meta.json").write_text('{"exit_code": 0}')
    (case / "stdout.bin").write_text('{"type": "old", "x": 1}\n')
    (case / "events.jsonl").write_text('{"kind": "message_delta", "data": {"text": "x"}}\n')
    found = invoke("images", "upgrade", "claude-code", "--yes")
    assert "no old any more" in found.stdout
    assert "message_delta -> completed" in found.stdout


def test_a_failed_check_rolls_back(invoke: Invoke, house: House, upgrader: Upgrader, place: Path) -> None:
    with_logs = house.change

    def change(actors: Actors) -> None:
        with_logs(actors)
        if len(house.calls) == 2:
            actors.script["401"] = fails("cli_failed")

    house.change = change
    found = invoke("images", "upgrade", "claude-code", "--yes")
    assert found.exit_code == 1
    assert upgrader.done == ["discarded"]
    assert "not adopted: claude-code stays at 2.1.197" in found.stdout
    state = place / "s/podmentor"
    assert [path.name for path in (state / "recordings/claude-code").iterdir()] == ["2.1.197"]
    assert not (state / "seen.json").exists()
    assert audited(state) == [("image.refused", "2.2.0", "2.1.197")]


def test_nobody_to_ask_and_no_yes(invoke: Invoke, upgrader: Upgrader) -> None:
    found = invoke("images", "upgrade", "claude-code")
    assert found.exit_code == 2
    assert "--yes" in found.output
    assert upgrader.asked == []


@pytest.mark.parametrize(
    ("answer", "verdict", "code"), [("y", "promoted", 0), ("n", "discarded", 1), ("", "discarded", 1)]
)
def test_the_user_is_asked(
    invoke: Invoke, upgrader: Upgrader, monkeypatch: pytest.MonkeyPatch, answer: str, verdict: str, code: int
) -> None:
    monkeypatch.setattr("orchestrator.cli.commands.upgrade._somebody_there", lambda: True)
    found = invoke("images", "upgrade", "claude-code", stdin=f"{answer}\n")
    assert (found.exit_code, upgrader.done) == (code, [verdict])
    assert "Let new runs of claude-code start from 2.2.0 (now 2.1.197)?" in found.stderr


def test_nothing_to_do(invoke: Invoke, house: House, upgrader: Upgrader) -> None:
    upgrader.found = None
    found = invoke("images", "upgrade", "claude-code", "--yes")
    assert (found.exit_code, house.calls, upgrader.done) == (0, [], [])
    assert "has this version already" in found.stdout


def test_a_promotion_that_fails_takes_nothing_away(invoke: Invoke, upgrader: Upgrader) -> None:
    upgrader.promotion_fails = True
    found = invoke("images", "upgrade", "claude-code", "--yes")
    assert found.exit_code == 1
    assert "podman tag failed" in found.stderr
    assert upgrader.done == []


def test_json(invoke: Invoke, upgrader: Upgrader) -> None:
    found = invoke("images", "upgrade", "claude-code", "--yes", "--json")
    assert found.exit_code == 0
    report = json.loads(found.stdout)
    assert (report["verdict"], report["from_version"], report["version"], report["changes"]) == (
        "promoted",
        "2.1.197",
        "2.2.0",
        [],
    )
    assert report["bench"]["ok"] is True


def test_list_tells_candidates_and_choices(invoke: Invoke, upgrader: Upgrader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.service", sys.modules["orchestrator.bootstrap.bench"])
    upgrader.images = [
        ListedImage(ref=REF, current=True, up_to_date=True, upgraded=True),
        ListedImage(ref=NEW, current=False, up_to_date=False, candidate=True),
    ]
    lines = invoke("images", "list").stdout.splitlines()
    assert "current, chosen by an upgrade" in lines[1]
    assert "candidate of an upgrade" in lines[2]
    help_text = invoke("images", "--help").stdout
    assert all(name in help_text for name in ("build", "list", "prune", "upgrade"))
