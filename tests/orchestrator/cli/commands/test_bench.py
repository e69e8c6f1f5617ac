"""podmentor bench: what is printed, written and given back; the stage is a fake."""

from __future__ import annotations

import contextlib
import json
import sys
import types
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from orchestrator.bench.fixture import Stage
from orchestrator.bench.table import BEGIN, END
from tests.orchestrator.bench.actor import Actors, fails, stage
from tests.orchestrator.cli.conftest import Invoke


@dataclass
class House:
    """Which stages were asked for, and what is made of each."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    change: Callable[[Actors], None] = lambda _: None


@pytest.fixture
def house(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> House:
    house = House()
    module: Any = types.ModuleType("orchestrator.bootstrap.bench")

    @contextlib.asynccontextmanager
    async def bench_stage(
        _config: Any, backend: str, *, place: Path, image_tag: str | None, jobs: int
    ) -> AsyncIterator[Stage]:
        house.calls.append({"backend": backend, "place": place, "image": image_tag, "jobs": jobs})
        root = tmp_path / str(len(house.calls))
        root.mkdir()
        made = stage(root)
        actors = made.runs
        assert isinstance(actors, Actors)
        house.change(actors)
        try:
            yield made
        finally:
            actors.close()

    module.bench_stage = bench_stage
    module.benchable = lambda config, paths: ["claude-code", "codex"]
    monkeypatch.setitem(sys.modules, "orchestrator.bootstrap.bench", module)
    return house


def test_a_green_backend(invoke: Invoke, house: House, place: Path) -> None:
    found = invoke("bench", "claude-code")
    assert found.exit_code == 0, found.output
    assert "claude-code  2.1.197  (podmentor/claude-code:1)" in found.stdout
    assert "B01  ✓ pass  a plain answer arrives whole" in found.stdout
    assert "green: 30 pass" in found.stdout
    assert house.calls == [
        {"backend": "claude-code", "place": place / "s/podmentor/bench/claude-code", "image": None, "jobs": 6}
    ]


def test_every_installed_backend_is_tried_when_none_is_named(invoke: Invoke, house: House) -> None:
    assert invoke("bench").exit_code == 0
    assert [call["backend"] for call in house.calls] == ["claude-code", "codex"]


def test_a_failed_check_is_exit_code_1_and_shows_why(invoke: Invoke, house: House) -> None:
    house.change = lambda actors: actors.script.update({"401": fails("cli_failed")})
    found = invoke("bench", "claude-code")
    assert found.exit_code == 1
    assert "B10  ✗ FAIL" in found.stdout
    assert "auth_rejected was expected, not cli_failed: it is cli_failed" in found.stdout
    assert "NOT green: 29 pass, 1 fail" in found.stdout


def test_json(invoke: Invoke, house: House) -> None:
    house.change = lambda actors: actors.script.update({"401": fails("cli_failed")})
    found = invoke("bench", "claude-code", "--json")
    assert found.exit_code == 1
    report = json.loads(found.stdout)
    assert report["ok"] is False
    (backend,) = report["backends"]
    assert (backend["backend"], backend["ok"], backend["capabilities"]["deltas"]) == ("claude-code", False, True)
    assert {"number": "B01", "title": "a plain answer arrives whole", "outcome": "pass"}.items() <= backend["results"][
        0
    ].items()


@pytest.mark.parametrize("tag", ["2.1.198-abc", "localhost/podmentor/claude-code:2.1.198-abc"])
def test_another_image(invoke: Invoke, house: House, tag: str) -> None:
    assert invoke("bench", "claude-code", "--image", tag, "--jobs", "2").exit_code == 0
    assert (house.calls[0]["image"], house.calls[0]["jobs"]) == ("2.1.198-abc", 2)
    assert invoke("bench", "--image", tag).exit_code == 2


def test_verbose_tells_each_scene(invoke: Invoke, house: House) -> None:
    found = invoke("bench", "claude-code", "--verbose")
    assert "· claude-code: text: completed" in found.stderr


def test_the_capabilities_are_written_into_a_checkout(invoke: Invoke, house: House, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "backends.md").write_text(f"{BEGIN}\n{END}\n")
    assert invoke("bench", "claude-code", "--write-capabilities", str(tmp_path)).exit_code == 0
    seen = json.loads((tmp_path / "orchestrator/bench/seen.json").read_text())["backends"]["claude-code"]
    assert (seen["cli_version"], seen["capabilities"]["thinking"]) == ("2.1.197", True)
    assert "|  | `claude-code` |" in (tmp_path / "docs" / "backends.md").read_text()


def test_what_could_not_be_tried_is_not_written(invoke: Invoke, house: House, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "backends.md").write_text(f"{BEGIN}\n{END}\n")
    house.change = lambda actors: actors.script.update({"text": fails("image_missing")})
    assert invoke("bench", "claude-code", "--write-capabilities", str(tmp_path)).exit_code == 1
    assert json.loads((tmp_path / "orchestrator/bench/seen.json").read_text()) == {"backends": {}}


def test_recordings_go_to_a_folder_for_each_backend(invoke: Invoke, house: House, tmp_path: Path) -> None:
    log = tmp_path / "ctr.log"
    log.write_text('2026-01-01T00:00:00.000000001+00:00 stdout F {"done": "x"}\n')

    def with_logs(actors: Actors) -> None:
        play = actors.on_submit

        def submit(record: Any) -> None:
            actors.logs[record.run_id] = log
            play(record)

        actors.on_submit = submit

    house.change = with_logs
    assert invoke("bench", "claude-code", "--record", str(tmp_path / "out")).exit_code == 0
    assert (tmp_path / "out/claude-code/text/stdout.bin").read_text() == '{"done": "x"}\n'
