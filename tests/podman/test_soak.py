"""The soak command, small: nothing is left, and every stream is whole.  How fast the deaths were is not looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.podman.soak.__main__ import as_json, as_table
from tests.podman.soak.soaking import Soak

pytestmark = [pytest.mark.podman, pytest.mark.timeout(600)]


async def test_a_short_soak_leaves_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    soak = Soak(tmp_path, runs=12, seed=4, at_once=6, pause=(0.5, 3.0), say=said.append)
    result = await soak.run()
    print(as_table(result))
    assert len(said) == 12
    assert result.faults == []
    assert {what: found for what, found in result.left.items() if found} == {}
    assert json.loads(json.dumps(as_json(result)))["runs"] == 12
