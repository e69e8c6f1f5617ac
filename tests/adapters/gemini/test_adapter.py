import json
from pathlib import Path

import pytest

from adapters.gemini import GeminiAdapter, GeminiOneshotAdapter
from adapters.gemini.adapter import RAW
from images.catalogue import RECIPES
from orchestrator.contract.types import Credentials
from orchestrator.errors import InvalidRequestError
from orchestrator.events import SessionStarted
from orchestrator.testing.conformance import ADAPTER_CONTRACTS, RECORDING_CONTRACTS, Recording, load_all
from orchestrator.testing.kit import Contract, Subject
from tests.adapters.registered import RECORDINGS

SESSION = "aa3d8234-24b7-42f4-a166-c7a1af21a8a0"
ARGV = ["gemini", "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust", *RAW]


def argv(session_id: str | None = None) -> list[str]:
    return GeminiAdapter().build_argv(prompt="do it", session_id=session_id, cwd=Path("/workspace"))


def test_the_command_line_streams_and_resumes() -> None:
    assert argv() == ARGV
    assert argv(SESSION) == [*ARGV, "--resume", SESSION]


@pytest.mark.parametrize("bad", ["", "-x", "latest", "1", SESSION + "\n", SESSION[:-1], SESSION.replace("-", "")])
def test_only_a_session_id_of_the_cli_is_passed_on(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        argv(bad)


def test_the_environment_is_exactly_this() -> None:
    env = GeminiAdapter().build_env(creds=Credentials(api_key="token"), home=Path("/home/agent"))
    assert env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "GEMINI_API_KEY": "token",
        "GEMINI_MODEL": "flash",
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_CLI_SYSTEM_SETTINGS_PATH": "/etc/podmentor/gemini.json",
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "NO_COLOR": "1",
        "TMPDIR": "/tmp",
    }


def test_the_operator_may_change_the_model_but_not_the_key() -> None:
    extra = {"GEMINI_MODEL": "gemini-2.5-pro", "GEMINI_API_KEY": "theirs"}
    env = GeminiAdapter().build_env(creds=Credentials(api_key="ours", extra_env=extra), home=None)
    assert (env["GEMINI_MODEL"], env["GEMINI_API_KEY"]) == ("gemini-2.5-pro", "ours")


def test_c3_the_documented_hosts_and_no_others() -> None:
    assert GeminiAdapter.default_allowed_egress == ["generativelanguage.googleapis.com", "oauth2.googleapis.com"]
    assert GeminiAdapter.supports_byo_subscription is False


def test_the_gateway_lets_the_models_through() -> None:
    adapter = GeminiAdapter()
    assert adapter.gateway_env("http://127.0.0.1:8080") == {"GOOGLE_GEMINI_BASE_URL": "http://127.0.0.1:8080"}
    assert adapter.gateway.upstream == "https://generativelanguage.googleapis.com"
    assert adapter.gateway.key_headers == ("x-goog-api-key",)
    assert all(prefix.endswith("/models") for prefix in adapter.gateway.path_prefixes)


def test_the_settings_in_the_image_keep_the_cli_quiet_and_bounded() -> None:
    settings = json.loads((RECIPES / "gemini" / "settings.json").read_text())
    assert settings["security"]["auth"]["selectedType"] == "gemini-api-key"
    assert settings["privacy"]["usageStatisticsEnabled"] is False
    assert settings["telemetry"]["enabled"] is False
    assert settings["general"] == {
        "maxAttempts": 3,
        "defaultApprovalMode": "default",
        "enableAutoUpdate": False,
        "enableAutoUpdateNotification": False,
        "sessionRetention": {"enabled": False},
    }


@pytest.mark.parametrize("prompt", ["--help is not shown", "-x", "/login page returns 404"])
def test_a_prompt_is_no_option_and_no_command(prompt: str) -> None:
    found = GeminiOneshotAdapter().build_argv(prompt=prompt, session_id=None, cwd=Path("/workspace"))
    assert found == ["gemini", "--prompt", f"\n{prompt}"]


def test_a_prompt_on_stdin_is_no_command() -> None:
    assert GeminiAdapter().stdin_of("/login page returns 404") == "\n/login page returns 404"
    assert GeminiAdapter().stdin_of("--help") == "--help"


def test_c9_the_documented_mode_has_the_prompt_as_its_argument_and_no_session() -> None:
    adapter = GeminiOneshotAdapter()
    for session_id in (None, SESSION):
        found = adapter.build_argv(prompt="do it", session_id=session_id, cwd=Path("/workspace"))
        assert found == ["gemini", "--prompt", "do it"]
    assert (adapter.name, adapter.binary) == ("gemini", "gemini")
    assert (adapter.supports_resume, adapter.supports_stream_json) == (False, False)
    assert adapter.extract_session_id(SessionStarted(session_id=SESSION)) is None
    assert GeminiAdapter.oneshot is GeminiOneshotAdapter


def test_c9_a_prompt_that_no_argument_can_hold_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="120000 bytes"):
        GeminiOneshotAdapter().build_argv(prompt="ü" * 60_001, session_id=None, cwd=Path("/workspace"))


@pytest.mark.parametrize("contract", ADAPTER_CONTRACTS, ids=str)
def test_c9_the_documented_mode_keeps_the_contracts(contract: Contract[[Subject]]) -> None:
    contract(GeminiOneshotAdapter())


@pytest.mark.parametrize("recording", load_all(RECORDINGS / "gemini-oneshot"), ids=lambda recording: recording.name)
@pytest.mark.parametrize("contract", RECORDING_CONTRACTS, ids=str)
def test_c9_recordings_of_the_documented_mode(contract: Contract[[Subject, Recording]], recording: Recording) -> None:
    contract(GeminiOneshotAdapter(), recording)


def test_the_model_is_chosen_on_the_command_line() -> None:
    assert GeminiAdapter().model_argv("m") == ["-m", "m"]
    assert GeminiAdapter().model_env("m") == {}
