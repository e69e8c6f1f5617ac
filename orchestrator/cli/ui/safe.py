"""Text of unknown origin, made safe for a terminal.

Whatever an agent, a model, a repo or a remote service wrote may hold escape sequences: they could retitle the window,
write to the clipboard, hide or rewrite what was shown before.  Everything that reaches a terminal passes ``clean``.
"""

import contextlib
import json
import logging
import re
import sys
from typing import Any

# Complete sequences go as a whole, so that no "[31m" stays behind.  A sequence cut in two loses its control character
# and its rest is plain, visible text: nothing is ever hidden because an end was missing.
_SEQUENCE = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]"  # CSI: colours, cursor, modes
    r"|(?:\x1b[\]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c\n\r]{0,512}(?:\x07|\x1b\\|\x9c)"  # OSC, DCS, SOS, PM, APC
    r"|\x1b[ -/]{1,4}[0-~]"  # character sets
    r"|\x1b[0-Z\\^-~]",  # two-character sequences
)
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 without tab and newline, DEL, C1
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction marks: text that reads otherwise than it is
    "\u2028\u2029"
    "\U000e0000-\U000e007f]",  # tag characters: invisible text
)
_SURROGATE = re.compile("[\ud800-\udfff]")


def clean(text: str) -> str:
    """``text`` with nothing in it but visible characters, tabs and newlines."""
    text = text.replace("\r\n", "\n")
    text = _SEQUENCE.sub("", text)
    text = text.replace("\r", "\n")  # a lone one would write over the start of its line
    text = _CONTROL.sub("", text)
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def visible(line: str) -> str:
    """One line for a reader who must see all of it: control characters as ``^[``, others as ``<U+202E>``.

    ``clean`` drops whole sequences, and what is in them, such as a piece of a program, would not be seen.
    """
    return _SURROGATE.sub("\N{REPLACEMENT CHARACTER}", _CONTROL.sub(_shown, line))


def _shown(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"^{chr(code ^ 64)}" if code < 32 or code == 127 else f"<U+{code:04X}>"


def one_line(text: str, limit: int = 120) -> str:
    """``clean`` on one line, runs of white space as one blank, at most ``limit`` characters."""
    flat = " ".join(clean(text[: limit * 8]).split())
    return flat if len(flat) <= limit and len(text) <= limit * 8 else flat[: limit - 1] + "…"


def to_json(value: Any) -> str:
    """ASCII JSON on one line: nothing in it can act on a terminal, and every byte of the text is kept."""
    return json.dumps(value, separators=(",", ":"))


class StderrHandler(logging.Handler):
    """Logs to whatever stderr is at the moment, cleaned: log lines may quote what an agent printed."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; a reader that has gone away is no reason to fail."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(clean(self.format(record)) + "\n")
