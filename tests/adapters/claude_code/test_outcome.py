from typing import Any

import pytest

from adapters.claude_code.failures import Failure
from adapters.claude_code.outcome import Usage, read_result
from orchestrator.events import Completed, Error, Status
from tests.adapters.claude_code.lines import INIT, result, run

MODELS = {
    "big": {"inputTokens": 10, "outputTokens": 2, "cacheReadInputTokens": 3, "cacheCreationInputTokens": 4},
    "small": {"inputTokens": 1, "outputTokens": 1},
}
ZERO = {"input_tokens": 0, "output_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}


def read(failure: Failure | None = None, usage: Usage | None = None, **members: object) -> Completed | Error:
    return read_result(result(**members), usage=usage or Usage(), last_text="last", failure=failure)  # type: ignore[arg-type]


def tokens(event: Completed | Error) -> dict[str, int]:
    return event.tokens.to_dict() if isinstance(event, Completed) else event.details["tokens"]


def test_the_runs_own_sum_is_taken() -> None:
    used = {"input_tokens": 5, "output_tokens": 6, "cache_read_input_tokens": 7, "cache_creation_input_tokens": 8}
    event = read(usage=None, modelUsage=MODELS, stop_reason="end_turn", num_turns=2, total_cost_usd=0.1)
    assert tokens(event) == {"input": 11, "output": 3, "cache_read": 3, "cache_write": 4}
    event = read_result({**result(), "usage": used, "modelUsage": MODELS}, usage=Usage(), last_text="", failure=None)
    assert tokens(event) == {"input": 5, "output": 6, "cache_read": 7, "cache_write": 8}


def test_where_it_stays_at_zero_the_counts_per_model_are_summed() -> None:
    line = {**result(is_error=True), "usage": ZERO, "modelUsage": MODELS}
    event = read_result(line, usage=Usage(), last_text="", failure=None)
    assert tokens(event) == {"input": 11, "output": 3, "cache_read": 3, "cache_write": 4}


def test_where_nothing_is_told_the_messages_are_summed() -> None:
    usage = Usage()
    usage.count("m1", {"input_tokens": 5, "output_tokens": 1})
    usage.count("m1", {"output_tokens": 9, "service_tier": "standard"})
    usage.count("m2", {"input_tokens": 1, "output_tokens": 1, "flag": True})
    usage.count("m2", None)
    assert tokens(read(usage=usage)) == {"input": 6, "output": 10}


def test_members_of_the_wrong_type_are_left_out() -> None:
    event = read(stop_reason=7, total_cost_usd="much", num_turns="two", duration_ms=None, usage=None)
    assert isinstance(event, Completed)
    assert (event.stop_reason, event.cost_usd, event.turns, event.duration_ms) == (None, None, None, 0)


def test_an_error_keeps_what_is_known_and_no_talk_of_success() -> None:
    event = read(
        Failure(text="reported before", kind="rate_limit"),
        is_error=True,
        said="",
        errors=[],
        terminal_reason="completed",
        api_error_status=429,
        total_cost_usd=0.2,
    )
    assert isinstance(event, Error)
    assert event.reason == "rate_limited"
    assert event.details == {
        "http_status": 429,
        "kind": "rate_limit",
        "cli_message": "reported before",
        "cost_usd": 0.2,
        "tokens": {"input": 0, "output": 0},
    }


def test_several_errors_are_joined() -> None:
    event = read(is_error=True, said=None, errors=["one", "two"], subtype="error_during_execution")
    assert isinstance(event, Error)
    assert event.details["cli_message"] == "one; two"
    assert event.details["subtype"] == "error_during_execution"


def test_a_run_whose_settings_refuse_its_tools_says_so() -> None:
    denied = [
        {"tool_name": "Write", "tool_use_id": "t1"},
        {"tool_name": "Write", "tool_use_id": "t2"},
        {"tool_name": "Bash"},
    ]
    events = run(INIT, result(permission_denials=denied))
    assert [event.info["stderr"] for event in events if isinstance(event, Status)] == [
        "Claude Code's settings refused 2 call(s) of the tool Write.",
        "Claude Code's settings refused 1 call(s) of the tool Bash.",
    ]
    assert isinstance(events[-1], Completed)


@pytest.mark.parametrize("odd", [None, {}, "x", [1, None], [{"tool_name": 5}]])
def test_denials_of_another_form_do_no_harm(odd: Any) -> None:
    assert isinstance(run(INIT, result(permission_denials=odd))[-1], Completed)
