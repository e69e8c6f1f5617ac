import pytest

from adapters.claude_code.failures import Failure, message_of, reason_of

AUTH, UNKNOWN = "authentication_failed", "unknown"


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        # as recorded
        (Failure(text="Invalid API key · Fix external API key", kind=AUTH, status=401), "auth_rejected"),
        (Failure(text="Failed to authenticate. API Error: 403 Your API key …", kind=AUTH, status=403), "auth_rejected"),
        (Failure(text="Not logged in · Please run /login", kind=AUTH), "auth_required"),
        (Failure(text="Credit balance is too low", kind="billing_error", status=400), "credit_exhausted"),
        (Failure(text="API Error: Request rejected (429) · …", kind="rate_limit", status=429), "rate_limited"),
        (
            Failure(text="API Error: 500 Internal server error.", kind="server_error", status=500),
            "provider_unavailable",
        ),
        (Failure(text="API Error: Repeated 529 Overloaded errors.", kind="server_error"), "provider_unavailable"),
        (Failure(text="API Error: Overloaded", kind=UNKNOWN), "provider_unavailable"),
        (Failure(text="API Error: Connection closed mid-response. …", kind="server_error"), "provider_unavailable"),
        (Failure(text="API Error: Unable to connect to API (ECONNRESET)", kind=UNKNOWN), "provider_unavailable"),
        (Failure(text="No conversation found with session ID: x", ending="error_during_execution"), "resume_failed"),
        (Failure(text="Error: --resume requires a valid session ID or session title …"), "resume_failed"),
        (Failure(text="API Error: 400 messages: bad request", kind=UNKNOWN, status=400), "cli_failed"),
        (Failure(text="There's an issue with the selected model", kind="model_not_found", status=404), "cli_failed"),
        (Failure(text="API Error: Claude's response exceeded the 64000 …", kind="max_output_tokens"), "cli_failed"),
        (Failure(text="Reached maximum number of turns (1)", ending="max_turns"), "cli_failed"),
        (Failure(text="[ede_diagnostic] result_type=user", ending="aborted_tools"), "cli_failed"),
        # as other releases and accounts have it
        (Failure(text="Invalid API key · Please run /login"), "auth_rejected"),
        (Failure(text="OAuth token has expired · Please run /login", kind=AUTH, status=401), "auth_rejected"),
        (Failure(text="OAuth token revoked · Please run /login"), "auth_rejected"),
        (Failure(text="Your organization does not have access", kind="oauth_org_not_allowed"), "auth_rejected"),
        (Failure(text="API Error: 400 Your credit balance is too low to access the API"), "credit_exhausted"),
        (Failure(text="You're out of extra usage"), "credit_exhausted"),
        (Failure(text="payment required", status=402), "credit_exhausted"),
        (Failure(text="Claude AI usage limit reached|1796000000"), "rate_limited"),
        (Failure(text="You've hit your weekly limit · resets 3pm"), "rate_limited"),
        (Failure(text='API Error: 529 {"type":"error"}'), "provider_unavailable"),
        (Failure(text="API Error: Connection error."), "provider_unavailable"),
        (Failure(text="API Error: Request timed out. Check your internet connection"), "provider_unavailable"),
        (Failure(text="busy", kind="overloaded"), "provider_unavailable"),
        # words of the agent must not be taken for the CLI's
        (Failure(text="the socket test timed out"), "cli_failed"),
        (Failure(text=""), "cli_failed"),
    ],
)
def test_reasons(failure: Failure, reason: str) -> None:
    assert reason_of(failure) == reason


@pytest.mark.parametrize(
    ("failure", "begins"),
    [
        (Failure(text="x", ending="error_max_turns"), "The agent reached its limit of turns."),
        (Failure(text="x", ending="error_max_budget_usd"), "The agent reached its budget."),
        (Failure(text="x", kind="max_output_tokens"), "The answer was longer than the model may write."),
        (Failure(text="Not logged in"), "There is nothing to log in with."),
        (Failure(text="whatever"), "Claude Code could not finish the run."),
    ],
)
def test_messages_say_what_to_do_and_what_the_cli_said(failure: Failure, begins: str) -> None:
    message = message_of(reason_of(failure), failure)
    assert message.startswith(begins)
    assert message.endswith(f"Claude Code said: {failure.text}")


def test_what_the_cli_prints_for_its_developers_is_left_out() -> None:
    failure = Failure(text="[ede_diagnostic] stop_reason=null", ending="aborted_streaming")
    assert message_of(reason_of(failure), failure) == "The agent was interrupted before it had finished."


def test_long_words_are_cut_to_one_line() -> None:
    message = message_of("cli_failed", Failure(text="a\nb " * 1000))
    assert "\n" not in message
    assert len(message) < 600
