from pathlib import Path

from orchestrator.events import Completed, Error, SessionStarted, Status, Thinking, Tokens, ToolResult
from orchestrator.testing.recordings import Recording, from_dict, load, load_all, to_dict, write_golden
from tests.orchestrator.testing.broken import Good

META = '{"argv": ["x"], "exit_code": 0, "stderr_tail": "w"}'


def record(folder: Path, stdout: bytes = b'{"say": "hi"}\n') -> Path:
    folder.mkdir()
    (folder / "stdout.bin").write_bytes(stdout)
    (folder / "meta.json").write_text(META)
    return folder


def test_a_golden_file_is_what_is_loaded_again(tmp_path: Path) -> None:
    folder = record(tmp_path / "one", b'{"say": "a\\u2028b"}\n')
    assert load(folder).expected is None
    write_golden(Good(), folder)
    expected = load(folder).expected
    assert expected is not None
    assert [event["kind"] for event in expected] == ["session_started", "message_delta", "completed"]
    assert expected[1]["data"]["text"] == "a\u2028b"


def test_recordings_are_found_by_their_meta_file(tmp_path: Path) -> None:
    record(tmp_path / "b")
    record(tmp_path / "a")
    (tmp_path / "no-recording").mkdir()
    assert [(found.name, found.exit_code, found.stderr_tail) for found in load_all(tmp_path)] == [
        ("a", 0, "w"),
        ("b", 0, "w"),
    ]


def test_lines_are_cut_at_newlines_only() -> None:
    recording = Recording(name="x", stdout=b"a\rb\n\x0bc\n\nd")
    assert recording.lines == [b"a\rb\n", b"\x0bc\n", b"\n", b"d"]
    assert Recording(name="x", stdout=b"").lines == []


def test_a_line_is_the_event_that_it_was_written_from() -> None:
    for event in (
        SessionStarted(session_id="s", tools=["Bash"]),
        Thinking(text="hm", parent_tool_call_id="t"),
        ToolResult(tool_call_id="t", content="x", is_error=False),
        Completed(final_text="x", tokens=Tokens(input=1, output=2, cache_read=3), duration_ms=4, cost_usd=0.5),
        Error(reason="cli_failed", message="m", details={"a": 1}),
        Status(phase="unparsed", info={"line": 1, "raw": "x"}),
    ):
        assert from_dict(to_dict(event)) == event
