import io
import os
import subprocess
import sys
from collections.abc import Sequence

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


def in_a_terminal(width: int, titles: Sequence[str], rows: Sequence[Sequence[str]], *spare: str) -> list[str]:
    terminal = console.SafeConsole(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.table(terminal, titles, rows, spare=spare)
    assert isinstance(terminal.file, io.StringIO)
    return [line.rstrip() for line in terminal.file.getvalue().splitlines()]


def test_columns_go_before_words_are_cut() -> None:
    titles, rows = ("id", "when", "kind", "text"), [("0123abcd", "2026-05-01 10:00", "one", "word " * 20)]
    spare = ("when", "kind")
    assert in_a_terminal(200, titles, rows, *spare)[1].endswith("word word")
    for width, shown in ((60, titles), (45, ("id", "kind", "text")), (36, ("id", "text")), (20, ("id", "text"))):
        title, line = in_a_terminal(width, titles, rows, *spare)
        assert title.split() == list(shown)
        assert line.startswith("0123abcd  ")
        assert line.endswith("…")
        assert len(line) <= width


def test_a_wide_letter_counts_twice() -> None:
    assert in_a_terminal(11, ("a", "b"), [("\u4f60\u597d\u4f60\u597d", "12")], "a") == ["b", "12"]


def test_ids_are_short_in_a_terminal_and_whole_elsewhere() -> None:
    terminal = console.SafeConsole(file=io.StringIO(), force_terminal=True)
    alike = ["0123456789ab", "0123456789cd", "x"]
    assert console.short_ids(terminal, ["a" * 32, "b" * 32]) == {"a" * 32: "a" * 8, "b" * 32: "b" * 8}
    assert list(console.short_ids(terminal, alike).values()) == ["0123456789a", "0123456789c", "x"]
    assert list(console.short_ids(console.out(), alike).values()) == alike


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
