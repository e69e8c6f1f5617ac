"""Long text in a terminal goes through a pager, as git does it."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence

from orchestrator.cli.ui import console as consoles
from orchestrator.config.environment import process_environment

Line = tuple[str, str | None]
"""A clean line and its style."""


def show(lines: Sequence[Line]) -> None:
    """Print the lines; through ``$PAGER`` (or less) when this is a terminal and they do not fit on it."""
    out = consoles.out()
    pager = _pager() if out.is_terminal and len(lines) >= out.size.height else None
    if pager is None:
        for text, style in lines:
            out.out(text, style=style, highlight=False)
        return
    with out.capture() as captured:
        for text, style in lines:
            out.out(text, style=style, highlight=False)
    environment = {"LESS": "FRX", **process_environment()}
    with subprocess.Popen(pager, stdin=subprocess.PIPE, env=environment) as process:  # noqa: S603  # the user's own pager
        try:
            process.communicate(captured.get().encode(errors="replace"))
        except KeyboardInterrupt:
            process.wait()


def _pager() -> list[str] | None:
    environment = process_environment()
    try:
        words = shlex.split(environment.get("PODMENTOR_PAGER", environment.get("PAGER", "less")))
    except ValueError:
        return None
    program = shutil.which(words[0]) if words and words[0] != "cat" else None
    return [program, *words[1:]] if program and sys.stdin.isatty() else None
