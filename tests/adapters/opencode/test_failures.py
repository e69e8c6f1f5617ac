import pytest

from adapters.opencode.failures import Failure, message_of, plain, reason_of, words
from orchestrator.events import ErrorReason


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (Failure(text="\x1b[91m\x1b[1mError: \x1b[0mSession not found"), "resume_failed"),
        (Failure(text="Incorrect API key provided.", status=401), "auth_rejected"),
        (Failure(text="Forbidden", status=403), "auth_rejected"),
        (Failure(text="whatever", name="ProviderAuthError"), "auth_rejected"),
        (Failure(text="Incorrect API key provided."), "auth_rejected"),
        (Failure(text="Token refresh failed: 400", name="UnknownError"), "auth_rejected"),
        (Failure(text="Token refresh failed: 503", name="UnknownError"), "provider_unavailable"),
        (Failure(text="OpenAI API key is missing."), "auth_required"),
        (Failure(text="You exceeded your current quota", status=429), "credit_exhausted"),
        (Failure(text="x", status=429, body='{"error": {"code": "insufficient_quota"}}'), "credit_exhausted"),
        (Failure(text="Your credit balance is too low", status=400), "credit_exhausted"),
        (Failure(text="x", status=402), "credit_exhausted"),
        (Failure(text="Rate limit reached", status=429), "rate_limited"),
        (Failure(text="Too Many Requests"), "rate_limited"),
        (Failure(text="The server had an error", status=500), "provider_unavailable"),
        (Failure(text="x", status=529), "provider_unavailable"),
        (Failure(text="Connection reset by server"), "provider_unavailable"),
        (Failure(text="Unable to connect. Is the computer able to access the url?"), "provider_unavailable"),
        (Failure(text="Provider is overloaded"), "provider_unavailable"),
        (Failure(text="podmentor: chatgpt.com:443 denied: not on the list", status=403), "provider_unavailable"),
        (Failure(text="Bad request about a connection", status=400), "cli_failed"),
        (Failure(text="The model does not exist", status=404), "cli_failed"),
        (Failure(text="network", name="MessageOutputLengthError"), "cli_failed"),
        (Failure(text=""), "cli_failed"),
    ],
)
def test_reasons(failure: Failure, reason: ErrorReason) -> None:
    assert reason_of(failure) == reason


@pytest.mark.parametrize(
    ("failure", "part"),
    [
        (Failure(text="x", status=404), "Check model and base_url"),
        (Failure(text="", name="MessageOutputLengthError"), "longer than the model may write"),
        (Failure(text="", name="ContextOverflowError"), "Start a new one"),
        (Failure(text="podmentor: chatgpt.com:443 denied: not on the list", status=403), "allowed_egress"),
        (Failure(text="odd"), "OpenCode could not finish the run. OpenCode said: odd"),
    ],
)
def test_a_message_says_what_to_do(failure: Failure, part: str) -> None:
    assert part in message_of(reason_of(failure), failure)


def test_a_message_is_short_and_without_colours() -> None:
    message = message_of("cli_failed", Failure(text="\x1b[91mred\x1b[0m\n" + "x" * 5000))
    assert "\x1b" not in message
    assert len(message) < 700


def test_details_hold_what_is_known() -> None:
    assert Failure(text="t").details() == {"cli_message": "t"}
    assert Failure(text="t", status=429, retries=3, retry_after_ms=10, name="APIError").details() == {
        "kind": "APIError",
        "http_status": 429,
        "cli_message": "t",
        "retries": 3,
        "retry_after_ms": 10,
    }


def test_plain() -> None:
    assert plain("\x1b[91m\x1b[1mError: \x1b[0mx") == "Error: x"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ('{"message":"Overloaded","type":"server_error"}', "Overloaded"),
        ('{"error":"x"}', '{"error":"x"}'),
        ('{"message":5}', '{"message":5}'),
        ("{broken", "{broken"),
        ("as it is", "as it is"),
    ],
)
def test_words(text: str, reported: str) -> None:
    assert words(text) == reported
