import pytest

from orchestrator.adapterkit.command import cannot_be_run, no_command, output_tail, uuid_session
from orchestrator.errors import InvalidRequestError

ID = "7b0cf0f5-6c6c-4d55-9f0e-0e9d6a3b8f11"


@pytest.mark.parametrize("session_id", [ID, ID.upper()])
def test_a_uuid_is_taken_as_it_is(session_id: str) -> None:
    assert uuid_session(session_id, backend="acme", what="an Acme session id") == session_id


@pytest.mark.parametrize("session_id", ["", "--version", "latest", f"{{{ID}}}", ID.replace("-", ""), f"urn:uuid:{ID}"])
def test_anything_else_is_refused(session_id: str) -> None:
    with pytest.raises(InvalidRequestError, match="not an Acme session id"):
        uuid_session(session_id, backend="acme", what="an Acme session id")


def test_a_probe_that_did_not_run() -> None:
    status = cannot_be_run("acme", "exec: not found\n")
    assert (status.installed, status.authenticated, status.error) == (
        False,
        False,
        "acme cannot be run: exec: not found",
    )
    assert output_tail(" \n") == "no output"


@pytest.mark.parametrize("prompt", ["/login page returns 404, fix it", "/", "/a/path is missing"])
def test_a_prompt_that_begins_with_a_slash_is_no_command(prompt: str) -> None:
    assert no_command(prompt) == f"\n{prompt}"


@pytest.mark.parametrize("prompt", ["fix /login", "@note.txt", "!ls", "# x", "-x", " /x", ""])
def test_every_other_prompt_stays_as_it_is(prompt: str) -> None:
    assert no_command(prompt) == prompt
