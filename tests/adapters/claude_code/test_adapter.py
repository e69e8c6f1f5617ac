import json
from pathlib import Path

import pytest

from adapters.claude_code import ClaudeCodeAdapter
from orchestrator.contract.types import Credentials
from orchestrator.errors import InvalidRequestError

SESSION = "aa3d8234-24b7-42f4-a166-c7a1af21a8a0"
STEM = ["claude", "--print", "--output-format", "stream-json", "--input-format", "text", "--verbose"]
ADDED = ["--include-partial-messages", "--dangerously-skip-permissions"]


def argv(session_id: str | None = None) -> list[str]:
    return ClaudeCodeAdapter().build_argv(prompt="do it", session_id=session_id, cwd=Path("/workspace"))


def test_a_prompt_is_no_command() -> None:
    assert ClaudeCodeAdapter().stdin_of("/login page returns 404") == "\n/login page returns 404"
    assert ClaudeCodeAdapter().stdin_of("fix /login") == "fix /login"


def test_c5_the_documented_stem_comes_first_and_unchanged() -> None:
    assert argv() == [*STEM, *ADDED]
    assert argv(SESSION) == [*STEM, "--resume", SESSION, *ADDED]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "-x",
        "--version",
        "nope",
        SESSION + "\n",
        SESSION[:-1],
        "{" + SESSION + "}",
        SESSION.replace("-", ""),
        f"urn:uuid:{SESSION}",
    ],
)
def test_c5_only_a_session_id_of_the_cli_is_passed_on(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        argv(bad)


def test_c6_the_environment_is_exactly_this() -> None:
    env = ClaudeCodeAdapter().build_env(creds=Credentials(api_key="token"), home=Path("/home/agent"))
    assert env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "ANTHROPIC_API_KEY": "token",
        "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_RETRIES": "3",
        "CLAUDE_CODE_TMPDIR": "/tmp",
        "TMPDIR": "/tmp",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def test_c6_the_operator_may_change_settings_but_not_the_key() -> None:
    extra = {"CLAUDE_CODE_MAX_RETRIES": "0", "ANTHROPIC_API_KEY": "theirs", "ANTHROPIC_MODEL": "small"}
    env = ClaudeCodeAdapter().build_env(creds=Credentials(api_key="ours", extra_env=extra), home=None)
    assert env["CLAUDE_CODE_MAX_RETRIES"] == "0"
    assert env["ANTHROPIC_MODEL"] == "small"
    assert env["ANTHROPIC_API_KEY"] == "ours"


def test_with_a_subscription_there_is_a_home_and_no_key() -> None:
    env = ClaudeCodeAdapter().build_env(creds=Credentials(home=Path("/homes/ann")), home=None)
    assert env["HOME"] == "/homes/ann"
    assert "ANTHROPIC_API_KEY" not in env


def test_c3_the_documented_hosts_come_first() -> None:
    hosts = ClaudeCodeAdapter.default_allowed_egress
    assert hosts[:2] == ["api.anthropic.com", "statsig.anthropic.com"]
    assert hosts[2:] == ["platform.claude.com"]


def test_the_gateway_lets_messages_and_models_through() -> None:
    adapter = ClaudeCodeAdapter()
    assert adapter.gateway_env("http://127.0.0.1:8080") == {"ANTHROPIC_BASE_URL": "http://127.0.0.1:8080"}
    assert adapter.gateway.upstream == "https://api.anthropic.com"
    assert set(adapter.gateway.key_headers) == {"x-api-key", "authorization"}
    assert adapter.gateway.path_prefixes == ("/v1/messages", "/v1/models")


def test_the_binary_can_be_another_one() -> None:
    adapter = ClaudeCodeAdapter()
    assert adapter.probe_argv() == ["claude", "auth", "status"]
    assert argv()[0] == adapter.binary


@pytest.mark.parametrize(
    ("exit_code", "stdout", "installed", "authenticated"),
    [
        (0, {"loggedIn": True, "authMethod": "api_key", "apiProvider": "firstParty"}, True, True),
        (0, {"loggedIn": True, "authMethod": "claude.ai", "subscriptionType": "max"}, True, True),
        (1, {"loggedIn": False, "authMethod": "none", "apiProvider": "firstParty"}, True, False),
        (0, {"loggedIn": "yes"}, True, False),
        (0, {}, True, False),
        (127, None, False, False),
        (126, None, False, False),
    ],
)
def test_the_probe_reads_logged_in(
    exit_code: int, stdout: dict[str, object] | None, installed: bool, authenticated: bool
) -> None:
    text = "" if stdout is None else json.dumps(stdout, indent=2)
    status = ClaudeCodeAdapter().read_probe(exit_code=exit_code, stdout=text, stderr="")
    assert (status.installed, status.authenticated) == (installed, authenticated)
    assert (status.error is None) == authenticated


def test_a_probe_that_prints_something_else_says_what() -> None:
    status = ClaudeCodeAdapter().read_probe(exit_code=1, stdout="", stderr="EROFS: read-only file system")
    assert status.installed
    assert not status.authenticated
    assert "EROFS" in str(status.error)


def test_the_model_is_chosen_on_the_command_line() -> None:
    assert ClaudeCodeAdapter().model_argv("m") == ["--model", "m"]
    assert ClaudeCodeAdapter().model_env("m") == {}
