"""A long patch in a real terminal, and the pager that it goes through."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orchestrator.cli.process import ROOT

SHOW = (
    "from orchestrator.cli.ui.diff import print_diff; print_diff(b'+a\\x1b]0;owned\\x07\\n' * {lines}); print('after')"
)


def in_a_terminal(lines: int, **env: str) -> str:
    master, slave = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SHOW.format(lines=lines)],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "LINES": "20", "COLUMNS": "80", **env},
    ) as process:
        os.close(slave)
        written = b""
        try:
            while piece := os.read(master, 65536):
                written += piece
        except OSError:
            written += b""  # Linux: EIO says that the other side is closed
        assert process.wait(timeout=30) == 0
    os.close(master)
    return written.decode()


@pytest.fixture
def pager(tmp_path: Path) -> Path:
    program = tmp_path / "page"
    program.write_text('#!/bin/sh\necho "paged by $1"\nexec cat\n')
    program.chmod(0o755)
    return program


def test_what_does_not_fit_is_paged_and_nothing_in_it_acts(pager: Path) -> None:
    shown = in_a_terminal(40, PAGER=f"{pager} me")
    assert shown.startswith("paged by me\r\n")
    assert shown.count("+a^[]0;owned^G") == 40
    assert shown.endswith("after\r\n")
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_what_fits_is_printed(pager: Path) -> None:
    shown = in_a_terminal(5, PAGER=str(pager))
    assert "paged" not in shown
    assert shown.count("+a^[]0;owned^G") == 5


@pytest.mark.parametrize("program", ["/nonexistent/pager", "'not closed", "true"])
def test_a_pager_that_is_none_or_leaves_early_is_no_error(program: str) -> None:
    shown = in_a_terminal(2000, PAGER=program)
    assert "Traceback" not in shown
    assert shown.endswith("after\r\n")
