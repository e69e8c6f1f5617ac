"""What was printed becomes recordings that the conformance kit can read, and recordings can be compared."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.bench.fixture import Stage
from orchestrator.bench.output_diff import Change, compare, compare_case, folded
from orchestrator.bench.recorder import record, split
from orchestrator.bench.results import Evidence
from orchestrator.bench.runner import play_all
from orchestrator.bench.scenes import FIRST, SCENES
from orchestrator.errors import StorageError
from orchestrator.testing.conformance import RECORDING_CONTRACTS, load_all
from tests.orchestrator.bench.actor import Actors, BenchAdapter

TS = b"2026-01-01T00:00:00.000000001+00:00"
LINES = [{"session": "s"}, {"text": "hi"}, {"done": "hi"}]


def log(path: Path, lines: list[dict[str, str]] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    said = b"".join(TS + b" stdout F " + json.dumps(line).encode() + b"\n" for line in lines or LINES)
    path.write_bytes(said + TS + b" stderr F a warning\n")
    return path


async def evidence(good: Stage, actors: Actors, lines: list[dict[str, str]] | None = None) -> Evidence:
    """As it was seen, with a log for every run."""
    seen = await play_all(good, jobs=8, progress=lambda text: None)
    path = log(good.paths.state_dir / "ctr.log", lines)
    scenes = {
        name: replace(scene, runs=tuple(replace(run, log=path) for run in scene.runs))
        for name, scene in seen.scenes.items()
    }
    return replace(seen, scenes=scenes)


async def test_recordings_keep_the_contracts_of_the_kit(good: Stage, actors: Actors, tmp_path: Path) -> None:
    seen = await evidence(good, actors)
    names = record(good.adapter, seen, tmp_path / "out")
    assert {"text", "401", "remember-1", "remember-2", "lost"} <= set(names)
    assert not {"secrets", "cancel", "timeout", "after"} & set(names)
    recordings = load_all(tmp_path / "out")
    assert len(recordings) == len(names)
    for recording in recordings:
        assert recording.stderr_tail == "a warning\n"
        for contract in RECORDING_CONTRACTS:
            contract(BenchAdapter(), recording)


async def test_the_meta_data_tell_how_it_was_made(good: Stage, actors: Actors, tmp_path: Path) -> None:
    record(good.adapter, await evidence(good, actors), tmp_path)
    first, second = (json.loads((tmp_path / f"remember-{n}" / "meta.json").read_text()) for n in (1, 2))
    assert first["argv"] == ["echo-cli", "--cwd", "/workspace"]
    assert second["argv"] == ["echo-cli", "--cwd", "/workspace", "--resume", "s"]


async def test_what_is_too_long_is_left_out(good: Stage, actors: Actors, tmp_path: Path) -> None:
    assert record(good.adapter, await evidence(good, actors), tmp_path, max_bytes=10) == []


async def test_a_place_that_cannot_be_written_is_an_error(good: Stage, actors: Actors, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    seen = await evidence(good, actors)
    with pytest.raises(StorageError, match="cannot be written"):
        record(good.adapter, seen, tmp_path / "file")


def test_pieces_of_lines_are_joined() -> None:
    data = TS + b" stdout P one \n" + TS + b" stderr F oops\n" + TS + b" stdout F two\n" + TS + b" stdout P end\n"
    assert split([data[:17], data[17:60], data[60:]]) == (b"one two\nend", b"oops\n")


async def test_the_same_shape_is_no_change(good: Stage, actors: Actors, tmp_path: Path) -> None:
    seen = await evidence(good, actors)
    record(good.adapter, seen, tmp_path / "a")
    other = await evidence(good, actors, [{"session": "another"}, {"text": "ho"}, {"text": "ho"}, {"done": "hoho"}])
    record(good.adapter, other, tmp_path / "b")
    assert compare(tmp_path / "a", tmp_path / "b") == []


async def test_what_is_new_and_what_is_gone_is_reported(good: Stage, actors: Actors, tmp_path: Path) -> None:
    record(good.adapter, await evidence(good, actors), tmp_path / "a")
    record(good.adapter, await evidence(good, actors, [{"session": "s"}, {"done": "x", "more": "y"}]), tmp_path / "b")
    (tmp_path / "a" / "text").rename(tmp_path / "a" / "was-there")
    found = {(change.case, change.where, change.what) for change in compare(tmp_path / "a", tmp_path / "b")}
    assert ("text", "events", "recorded for the first time") in found
    assert ("was-there", "events", "not recorded any more") in found
    assert ("lost", "events", "session_started message_delta completed -> session_started completed") in found
    assert ("lost", "events", "no message_delta any more") in found
    assert ("lost", "output", "?: - text") in found
    assert ("lost", "output", "?: + more") in found


def case(folder: Path, *, stdout: list[object], exit_code: int = 0, events: list[object] | None = None) -> Path:
    folder.mkdir(parents=True)
    (folder / "stdout.bin").write_text("".join(json.dumps(line) + "\n" for line in stdout))
    (folder / "events.jsonl").write_text("".join(json.dumps(line) + "\n" for line in events or []))
    (folder / "meta.json").write_text(json.dumps({"exit_code": exit_code}))
    return folder


def test_lines_are_distinguished_by_their_types_and_data_is_no_format(tmp_path: Path) -> None:
    old = case(tmp_path / "old", stdout=[{"type": "a", "x": 1}, {"type": "b", "input": {"p": 1}}, "text"])
    new = case(
        tmp_path / "new",
        stdout=[{"type": "a", "x": [{"y": 1}]}, {"type": "b", "input": {"q": 1}}, {"type": "c", "subtype": "d"}],
        exit_code=3,
    )
    assert [(change.where, change.what) for change in compare_case("one", old, new)] == [
        ("output", "new: c/d"),
        ("output", "a: - x"),
        ("output", "a: + x[].y"),
        ("output", "exit code 0 -> 3"),
    ]


def test_reasons_phases_and_tools_are_part_of_the_order(tmp_path: Path) -> None:
    use = {"kind": "tool_use", "data": {"name": "Bash"}}
    old = case(tmp_path / "old", stdout=[], events=[use, {"kind": "error", "data": {"reason": "cli_failed"}}])
    new = case(tmp_path / "new", stdout=[], events=[use, {"kind": "error", "data": {"reason": "rate_limited"}}])
    (change,) = compare_case("one", old, new)
    assert change.what == "tool_use:Bash error:cli_failed -> tool_use:Bash error:rate_limited"


def test_for_people_each_difference_is_reported_once() -> None:
    changes = [
        Change(case=case, where="output", what=what)
        for case in ("a", "b", "c")
        for what in ("result: + x", "result: + y.z", "result: - w", "new: user")
    ]
    changes.append(Change(case="a", where="events", what="thinking completed -> completed"))
    assert folded(changes) == [
        ("a and 2 more", "output", "result: + x, y.z"),
        ("a and 2 more", "output", "result: - w"),
        ("a and 2 more", "output", "new: user"),
        ("a", "events", "thinking completed -> completed"),
    ]


def test_scenes_have_names_of_their_own() -> None:
    names = [scene.name for scene in (FIRST, *SCENES)]
    assert len(set(names)) == len(names)
