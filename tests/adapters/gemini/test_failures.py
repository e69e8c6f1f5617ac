"""From the CLI's words and exit code to a reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from adapters.gemini.failures import Failure, api_error, message_of, reason_of


def wrapped(code: int, message: str, status: str = "X", **more: Any) -> str:
    return f"[API Error: {json.dumps({'error': {'code': code, 'message': message, 'status': status, **more}})}]"


INVALID_KEY = [{"@type": "type.googleapis.com/google.rpc.ErrorInfo", "reason": "API_KEY_INVALID"}]


@pytest.mark.parametrize(
    ("text", "code", "reason"),
    [
        (wrapped(400, "API key not valid. Please pass a valid API key.", details=INVALID_KEY), 144, "auth_rejected"),
        (wrapped(400, "API key expired. Please renew the API key."), 144, "auth_rejected"),
        (wrapped(400, "Request contains an invalid argument.", "INVALID_ARGUMENT"), 144, "cli_failed"),
        (wrapped(401, "mock", "UNAUTHENTICATED"), 145, "auth_rejected"),
        (wrapped(403, "Your API key was reported as leaked.", "PERMISSION_DENIED"), 147, "auth_rejected"),
        (wrapped(429, "Resource has been exhausted", "RESOURCE_EXHAUSTED"), 173, "rate_limited"),
        (wrapped(429, "Your prepayment credits are depleted.", "RESOURCE_EXHAUSTED"), 173, "credit_exhausted"),
        (wrapped(500, "An internal error has occurred.", "INTERNAL"), 244, "provider_unavailable"),
        (wrapped(503, "The model is overloaded.", "UNAVAILABLE"), 247, "provider_unavailable"),
        (
            "[API Error: mock RESOURCE_EXHAUSTED]\nPlease wait and try again later. To increase your limits, …",
            173,
            "rate_limited",
        ),
        ("[API Error: You have exhausted your daily quota on this model.]", None, "rate_limited"),
        ("[API Error: The model is overloaded. Please try again later.]", 247, "provider_unavailable"),
        ("[API Error: terminated]", 1, "provider_unavailable"),
        ("[API Error: exception TypeError: fetch failed sending request]", 1, "provider_unavailable"),
        ("[API Error: Incomplete JSON segment at the end]", 1, "provider_unavailable"),
        ("The model response was blocked due to safety settings.", 0, "cli_failed"),
        ("Reached max session turns for this session.", 53, "cli_failed"),
        ("status: 401 } An unexpected critical error occurred:[object Object]", 1, "auth_rejected"),
        ("", None, "cli_failed"),
    ],
)
def test_reasons(text: str, code: int | None, reason: str) -> None:
    assert reason_of(Failure(text=text, exit_code=code)) == reason


def test_errors_within_errors_are_unwrapped() -> None:
    inner = json.dumps({"error": {"code": 503, "message": "The innermost words."}}, indent=2)
    failure = Failure(text=wrapped(500, inner), exit_code=244)
    assert failure.status == 503
    assert failure.said == "The innermost words."


@pytest.mark.parametrize("text", ["", "{", '{"error": ', '{"error": 1}', '[API Error: {"error": []}]', '{"error":{}}'])
def test_what_is_no_error_object(text: str) -> None:
    assert api_error(text) == {}


def test_the_words_stand_behind_the_advice_and_are_bounded() -> None:
    failure = Failure(text=wrapped(429, "Slow\n  down. " + "x" * 1000), exit_code=173)
    message = message_of("rate_limited", failure)
    assert message.startswith("The provider's rate limit or quota is reached.")
    assert "Gemini CLI said: Slow down. x" in message
    assert len(message) < 700


def test_a_model_that_is_not_there_is_named_as_the_trouble() -> None:
    text = "[API Error: models/nope is not found for API version v1beta, or is not supported for generateContent.]"
    assert "choose another one" in message_of("cli_failed", Failure(text=text, exit_code=1))
    assert "choose another one" in message_of("cli_failed", Failure(text=wrapped(404, "no such model"), exit_code=148))
