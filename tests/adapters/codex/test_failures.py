import json

import pytest

from adapters.codex.failures import message_of, reason_of, said, status_of
from orchestrator.events import ErrorReason


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "unexpected status 401 Unauthorized: Incorrect API key provided: x., url: http://h/v1/responses",
            "auth_rejected",
        ),
        ("unexpected status 403 Forbidden: Forbidden, url: http://h", "auth_rejected"),
        ("Incorrect API key provided", "auth_rejected"),
        ("Your access token could not be refreshed because your refresh token was revoked.", "auth_rejected"),
        ("Missing environment variable: `OPENAI_API_KEY`.", "auth_required"),
        ("Not logged in. Run codex login", "auth_required"),
        ("exceeded retry limit, last status: 429 Too Many Requests, request id: r", "rate_limited"),
        ("You've hit your usage limit. Try again at 3 PM.", "rate_limited"),
        ("unexpected status 402 Payment Required: x", "credit_exhausted"),
        ("Quota exceeded. Check your plan and billing details.", "credit_exhausted"),
        ("exceeded retry limit, last status: 429 (insufficient_quota)", "credit_exhausted"),
        ("We\u2019re currently experiencing high demand, which may cause temporary errors.", "provider_unavailable"),
        ("Selected model is at capacity. Please try a different model.", "provider_unavailable"),
        ("unexpected status 529 <unknown status code>: x", "provider_unavailable"),
        ("unexpected status 502 Bad Gateway: x", "provider_unavailable"),
        ("stream disconnected before completion: Overloaded", "provider_unavailable"),
        ("stream disconnected before completion: idle timeout waiting for SSE", "provider_unavailable"),
        ("error sending request for url (http://h)", "provider_unavailable"),
        ("workspace routing discovery failed", "provider_unavailable"),
        ("thread/resume failed: no rollout found for thread id x (code -32600)", "resume_failed"),
        ("Incomplete response returned, reason: max_output_tokens", "cli_failed"),
        ("stream disconnected before completion: Incomplete response returned, reason: content_filter", "cli_failed"),
        ("The model does not exist", "cli_failed"),
        ("unexpected status 413 Payload Too Large: network", "cli_failed"),
        ("Codex ran out of room in the model's context window.", "cli_failed"),
        ("", "cli_failed"),
    ],
)
def test_the_reason_follows_from_the_words(text: str, reason: ErrorReason) -> None:
    assert reason_of(text) == reason


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("unexpected status 401 x", 401),
        ("last status: 429 x", 429),
        ("status 500", None),
        ("", None),
    ],
)
def test_the_status_is_found(text: str, status: int | None) -> None:
    assert status_of(text) == status


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (json.dumps({"error": {"message": "Bad request", "code": None}}), "Bad request"),
        (json.dumps({"error": {"message": "No", "code": "insufficient_quota"}}), "No (insufficient_quota)"),
        (json.dumps({"error": "No"}), '{"error": "No"}'),
        ("[1]", "[1]"),
        ("plain words", "plain words"),
    ],
)
def test_an_answer_shown_as_it_came_is_read(message: str, words: str) -> None:
    assert said(message) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Incomplete response returned, reason: max_output_tokens", "Ask for less"),
        ("Incomplete response returned, reason: content_filter", "content filter"),
        ("Incomplete response returned, reason: whim", "not complete"),
        ("Codex ran out of room in the model's context window.", "Start a new one"),
        ("The model does not exist", "Choose another one"),
        ("odd", "could not finish"),
    ],
)
def test_a_message_says_what_to_do_and_what_codex_said(text: str, words: str) -> None:
    message = message_of("cli_failed", text)
    assert words in message
    assert message.endswith(f"Codex said: {text}")


def test_a_message_without_words_is_the_advice_alone() -> None:
    assert "Codex said" not in message_of("rate_limited", " \n")


def test_a_limit_that_resets_later_is_a_rate_limit_with_its_time() -> None:
    """What Codex makes of the gateway's ``usage_limit_reached``."""
    words = "You\u2019ve hit your usage limit. Try again at 3:43 AM."
    assert reason_of(words) == "rate_limited"
    assert "Try again at 3:43 AM." in message_of("rate_limited", words)
