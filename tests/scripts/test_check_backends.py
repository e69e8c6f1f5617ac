"""scripts/check_backends: every backend of this checkout is complete, and one that is not is found."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAME = "claude-code"
ENTRY = """[project.entry-points."podmentor.adapters"]
claude-code = "adapters.claude_code:ClaudeCodeAdapter"
"""


def check(root: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(ROOT / "scripts" / "check_backends"), str(root)]
    return subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)


def test_every_backend_of_this_checkout_is_complete() -> None:
    done = check(ROOT)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A small one with one complete backend."""
    root = tmp_path / "checkout"
    for folder in ("Containerfiles/claude-code", "tests/recordings/claude-code/text"):
        shutil.copytree(ROOT / folder, root / folder)
    version = json.loads((ROOT / "Containerfiles/claude-code/package.json").read_text())["dependencies"]
    for path, text in (
        ("pyproject.toml", ENTRY),
        ("docs/backends.md", "|  | `claude-code` |\n"),
        (
            "orchestrator/bench/seen.json",
            json.dumps({"backends": {NAME: {"cli_version": version["@anthropic-ai/claude-code"]}}}),
        ),
    ):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


def gone(path: str) -> Callable[[Path], object]:
    return lambda root: (root / path).unlink()


def rewritten(path: str, old: str, new: str) -> Callable[[Path], object]:
    return lambda root: (root / path).write_text((root / path).read_text().replace(old, new))


BREAKS: list[tuple[str, Callable[[Path], object]]] = [
    ("cannot be imported", rewritten("pyproject.toml", ":ClaudeCodeAdapter", ":Missing")),
    ("calls itself 'claude-code'", rewritten("pyproject.toml", "claude-code =", "other =")),
    ("Containerfiles/claude-code/Containerfile is missing", gone("Containerfiles/claude-code/Containerfile")),
    ("package-lock.json is missing", gone("Containerfiles/claude-code/package-lock.json")),
    ("has no recordings", lambda root: shutil.rmtree(root / "tests/recordings/claude-code")),
    ("events.jsonl is missing", gone("tests/recordings/claude-code/text/events.jsonl")),
    ("has no column for it", rewritten("docs/backends.md", "claude", "klaus")),
    ("seen.json does not know it", rewritten("orchestrator/bench/seen.json", "claude", "klaus")),
    (
        "the bench has seen version 0.0.1",
        rewritten("orchestrator/bench/seen.json", '"cli_version": "', '"cli_version": "0.0.1", "x": "'),
    ),
]


def test_a_complete_one_is_fine(checkout: Path) -> None:
    done = check(checkout)
    assert (done.returncode, done.stdout, done.stderr) == (0, "claude-code: complete\n", "")


@pytest.mark.parametrize(("says", "break_it"), BREAKS, ids=[says for says, _ in BREAKS])
def test_a_missing_part_is_named(checkout: Path, says: str, break_it: Callable[[Path], object]) -> None:
    break_it(checkout)
    done = check(checkout)
    assert done.returncode == 1
    assert says in done.stderr
