"""What the bench has seen is kept, shown and served; document and served data agree."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from orchestrator.bench.checks import CHECKS
from orchestrator.bench.results import BackendReport, CheckResult
from orchestrator.bench.seen import PACKAGED, UNTRIED, SeenFiles, read, update
from orchestrator.bench.table import BEGIN, END, TITLES, UNTRIED_TITLES, render, write_table
from orchestrator.errors import StorageError

DOCUMENT = Path(__file__).parents[3] / "docs" / "backends.md"


def report(backend: str = "acme", version: str = "1.0.0", **capabilities: bool) -> BackendReport:
    results = (
        CheckResult(number="B01", title="one", outcome="pass"),
        CheckResult(number="B02", title="two", outcome="unsupported", detail="why"),
    )
    return BackendReport(
        backend=backend,
        image_tag="t",
        cli_version=version,
        when="2026-01-02T03:04:05Z",
        results=results,
        capabilities=capabilities,
        declared={"mcp": True, "deltas": True},
        timings={"start": 0.9, "first_text": 1.25},
    )


def test_the_document_shows_what_is_served() -> None:
    text = DOCUMENT.read_text()
    written = text.partition(BEGIN)[2].partition(END)[0]
    assert written.strip() == render(read(PACKAGED)).strip(), "run `podmentor bench --write-capabilities`"


def test_every_capability_has_a_line() -> None:
    assert {check.capability for check in CHECKS if check.capability} == set(TITLES)
    assert set(UNTRIED) == set(UNTRIED_TITLES)


def test_only_the_very_version_is_served(tmp_path: Path) -> None:
    update(tmp_path / "a.json", [report(deltas=True)])
    files = SeenFiles(tmp_path / "a.json", tmp_path / "b.json")
    seen = files.lookup("acme", "1.0.0")
    assert seen is not None
    assert (seen["cli_version"], seen["when"], seen["capabilities"]) == ("1.0.0", "2026-01-02", {"deltas": True})
    assert files.lookup("acme", "1.0.1") is None
    assert files.lookup("other", "1.0.0") is None


def test_what_this_machine_saw_counts_first_and_at_once(tmp_path: Path) -> None:
    update(tmp_path / "a.json", [report(deltas=True)])
    files = SeenFiles(tmp_path / "a.json", tmp_path / "b.json")
    assert files.lookup("acme", "1.0.0")
    update(tmp_path / "b.json", [report(deltas=False)])
    assert (files.lookup("acme", "1.0.0") or {})["capabilities"] == {"deltas": False}
    update(tmp_path / "b.json", [report(version="2.0.0")])
    os.utime(tmp_path / "b.json", (1, 1))
    assert (files.lookup("acme", "1.0.0") or {})["capabilities"] == {"deltas": True}
    assert files.lookup("acme", "2.0.0")


@pytest.mark.parametrize("content", ["", "[]", '{"backends": []}', '{"backends": {"acme": 3}}'])
def test_a_damaged_file_is_as_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.json").write_text(content)
    assert SeenFiles(tmp_path / "a.json").lookup("acme", "1.0.0") is None


def test_other_backends_stay(tmp_path: Path) -> None:
    update(tmp_path / "a.json", [report("one"), report("two")])
    update(tmp_path / "a.json", [report("two", "2.0.0")])
    assert {name: entry["cli_version"] for name, entry in read(tmp_path / "a.json").items()} == {
        "one": "1.0.0",
        "two": "2.0.0",
    }


def test_the_table_is_written_between_its_marks(tmp_path: Path) -> None:
    path = tmp_path / "backends.md"
    path.write_text(f"# Title\n\nby hand\n\n{BEGIN}\nformer\n{END}\n\nmore by hand\n")
    known = update(tmp_path / "seen.json", [report(deltas=True, cost=False)])
    write_table(path, known)
    text = path.read_text()
    assert text.startswith("# Title\n\nby hand\n\n")
    assert text.endswith("\nmore by hand\n")
    assert "former" not in text
    for row in (
        "| CLI version | 1.0.0 |",
        "| text in pieces | yes |",
        "| cost | no |",
        "| reasoning | ? |",
        "| MCP servers (declared) | yes |",
        "| own subscription (declared) | no |",
        "| first text after | 1.2 s |",
        "| checks | 1 pass; B02 not supported |",
    ):
        assert row in text


def test_a_document_without_marks_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.md").write_text("# Title\n")
    with pytest.raises(StorageError, match="no place for the table"):
        write_table(tmp_path / "x.md", {})
    with pytest.raises(StorageError, match="cannot be read"):
        write_table(tmp_path / "y.md", {})


def test_the_file_is_readable_json(tmp_path: Path) -> None:
    update(tmp_path / "a.json", [report()])
    assert json.loads((tmp_path / "a.json").read_text())["backends"]["acme"]["checks"] == {
        "B01": "pass",
        "B02": "unsupported",
    }
