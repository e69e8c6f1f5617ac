"""podmentor token create | list | revoke."""

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from orchestrator.api.identity import Identity
from orchestrator.api.tokens import TokenStore
from orchestrator.cli.commands.token import group
from orchestrator.config.models import Paths
from orchestrator.errors import InvalidRequestError, NotFoundError, StorageError


@dataclass
class Context:
    """Stands in for the command's context."""

    paths: Paths


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """A state directory that does not exist yet."""
    return Context(paths=Paths(state_dir=tmp_path / "state", runtime_dir=tmp_path / "run"))


def run(context: Context, *args: str) -> Result:
    """The command."""
    return CliRunner().invoke(group, list(args), obj=context)


def holder(context: Context, text: str) -> Identity:
    """Who the service says the token is."""

    async def ask() -> Identity:
        async with TokenStore(context.paths.database) as store:
            return await store.authenticate(text)

    return asyncio.run(ask())


def test_create_prints_the_token_alone_on_stdout(context: Context) -> None:
    result = run(context, "create", "codumentor", "--role", "service")
    assert result.exit_code == 0
    assert holder(context, result.stdout.strip()) == Identity(user_id="codumentor", role="service")
    assert "keep it now" in result.stderr
    assert result.stdout.strip() not in result.stderr


def test_create_as_json(context: Context) -> None:
    result = run(context, "create", "alice", "--role", "user", "--expires", "2999-01-31", "--json")
    made = json.loads(result.stdout)
    assert (made["name"], made["role"], made["expires_at"]) == ("alice", "user", "2999-01-31T00:00:00Z")
    assert holder(context, made["token"]).user_id == "alice"


def test_list_shows_all_but_the_secret(context: Context) -> None:
    made = [json.loads(run(context, "create", name, "--role", "user", "--json").stdout) for name in ("ann", "bo")]
    assert run(context, "revoke", made[0]["id"]).exit_code == 0
    result = run(context, "list")
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["ID", "NAME", "ROLE", "CREATED", "LAST", "USED", "EXPIRES", "STATE"]
    states = {line.split()[1]: line.split()[-1] for line in lines[1:]}
    assert states == {"ann": "revoked", "bo": "active"}
    listed = json.loads(run(context, "list", "--json").stdout)
    assert {item["id"] for item in listed} == {item["id"] for item in made}
    for item in made:
        assert item["token"].split("_", 2)[2] not in result.stdout + json.dumps(listed)


@pytest.mark.parametrize("span", ["90m", "12h", "30d", "8w", "2999-12-31T10:00:00+02:00"])
def test_spans_and_dates_are_understood(context: Context, span: str) -> None:
    result = run(context, "create", "alice", "--role", "user", "--expires", span, "--json")
    assert json.loads(result.stdout)["expires_at"].endswith("Z")


@pytest.mark.parametrize("span", ["", "soon", "0d", "-1d", "1y", "999999w", "2030-13-01"])
def test_what_is_no_time_is_a_usage_error(context: Context, span: str) -> None:
    result = run(context, "create", "alice", "--role", "user", "--expires", span)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "neither a span" in result.stderr


def test_the_role_must_be_said(context: Context) -> None:
    assert run(context, "create", "alice").exit_code == 2
    assert run(context, "create", "alice", "--role", "root").exit_code == 2


def test_errors_of_ours_reach_the_root_of_the_command(context: Context) -> None:
    assert isinstance(run(context, "create", "../x", "--role", "user").exception, InvalidRequestError)
    assert isinstance(
        run(context, "create", "x", "--role", "user", "--expires", "2001-01-01").exception, InvalidRequestError
    )
    assert isinstance(run(context, "revoke", "nothing").exception, NotFoundError)


@pytest.mark.parametrize("args", [[], ["create"], ["list"], ["revoke"]])
def test_help_reads_well(context: Context, args: list[str]) -> None:
    result = run(context, *args, "--help")
    assert result.exit_code == 0
    assert "Usage:" in result.stdout


def test_what_is_made_and_revoked_is_in_the_audit_log(context: Context) -> None:
    made = json.loads(run(context, "create", "codumentor", "--role", "service", "--json").stdout)
    assert run(context, "revoke", made["id"]).exit_code == 0
    created, revoked = [json.loads(line) for line in context.paths.audit_log.read_text().splitlines()]
    assert (created["event"], created["token_id"], created["role"]) == ("token.created", made["id"], "service")
    assert created["actor"].startswith("command:uid ")
    assert (revoked["event"], revoked["token_id"]) == ("token.revoked", made["id"])
    assert made["token"].split("_", 2)[2] not in context.paths.audit_log.read_text()


def test_a_token_that_cannot_be_noted_is_not_given_out(context: Context) -> None:
    context.paths.state_dir.mkdir()
    context.paths.audit_log.mkdir()
    result = run(context, "create", "codumentor", "--role", "service")
    assert isinstance(result.exception, StorageError)
    assert result.stdout == ""
    assert run(context, "list").stdout.splitlines()[1].endswith("revoked")
