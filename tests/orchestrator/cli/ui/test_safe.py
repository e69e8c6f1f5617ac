import io
import json
import logging
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli.ui.safe import StderrHandler, clean, one_line, to_json, visible

HOSTILE = [
    "\x1b]0;owned\x07",  # window title
    "\x1b]52;c;cm0gLXJmIC8=\x07",  # clipboard
    "\x1b]8;;http://evil\x1b\\link\x1b]8;;\x1b\\",  # hidden link
    "\x1b[2J\x1b[H",  # clear the screen
    "\x1b[31mred\x1b[0m",
    "\x1b[?1049h",  # alternate screen
    "\x9b31m",  # CSI as one C1 character
    "\x9d0;title\x9c",
    "\x1bPq#0\x1b\\",  # sixel
    "\x1b_G...\x1b\\",  # graphics
    "\x1bc",  # reset
    "\x1b(0",  # line-drawing character set
    "a\x08b",
    "safe\rEVIL",
    "\u202egnp.exe",
    "\x00\x07\x0b\x0c\x7f",
    "\U000e0041hidden",
    "\ud800",
    "\x1b",
    "\x1b[",
    "\x1b]0;never ends",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    found = clean("before" + text + "after")
    assert found.startswith("before")
    assert found.endswith("fter")  # a lone ESC takes the next character with it
    assert all(char in "\t\n" or char.isprintable() for char in found), repr(found)


@given(st.text())
def test_whatever_the_text(text: str) -> None:
    found = clean(text)
    assert not any(ord(char) < 32 and char not in "\t\n" for char in found)
    assert not any(0x7F <= ord(char) <= 0x9F for char in found)
    found.encode()


def test_whole_sequences_go_without_leaving_crumbs() -> None:
    assert clean("\x1b[1;31mred\x1b[0m \x1b]0;title\x07x \x1b(0y") == "red x y"


def test_an_unfinished_sequence_hides_nothing() -> None:
    assert "rm -rf" in clean("\x1b]0;rm -rf /\nnext")
    assert "rm -rf" in clean("\x1b]0;" + "x" * 600 + "rm -rf\x07")


def test_plain_text_stays_as_it_is() -> None:
    text = "naïve\ttab\nline — 漢字 🙂 [bold]not markup[/bold] :smile:"
    assert clean(text) == text
    assert clean("a\r\nb") == "a\nb"
    assert clean("50%\r100%") == "50%\n100%"


def test_one_line() -> None:
    assert one_line("a\n  b\tc\x1b[2J") == "a b c"
    assert one_line("x" * 50, 10) == "x" * 9 + "…"
    assert len(one_line("y" * 10_000_000, 20)) == 20


def test_json_output_is_exact_and_inert() -> None:
    text = "\x1b]0;t\x07 ü \ud800"
    line = to_json({"a": text})
    assert line.isascii()
    assert "\x1b" not in line
    assert json.loads(line) == {"a": text}


def test_log_lines_are_cleaned(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    StderrHandler().emit(logging.LogRecord("n", logging.ERROR, "f", 1, "x\x1b[2Jy", None, None))
    assert "xy" in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


@given(st.text(st.characters(exclude_characters="\n"), max_size=60))
def test_what_is_made_visible_cannot_act_and_loses_nothing(text: str) -> None:
    shown = visible(text)
    assert clean(shown) == shown
    assert len(shown) >= len(text)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_made_visible(text: str) -> None:
    assert clean(visible(text)) == visible(text)
