import json
import shutil
import subprocess
import tomllib
from pathlib import Path
from uuid import uuid4

import pytest

from adapters.codex import CodexAdapter
from adapters.codex.adapter import FLAGS
from orchestrator.contract.types import Credentials
from orchestrator.errors import InvalidRequestError

THREAD = "01a22c46-1840-7db1-985e-ce0c36d3d48e"


def argv(session_id: str | None = None) -> list[str]:
    return CodexAdapter().build_argv(prompt="do it", session_id=session_id, cwd=Path("/workspace"))


def test_c7_a_thread_is_resumed_by_its_position() -> None:
    assert argv() == ["codex", "exec", *FLAGS, "-"]
    assert argv(THREAD) == ["codex", "exec", "resume", *FLAGS, THREAD, "-"]


def test_it_runs_unattended_in_the_containers_own_sandbox_and_looks_for_no_other_host() -> None:
    words = " ".join(argv())
    assert "--dangerously-bypass-approvals-and-sandbox --skip-git-repo-check" in words
    assert "-c analytics.enabled=false --disable plugins --disable apps --disable remote_plugin" in words


@pytest.mark.parametrize(
    "bad",
    ["", "-x", "--last", "a thread by name", THREAD + "\n", THREAD[:-1], THREAD.replace("-", ""), f"urn:uuid:{THREAD}"],
)
def test_a_word_for_which_the_cli_would_silently_begin_a_new_thread_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        argv(bad)


def test_the_gateway_is_a_provider_of_our_own_with_few_and_visible_retries() -> None:
    words = CodexAdapter().gateway_argv("http://127.0.0.1:8080")
    assert words[::2] == ["-c", "-c"]
    config = tomllib.loads("\n".join(words[1::2]))
    assert config["model_provider"] == "podmentor"
    assert config["model_providers"]["podmentor"] == {
        "name": "podmentor",
        "base_url": "http://127.0.0.1:8080/v1",
        "env_key": "OPENAI_API_KEY",
        "wire_api": "responses",
        "request_max_retries": 0,
        "stream_max_retries": 4,
    }


def test_c7_the_key_has_both_names() -> None:
    env = CodexAdapter().build_env(creds=Credentials(api_key="token"), home=Path("/home/agent"))
    assert env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "CODEX_API_KEY": "token",
        "OPENAI_API_KEY": "token",
    }


def test_codex_home_is_left_to_the_cli_which_makes_it_only_then() -> None:
    assert "CODEX_HOME" not in CodexAdapter().build_env(creds=Credentials(api_key="token"), home=None)


def test_the_operator_may_add_variables_but_not_change_the_key() -> None:
    extra = {"RUST_LOG": "warn", "OPENAI_API_KEY": "theirs"}
    env = CodexAdapter().build_env(creds=Credentials(api_key="ours", extra_env=extra), home=None)
    assert (env["RUST_LOG"], env["OPENAI_API_KEY"]) == ("warn", "ours")


def test_with_a_subscription_there_is_a_home_and_no_key() -> None:
    env = CodexAdapter().build_env(creds=Credentials(home=Path("/homes/ann")), home=None)
    assert env["HOME"] == "/homes/ann"
    assert not {"CODEX_API_KEY", "OPENAI_API_KEY"} & env.keys()


def test_c3_the_documented_hosts_come_first() -> None:
    hosts = CodexAdapter.default_allowed_egress
    assert hosts[:2] == ["api.openai.com", "auth.openai.com"]
    assert hosts[2:] == ["chatgpt.com"]


def test_c7_name_binary_and_abilities() -> None:
    adapter = CodexAdapter()
    assert (adapter.name, adapter.binary) == ("codex", "codex")
    assert adapter.supports_resume
    assert adapter.supports_stream_json
    assert not adapter.capabilities.deltas
    assert adapter.gateway.path_prefixes == ("/v1/responses", "/v1/models")


@pytest.mark.parametrize(
    ("exit_code", "stderr", "installed", "authenticated", "error"),
    [
        (0, "Logged in using ChatGPT", True, True, None),
        (1, "Not logged in", True, False, "not logged in"),
        (1, "Logged in using ChatGPT\nauth.json holds no login", True, False, "holds no login"),
        (127, "sh: codex: not found", False, False, "cannot be run"),
        (1, "", True, False, "no output"),
    ],
)
def test_the_probe_is_read(
    exit_code: int, stderr: str, installed: bool, authenticated: bool, error: str | None
) -> None:
    status = CodexAdapter().read_probe(exit_code=exit_code, stdout="", stderr=stderr)
    assert (status.installed, status.authenticated) == (installed, authenticated)
    assert (status.error is None) == (error is None)
    assert (error or "") in (status.error or "")


@pytest.mark.parametrize(
    ("login", "cli_says", "exit_code"),
    [
        ({"OPENAI_API_KEY": "k"}, 0, 0),
        ({"tokens": {"access_token": "t"}}, 0, 0),
        ({}, 0, 1),
        ({"OPENAI_API_KEY": "", "tokens": {}}, 0, 1),
        (None, 0, 1),
        (None, 1, 1),
    ],
)
def test_the_probe_looks_into_the_login_that_the_cli_takes_for_one(
    tmp_path: Path, login: dict[str, object] | None, cli_says: int, exit_code: int
) -> None:
    if shutil.which("jq") is None:
        pytest.skip("jq is in the image, not here")
    fake = tmp_path / "bin" / "codex"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\nexit {cli_says}\n")
    fake.chmod(0o755)
    home = tmp_path / str(uuid4())
    (home / ".codex").mkdir(parents=True)
    if login is not None:
        (home / ".codex" / "auth.json").write_text(json.dumps(login))
    command = CodexAdapter().probe_argv()
    assert command is not None
    env = {"PATH": f"{fake.parent}:/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == exit_code, done.stderr
    assert not done.stdout


def test_the_model_is_chosen_on_the_command_line() -> None:
    assert CodexAdapter().model_argv("m") == ["-m", "m"]
    assert CodexAdapter().model_env("m") == {}
