"""The sample repository really fails its check, and the demo's edit really mends it."""

import subprocess
from pathlib import Path

from orchestrator.scripted.sample import BUG, CHECK, FIX, SAMPLE_FILES, SCRIPT


def check(repo: Path) -> tuple[int, str]:
    done = subprocess.run(["sh", CHECK], cwd=repo, capture_output=True, text=True, timeout=10, check=False)
    return done.returncode, done.stdout


def test_the_bug_and_its_fix(tmp_path: Path) -> None:
    for name, content in SAMPLE_FILES.items():
        (tmp_path / name).write_text(content)
    assert check(tmp_path) == (1, "FAILED: wanted hello-container-world, got hello_container_world\n")
    assert SAMPLE_FILES[SCRIPT].count(BUG) == 1
    (tmp_path / SCRIPT).write_text(SAMPLE_FILES[SCRIPT].replace(BUG, FIX))
    assert check(tmp_path) == (0, "ok: hello-container-world\n")
