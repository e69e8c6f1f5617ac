import os
import subprocess
import sys

import pytest

from orchestrator.cli.ui import console
from orchestrator.config.models import Paths
from tests.fakes.api_server import FakeApi, ThreadedApi, make_run
from tests.orchestrator.cli.process import ROOT


def test_what_is_piped_is_neither_wrapped_nor_coloured(capsys: pytest.CaptureFixture[str]) -> None:
    console.table(console.out(), ("a", "b"), [("x" * 300, "[red]y[/] :smile:\x1b[2J")])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert lines[1].rstrip() == "x" * 300 + "  [red]y[/] :smile:"


def test_markup_in_a_line_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    console.out().out("[bold]x[/bold]", highlight=False)
    console.err().out("y", highlight=False)
    assert capsys.readouterr() == ("[bold]x[/bold]\n", "y\n")


@pytest.mark.parametrize(
    "command", [["runs", "list"], ["runs", "list", "--json"], ["runs", "events", "run_1"], ["runs", "log", "run_1"]]
)
def test_a_reader_that_is_gone_is_no_traceback(
    paths: Paths, served: ThreadedApi, api: FakeApi, command: list[str]
) -> None:
    api.runs = [make_run(f"run_{i}", query="x" * 1000) for i in range(200)]
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.cli_main", *command],
        stdout=writing,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        timeout=60,
        check=False,
    )
    os.close(writing)
    assert done.returncode == 1
    assert done.stderr == b""
