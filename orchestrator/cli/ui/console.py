"""The two consoles.  Markup, emoji codes and automatic highlighting are off: text is shown as it is."""

import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.cli.ui.safe import clean

_WIDE = 10_000
_GAP = 2
"""Blanks between two columns."""
_LAST = 24
"""What the last column keeps of its width at least, as long as there are other columns to spare."""
_ID = 8
"""Characters of an id that tell it from the others, nearly always."""


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


def table(console: Console, titles: Sequence[str], rows: Sequence[Sequence[str]], *, spare: Sequence[str] = ()) -> None:
    """Columns without lines around them.

    In a terminal that is too narrow the columns titled ``spare`` are left out, the first of them first, before a word
    is cut; then the last column takes the cut.
    """
    cells = [[clean(cell) for cell in row] for row in rows]
    widths = [max(map(cell_len, column)) for column in zip(titles, *cells, strict=True)]
    shown = list(range(len(titles)))

    def too_wide() -> bool:
        *firsts, last = (widths[index] for index in shown)
        return sum(firsts) + _GAP * len(firsts) + min(last, _LAST) > console.width

    for title in spare:
        if too_wide():
            shown.remove(titles.index(title))
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, _GAP, 0, 0))
    left = max(1, console.width - sum(widths[index] + _GAP for index in shown[:-1]))
    for index in shown:
        width = min(widths[index], left) if index == shown[-1] else widths[index]
        grid.add_column(titles[index], no_wrap=True, overflow="ellipsis", width=width)
    for row in cells:
        grid.add_row(*(Text(row[index]) for index in shown))
    console.print(grid, soft_wrap=False)


def short_ids(console: Console, ids: Sequence[str]) -> dict[str, str]:
    """In a terminal each id's beginning, as long as it takes to tell them apart; every command takes it for the id.

    Elsewhere the whole id.
    """
    if not console.is_terminal:
        return {one: one for one in ids}
    length = _ID
    while len({one[:length] for one in ids}) < len(set(ids)):
        length += 1
    return {one: clean(one[:length]) for one in ids}
