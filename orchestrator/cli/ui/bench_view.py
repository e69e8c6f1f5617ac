"""The bench's report for people."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from orchestrator.bench.results import BackendReport
from orchestrator.cli.ui.safe import clean, one_line

MARKS = {
    "pass": ("✓ pass", "green"),
    "fail": ("✗ FAIL", "bold red"),
    "unsupported": ("- not supported", "yellow"),
    "skipped": ("· not tried", "dim"),
}
_DETAIL = 160


def show(report: BackendReport, out: Console) -> None:
    """Title, one line for each check, times, and the verdict."""
    image = report.image_tag or "no image"
    out.out(f"\n{clean(report.backend)}  {clean(report.cli_version or '?')}  ({clean(image)})", style="bold")
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for title, wrapped in (("#", False), ("RESULT", False), ("CHECK", False), ("DETAIL", True)):
        grid.add_column(title, no_wrap=not wrapped, overflow="fold")
    for result in report.results:
        mark, style = MARKS[result.outcome]
        detail = clean(result.detail) if result.outcome == "fail" else one_line(result.detail, _DETAIL)
        grid.add_row(Text(result.number), Text(mark, style=style), Text(result.title), Text(detail))
    out.print(grid, soft_wrap=False)
    if report.timings:
        out.out(
            "times: " + ", ".join(f"{name.replace('_', ' ')} {spent:g} s" for name, spent in report.timings.items())
        )
    counts = ", ".join(f"{count} {MARKS[name][0][2:].lower()}" for name, count in report.counts().items())
    out.out(f"{'green' if report.ok else 'NOT green'}: {counts}", style="green" if report.ok else "bold red")
