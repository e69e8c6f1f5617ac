"""What ARCHITECTURE.md, CONTRIBUTING.md and docs/ say of the code, held against the code."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import orchestrator
from orchestrator import errors

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("docs/adr/*.md"), ROOT / "tests/vm/README.md"]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
TOPS = ("orchestrator", "adapters", "images", "tests", "scripts", "docs", "Containerfiles", "benchmarks")
HISTORY = {ROOT / "CHANGELOG.md"}
"""Pages that speak of what was; their paths may be gone."""


def contracts() -> dict[str, dict[str, Any]]:
    """The import contracts by the number that their name begins with."""
    return {found["name"].split()[0]: found for found in PROJECT["tool"]["importlinter"]["contracts"]}


def test_the_layers_of_the_architecture_are_those_that_are_checked() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    (block,) = re.findall(r"```\n(cli >[^`]*)```", text)
    said = [{name.strip() for name in layer.split("|")} for layer in block.split(">")]
    checked = [{name.strip() for name in layer.split("|")} for layer in contracts()["1"]["layers"]]
    assert [{"__main__"}, *said] == checked


def test_every_module_is_placed() -> None:
    """Layer contracts that do not name a module would let it import whatever it likes."""
    for contract in contracts().values():
        if contract["type"] == "layers":
            assert contract.get("exhaustive", False), contract["name"]


def test_each_wing_of_runs_relay_and_workspace_has_its_order() -> None:
    containers = {name for contract in contracts().values() for name in contract.get("containers", [])}
    assert {"orchestrator", "orchestrator.runs", "orchestrator.relay", "orchestrator.workspace"} <= containers


def test_the_architecture_names_every_part() -> None:
    """Whoever reads the table has seen the whole house."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    parts = {entry.name for entry in (ROOT / "orchestrator").iterdir() if (entry / "__init__.py").exists()}
    wings = {
        f"{part}/{entry.name}"
        for part in ("runs", "relay", "workspace", "cli", "api")
        for entry in (ROOT / "orchestrator" / part).iterdir()
        if (entry / "__init__.py").exists()
    }
    unnamed = {name for name in parts if f"`orchestrator/{name}/`" not in text}
    unnamed |= {name for name in wings if f"`{name.partition('/')[2]}/`" not in text}
    assert not unnamed


def paths_in(page: Path) -> Iterator[str]:
    """Paths that a page names: in backticks, with one of our folders at the front; and what it links to."""
    text = page.read_text()
    for words in re.findall(r"`([^`\n]+)`", text):
        for word in words.split():
            if word.split("/")[0] in TOPS and "/" in word:
                yield word.rstrip(".,;:").partition("::")[0]
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if "://" not in target:
            yield str((page.parent / target).resolve().relative_to(ROOT))


@pytest.mark.parametrize("page", sorted(set(PAGES) - HISTORY), ids=lambda page: str(page.relative_to(ROOT)))
def test_every_path_that_is_named_exists(page: Path) -> None:
    missing = [
        path
        for path in paths_in(page)
        if not any(sign in path for sign in "<*{…$")
        and not (ROOT / path).exists()
        and not list(ROOT.glob(path.rstrip("/") + ".*"))
    ]
    assert not missing


def test_a_test_of_one_module_lies_where_the_module_lies() -> None:
    """tests/orchestrator/<path>/test_<module>.py; a test of several modules bears no module's name."""
    tests, code = ROOT / "tests" / "orchestrator", ROOT / "orchestrator"
    misplaced = []
    for test in sorted(tests.rglob("test_*.py")):
        folder = test.parent.relative_to(tests)
        assert (code / folder).is_dir(), f"{test}: there is no orchestrator/{folder}"
        name = test.stem.removeprefix("test_")
        if any(
            (code / folder / f"{prefix}{name}{suffix}").exists()
            for prefix in ("", "__")
            for suffix in (".py", "", "__.py")
        ):
            continue
        part = code / folder.parts[0] if folder.parts else code
        misplaced += [f"{test.relative_to(ROOT)}: {found.relative_to(ROOT)}" for found in part.rglob(f"{name}.py")]
    assert not misplaced


def subclasses(cls: type[errors.PodmentorError]) -> Iterator[type[errors.PodmentorError]]:
    """All classes below ``cls``."""
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def test_errors_that_a_caller_can_meet_live_in_errors() -> None:
    """Elsewhere lies only what one part tells itself: such a class brings no code of its own."""
    for found in pkgutil.walk_packages(orchestrator.__path__, "orchestrator."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
    ours = set(subclasses(errors.PodmentorError))
    elsewhere = {
        cls for cls in ours if cls.__module__.startswith("orchestrator.") and cls.__module__ != errors.__name__
    }
    known = {cls.code for cls in ours - elsewhere} | {errors.PodmentorError.code}
    assert {cls.__qualname__: cls.code for cls in elsewhere if cls.code not in known} == {}


def test_the_numbers_of_decisions_are_given_once() -> None:
    numbers = [path.name[:4] for path in (ROOT / "docs" / "adr").glob("*.md")]
    assert len(numbers) == len(set(numbers))


def test_what_contributing_says_ruff_keeps_is_kept_by_ruff() -> None:
    lint = PROJECT["tool"]["ruff"]["lint"]
    banned = set(lint["flake8-tidy-imports"]["banned-api"])
    assert {"asyncio.create_task", "asyncio.ensure_future", "os.system", "os.environ", "os.getenv"} <= banned
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert PROJECT["tool"]["pytest"]["ini_options"]["filterwarnings"] == ["error"]


def test_no_file_has_a_layout_of_its_own() -> None:
    """The formatter decides; nothing switches it off."""
    mark = "# fmt" + ":"
    files = [path for top in TOPS[:4] for path in (ROOT / top).rglob("*.py") if "recordings" not in path.parts]
    assert [str(path) for path in files if mark in path.read_text()] == []


def test_modules_say_what_they_are() -> None:
    """Each module but empty package files begins with a docstring."""
    silent = [
        str(path.relative_to(ROOT))
        for top in ("orchestrator", "adapters", "images")
        for path in (ROOT / top).rglob("*.py")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert silent == []
