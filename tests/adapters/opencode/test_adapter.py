import json
from pathlib import Path
from typing import Any

import pytest

from adapters.opencode import OpenCodeAdapter
from orchestrator.contract.types import Credentials
from orchestrator.errors import InvalidRequestError
from tests.adapters.registered import ROOT

SESSION = "ses_dd3b60b1bffeEikA0WhWEP751b"
STEM = ["opencode", "run", "--format", "json", "--auto", "--thinking"]
GATEWAY = "http://127.0.0.1:8080"
RECIPE = ROOT / "Containerfiles" / "opencode"


def argv(session_id: str | None = None) -> list[str]:
    return OpenCodeAdapter().build_argv(prompt="do it", session_id=session_id, cwd=Path("/workspace"))


def env(extra: dict[str, str] | None = None, *, key: str | None = "token") -> dict[str, str]:
    adapter = OpenCodeAdapter()
    gateway = adapter.gateway_env(GATEWAY) if key else {}
    creds = Credentials(api_key=key, extra_env={**(extra or {}), **gateway})
    return adapter.build_env(creds=creds, home=Path("/home/agent"))


def config(extra: dict[str, str] | None = None, *, key: str | None = "token") -> dict[str, Any]:
    found = json.loads(env(extra, key=key)["OPENCODE_CONFIG_CONTENT"])
    assert isinstance(found, dict)
    return found


def test_c8_the_documented_attributes() -> None:
    adapter = OpenCodeAdapter
    assert (adapter.name, adapter.binary) == ("opencode", "opencode")
    assert (adapter.supports_resume, adapter.supports_stream_json) == (True, True)


def test_c3_the_documented_hosts_come_first() -> None:
    documented = ["api.anthropic.com", "api.openai.com", "openrouter.ai", "generativelanguage.googleapis.com"]
    assert OpenCodeAdapter.default_allowed_egress[:4] == documented
    assert OpenCodeAdapter.default_allowed_egress[4:] == ["auth.openai.com", "chatgpt.com"]


def test_a_new_session_has_a_title_and_a_resumed_one_its_id() -> None:
    assert argv() == [*STEM, "--title", "podmentor"]
    assert argv(SESSION) == [*STEM, "--session", SESSION]


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "-x",
        "--version",
        "ses_",
        "nope",
        SESSION + "\n",
        SESSION + "/..",
        "ses_" + "a" * 65,
        "7b0cf0f5-6c6c-4d55-9f0e-0e9d6a3b8f11",
    ],
)
def test_only_a_session_id_of_the_cli_is_passed_on(bad: str) -> None:
    with pytest.raises(InvalidRequestError):
        argv(bad)


def test_the_environment_is_exactly_this() -> None:
    found = env()
    assert found.pop("OPENCODE_CONFIG_CONTENT")
    assert found == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/home/agent",
        "LANG": "C.UTF-8",
        "XDG_CONFIG_HOME": "/etc/podmentor",
        "OPENCODE_API_KEY": "token",
        "OPENCODE_MODELS_PATH": "/etc/podmentor/opencode/models.json",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
        "OPENCODE_DISABLE_SHARE": "1",
        "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER": "1",
    }


def test_the_configuration_has_one_provider_and_no_key() -> None:
    assert config() == {
        "autoupdate": False,
        "share": "disabled",
        "snapshot": False,
        "enabled_providers": ["gateway"],
        "provider": {
            "gateway": {
                "npm": "@ai-sdk/openai-compatible",
                "name": "gateway",
                "options": {"baseURL": GATEWAY, "apiKey": "{env:OPENCODE_API_KEY}"},
                "models": {"gpt-5.5": {}},
            }
        },
        "model": "gateway/gpt-5.5",
        "small_model": "gateway/gpt-5.5",
    }


def test_the_operator_chooses_the_model() -> None:
    chosen = config({"OPENCODE_MODEL": "anthropic/claude-sonnet"})
    assert chosen["model"] == chosen["small_model"] == "gateway/anthropic/claude-sonnet"
    assert chosen["provider"]["gateway"]["models"] == {"anthropic/claude-sonnet": {}}


def test_the_operators_configuration_is_laid_over_ours() -> None:
    theirs = {
        "snapshot": True,
        "provider": {"gateway": {"models": {"gpt-5.5": {"limit": {"context": 9, "output": 1}}}}},
    }
    merged = config({"OPENCODE_CONFIG_CONTENT": json.dumps(theirs)})
    assert merged["snapshot"] is True
    assert merged["share"] == "disabled"
    assert merged["provider"]["gateway"]["models"]["gpt-5.5"]["limit"]["context"] == 9
    assert merged["provider"]["gateway"]["options"]["baseURL"] == GATEWAY
    assert config()["snapshot"] is False  # nothing of it is remembered


@pytest.mark.parametrize("bad", ["{", "[]", '"x"'])
def test_a_configuration_that_is_no_object_is_refused(bad: str) -> None:
    with pytest.raises(InvalidRequestError, match="OPENCODE_CONFIG_CONTENT"):
        env({"OPENCODE_CONFIG_CONTENT": bad})


def test_the_operator_may_change_settings_but_not_the_key() -> None:
    found = env({"OPENCODE_DISABLE_SHARE": "0", "OPENCODE_API_KEY": "theirs", "OPENCODE_MAX_RETRIES": "1"})
    assert found["OPENCODE_DISABLE_SHARE"] == "0"
    assert found["OPENCODE_MAX_RETRIES"] == "1"
    assert found["OPENCODE_API_KEY"] == "token"


def test_with_a_login_of_its_own_opencode_has_its_catalogue_and_its_plugins() -> None:
    found = env({"OPENCODE_MODEL": "openai/gpt-5.5"}, key=None)
    assert not {"OPENCODE_API_KEY", "OPENCODE_MODELS_PATH", "OPENCODE_DISABLE_DEFAULT_PLUGINS"} & found.keys()
    assert "provider" not in config(key=None)
    assert config({"OPENCODE_MODEL": "openai/gpt-5.5"}, key=None)["model"] == "openai/gpt-5.5"


def test_the_gateway_lets_completions_and_models_through() -> None:
    gateway = OpenCodeAdapter.gateway
    assert (gateway.upstream, gateway.key_headers) == ("https://api.openai.com/v1", ("authorization",))
    assert gateway.path_prefixes == ("/chat/completions", "/models")


def test_the_recipe_has_what_the_environment_points_at() -> None:
    steps = (RECIPE / "Containerfile").read_text()
    assert env()["OPENCODE_MODELS_PATH"] in steps
    assert f"{env()['XDG_CONFIG_HOME']}/opencode/plugin/podmentor.js" in steps
    assert json.loads((RECIPE / "models.json").read_text()) == {}
    plugin = (RECIPE / "podmentor.js").read_text()
    [provider] = config()["enabled_providers"]
    assert f'providerID === "{provider}"' in plugin


@pytest.mark.parametrize(
    ("exit_code", "stdout", "installed", "authenticated"),
    [
        (0, "\x1b[0m\n┌  Credentials \x1b[90m~/.local/share/opencode/auth.json\n│\n└  0 credentials\n", True, False),
        (0, "┌  Credentials\n│\n●  OpenAI \x1b[90moauth\n│\n└  1 credentials\n", True, True),
        (0, "└  12 credentials\n", True, True),
        (0, "something else", True, False),
        (1, "", True, False),
        (127, "", False, False),
        (126, "", False, False),
    ],
)
def test_the_probe_counts_logins(exit_code: int, stdout: str, installed: bool, authenticated: bool) -> None:
    status = OpenCodeAdapter().read_probe(exit_code=exit_code, stdout=stdout, stderr="")
    assert (status.installed, status.authenticated) == (installed, authenticated)
    assert (status.error is None) == authenticated


def test_a_login_is_the_clis_own_menu_and_what_it_stores_is_known() -> None:
    assert OpenCodeAdapter().login_argv() == ["opencode", "auth", "login"]
    assert OpenCodeAdapter.credential_files == (".local/share/opencode/auth.json",)


def test_the_probe_does_not_load_the_catalogue() -> None:
    probe = OpenCodeAdapter().probe_argv()
    assert probe is not None
    assert probe[0] == "env"
    assert f"OPENCODE_MODELS_PATH={env()['OPENCODE_MODELS_PATH']}" in probe
    assert probe[-3:] == ["opencode", "auth", "list"]


def test_the_model_is_chosen_in_the_configuration() -> None:
    adapter = OpenCodeAdapter()
    assert adapter.model_argv("vendor/m") == []
    extra = adapter.gateway_env("http://127.0.0.1:8080") | adapter.model_env("vendor/m")
    env = adapter.build_env(creds=Credentials(api_key="t", extra_env=extra), home=None)
    config = json.loads(env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == "gateway/vendor/m"
    assert list(config["provider"]["gateway"]["models"]) == ["vendor/m"]
