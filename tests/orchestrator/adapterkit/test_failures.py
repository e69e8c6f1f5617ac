import pytest

from orchestrator.adapterkit.failures import last_words, not_in_image, with_words, without_end


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [(None, "ended"), (1, "ended with exit code 1"), (137, "was ended by signal 9")],
)
def test_how_a_cli_ended_without_a_result(exit_code: int | None, how: str) -> None:
    assert without_end("Acme", exit_code, "") == f"Acme {how} without a result."


def test_exit_codes_that_are_no_signals_are_not_called_so() -> None:
    assert without_end("Acme", 147, "", signals={137}) == "Acme ended with exit code 147 without a result."
    assert without_end("Acme", 137, "", signals={137}) == "Acme was ended by signal 9 without a result."


def test_what_was_said_goes_with_the_message() -> None:
    assert without_end("Acme", 1, "boom") == (
        "Acme ended with exit code 1 without a result. Its last words on stderr: boom"
    )
    assert with_words("Try again.", "Acme", " a\n b ") == "Try again. Acme said: a b"
    assert with_words("Try again.", "Acme", " \n") == "Try again."
    assert last_words("first\n  last \n\n") == "last"
    assert last_words("") == ""


def test_a_cli_that_is_not_there() -> None:
    error = not_in_image("Acme", {"exit_code": 127})
    assert (error.reason, error.details) == ("cli_not_installed", {"exit_code": 127})
    assert "Build the image" in error.message
