"""C9: outputs without a stream, plain and as one object, also through the adapter that streams by default."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.gemini import GeminiAdapter, GeminiOneshotAdapter
from orchestrator.contract.types import AgentResult
from orchestrator.testing.conformance import load_all
from tests.adapters.registered import RECORDINGS

STATS = {
    "models": {
        "a": {"tokens": {"prompt": 1200, "candidates": 45, "total": 1252, "cached": 300, "thoughts": 7, "tool": 0}},
        "b": {"tokens": {"prompt": 100, "candidates": 5}},
    }
}


@pytest.fixture(params=[GeminiAdapter, GeminiOneshotAdapter])
def adapter(request: pytest.FixtureRequest) -> GeminiAdapter:
    made = request.param()
    assert isinstance(made, GeminiAdapter)
    return made


def reason(result: AgentResult) -> str:
    assert result.is_error
    assert result.error is not None
    return str(result.error["reason"])


def test_plain_text(adapter: GeminiAdapter) -> None:
    result = adapter.parse_oneshot("The answer.\nIn two lines.\n", "YOLO mode is enabled.", 0)
    assert result == AgentResult(final_text="The answer.\nIn two lines.", is_error=False)


def test_one_object(adapter: GeminiAdapter) -> None:
    text = json.dumps({"session_id": "s", "response": "The answer.\n", "stats": STATS}, indent=2)
    result = adapter.parse_oneshot(text, "", 0)
    assert (result.final_text, result.is_error) == ("The answer.", False)
    assert result.tokens == {"input": 1000, "output": 50, "cache_read": 300, "reasoning": 7}


def test_the_older_object_without_session_or_stats(adapter: GeminiAdapter) -> None:
    assert adapter.parse_oneshot('{"response": "x"}', "", 0).final_text == "x"


@pytest.mark.parametrize("noise", ["Loaded cached credentials.\n", "\n\n"])
def test_words_before_the_object(adapter: GeminiAdapter, noise: str) -> None:
    assert adapter.parse_oneshot(noise + '{\n  "response": "x"\n}\n', "", 0).final_text == "x"


@pytest.mark.parametrize(
    "answer", ['{"colour": "red"}', '{"error": "E17", "colour": "red"}', "{not json}", "[1]", '"x"']
)
def test_an_answer_that_is_json_itself_stays_as_it_is(adapter: GeminiAdapter, answer: str) -> None:
    assert adapter.parse_oneshot(answer, "", 0) == AgentResult(final_text=answer, is_error=False)


@pytest.mark.parametrize("on_stderr", [True, False])
def test_an_error_object_wherever_it_is_printed(adapter: GeminiAdapter, on_stderr: bool) -> None:
    error = {"type": "Error", "message": "API key not valid. Please pass a valid API key.", "code": 400}
    text = json.dumps({"session_id": "s", "error": error}, indent=2)
    streams = ("", f"Error when talking to Gemini API\n{text}\n") if on_stderr else (text, "")
    result = adapter.parse_oneshot(*streams, 144)
    assert reason(result) == "auth_rejected"
    assert "API key not valid" in str(result.error)


def test_an_answer_that_broke_off_is_none(adapter: GeminiAdapter) -> None:
    result = adapter.parse_oneshot("Half an ans", "[ERROR] Model stream ended without a finish reason.\n", 0)
    assert reason(result) == "provider_unavailable"
    assert result.final_text == "Half an ans"
    text = json.dumps({"response": "Half", "error": {"type": "INVALID_STREAM", "message": "The model returned …"}})
    assert adapter.parse_oneshot(text, "", 0).is_error


@pytest.mark.parametrize("text", ['{\n  "session_id": "s",\n  "resp', '{"response": "The ans', '{\n  "response":'])
def test_an_object_without_its_end_is_no_answer(adapter: GeminiAdapter, text: str) -> None:
    """Killed, the CLI ends with exit code 0."""
    assert reason(adapter.parse_oneshot(text, "", 0)) == "cli_failed"


def test_an_error_told_on_the_way_is_no_failure(adapter: GeminiAdapter) -> None:
    assert not adapter.parse_oneshot("Done.", "[ERROR] Error executing tool x: nope\n", 0).is_error


@pytest.mark.parametrize(
    ("stderr", "rc", "expected"),
    [
        ("", 0, "cli_failed"),
        ("", 137, "cli_failed"),
        ("podmentor-filepipe: node: No such file or directory", 127, "cli_not_installed"),
        ("Please set an Auth method", 41, "auth_required"),
        (
            '_ApiError: {"error":{"code":429,"message":"slow","status":"RESOURCE_EXHAUSTED"}}\n    at x\n  status: 429',
            1,
            "rate_limited",
        ),
        ("  status: 500\n}\nAn unexpected critical error occurred:[object Object]", 1, "provider_unavailable"),
    ],
)
def test_without_an_answer_stderr_and_exit_code_tell_why(
    adapter: GeminiAdapter, stderr: str, rc: int, expected: str
) -> None:
    assert reason(adapter.parse_oneshot("", stderr, rc)) == expected


def test_text_of_a_run_that_failed_is_kept(adapter: GeminiAdapter) -> None:
    result = adapter.parse_oneshot("So far.", "status: 503", 1)
    assert (result.final_text, reason(result)) == ("So far.", "provider_unavailable")


@pytest.mark.parametrize(
    "stats", [None, 1, [], {"models": 1}, {"models": {"a": 1}}, {"models": {"a": {"tokens": [1]}}}]
)
def test_statistics_of_another_shape_harm_nothing(adapter: GeminiAdapter, stats: Any) -> None:
    result = adapter.parse_oneshot(json.dumps({"response": "x", "stats": stats}), "", 0)
    assert (result.final_text, result.tokens) == ("x", {})


def test_a_stream_is_read_as_a_stream_by_the_adapter_that_has_one() -> None:
    [recording] = [found for found in load_all(RECORDINGS / "gemini") if found.name == "tool"]
    result = GeminiAdapter().parse_oneshot(recording.stdout.decode(), "", 0)
    assert result.final_text == "The command printed hi."
    assert result.session_id
