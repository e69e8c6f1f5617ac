"""The two consoles.  Markup, emoji codes and automatic highlighting are off: text is shown as it is."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli.ui.safe import clean

_WIDE = 10_000


class SafeConsole(Console):
    """A console whose reader may go away: that is an ordinary error to us, not the end of the process."""

    def on_broken_pipe(self) -> NoReturn:
        """Let the command tidy up (cancel its run) before it ends."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def out() -> Console:
    """For results.  Colours in a terminal only."""
    return _console(stderr=False)


def err() -> Console:
    """For remarks beside the results."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else _WIDE  # what is piped is never wrapped or cut
    return SafeConsole(
        file=stream, highlight=False, markup=False, emoji=False, soft_wrap=True, width=width, legacy_windows=False
    )


def table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns without lines around them; the last one takes the cut when the terminal is narrow."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for index, title in enumerate(titles):
        last = index == len(titles) - 1
        grid.add_column(title, no_wrap=True, overflow="ellipsis" if last else "ignore")
    for row in rows:
        grid.add_row(*(Text(clean(cell)) for cell in row))
    console.print(grid, soft_wrap=False)
