import io
from typing import Any

from rich.console import Console

from orchestrator.cli.ui.quantities import seconds, usage_words
from orchestrator.cli.ui.summary import print_changes, print_summary
from tests.fakes.api_server import CHANGES, make_run


def summary(run: dict[str, Any], changes: list[dict[str, Any]] | None, **more: Any) -> str:
    console = Console(record=True, width=200, file=io.StringIO(), color_system=None)
    print_summary(console, run, changes, **more)
    return console.export_text()


def test_a_completed_run() -> None:
    assert summary(make_run("run_1"), CHANGES) == (
        "\n"
        "✓ completed in 3.5 s · 900 tokens in, 12 out (300 from cache) · $0.0123 · 2 turns · 128 MiB\n"
        "2 files changed, +1 -1\n"
        "  M a.txt  +1 -1\n"
        "  A b.bin  binary\n"
        "subagent sub_1\n"
        '  go on with   podmentor run claude-code --subagent sub_1 "…"\n'
        "  see changes  podmentor changes diff sub_1\n"
    )


def test_failed_and_cancelled_runs() -> None:
    failed = summary(make_run("r", outcome="failed", usage={}), [], hint="do this")
    assert "✗ failed in 3.5 s\nhint: do this\nno file changed\n" in failed
    assert "■ cancelled" in summary(make_run("r", outcome="cancelled"), None)
    assert "files changed" not in summary(make_run("r"), None)


def test_one_file_is_singular_and_many_are_cut() -> None:
    console = Console(record=True, width=200, file=io.StringIO(), color_system=None)
    print_changes(console, CHANGES[:1])
    assert console.export_text().startswith("1 file changed")
    print_changes(console, [dict(CHANGES[0], path=f"f{i}") for i in range(30)])
    assert "… 10 more" in console.export_text()


def test_hostile_names_are_harmless() -> None:
    text = summary(make_run("r", subagent_id="s\x1b[2J", backend="b\x07"), [dict(CHANGES[0], path="\x1b]0;x\x07p")])
    assert "\x1b" not in text
    assert "\x07" not in text


def test_what_is_not_known_is_left_out() -> None:
    assert usage_words({}) == []
    assert usage_words({"tokens": None, "cost_usd": None, "turns": 1}) == ["1 turn"]
    assert summary(make_run("r", finished_at=None, started_at="?"), None).splitlines()[1].startswith("✓ completed · ")


def test_seconds() -> None:
    assert (seconds(3.21), seconds(75)) == ("3.2 s", "1 min 15 s")
