"""docs/observability.md has the table of the code."""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.contract.metrics import INSTRUMENTS
from orchestrator.runs.observe import telemetry

DOC = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


def test_the_document_has_every_metric() -> None:
    rows = re.findall(r"^\| `(podmentor_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", DOC, re.MULTILINE)
    assert [(name, kind, tuple(re.findall(r"`(\w+)`", labels)), meaning) for name, kind, labels, meaning in rows] == [
        (one.name, one.kind, one.labels, one.meaning) for one in INSTRUMENTS
    ]


def test_the_document_names_no_metric_that_there_is_not() -> None:
    named = {
        name
        for name in re.findall(r"podmentor_[a-z_]+[a-z]", DOC)
        if name not in {"podmentor_relay", "podmentor_egress"}
    }
    assert named == {one.name for one in INSTRUMENTS}


def test_the_document_names_every_attribute_of_a_trace() -> None:
    source = Path(telemetry.__file__).read_text()
    for attribute in re.findall(r'"(podmentor\.[a-z_]+)"', source):
        assert f"`{attribute}`" in DOC
