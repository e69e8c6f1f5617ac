"""The adapters of this repository, as pyproject.toml registers them: no installation is needed to test them."""

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

from orchestrator.contract.adapter import BaseAdapter

ROOT = Path(__file__).parents[2]
RECORDINGS = ROOT / "tests" / "recordings"


def adapters() -> dict[str, type[BaseAdapter]]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    group = "podmentor.adapters"
    return {name: EntryPoint(name, value, group).load() for name, value in project["entry-points"][group].items()}
