"""C14: ``${secret:NAME}`` in a backend's api_key and extra_env."""

import pytest

from orchestrator.config.load import parse
from orchestrator.config.models import Config
from orchestrator.config.redact import public
from orchestrator.config.secrets import fill, names_in
from orchestrator.errors import ConfigError

TEXT = """
external_agent:
  backends:
    codex:
      api_key: ${secret:codex_key}
      extra_env: {A: "x-${secret:a.b-c}-${env:V}", B: plain}
    claude-code: {api_key: "$${secret:not-one}"}
    gemini: {}
"""


def load(text: str = TEXT, **env: str) -> Config:
    return parse(text, name="f", env={"V": "${secret:from-the-environment}", **env}).config


def test_the_names_are_found_with_the_keys_that_ask_for_them() -> None:
    assert names_in(load()) == {
        "codex_key": "external_agent.backends.codex.api_key",
        "a.b-c": "external_agent.backends.codex.extra_env.A",
    }


def test_the_values_take_their_place_and_what_came_out_is_not_looked_at_again() -> None:
    filled = fill(load(), {"codex_key": "${secret:a.b-c}", "a.b-c": r"\1"})
    codex = filled.external_agent.backends["codex"]
    assert codex.api_key is not None
    assert codex.api_key.get_secret_value() == "${secret:a.b-c}"
    assert codex.extra_env == {"A": r"x-\1-${secret:from-the-environment}", "B": "plain"}
    plain = filled.external_agent.backends["claude-code"].api_key
    assert plain is not None
    assert plain.get_secret_value() == "${secret:not-one}"
    assert filled.external_agent.backends["gemini"].api_key is None


PROXY = """
egress:
  upstream_proxy: {url: "http://p.example:3128", username: pm, password: "${secret:proxy_password}"}
"""


def test_the_password_of_the_networks_proxy_may_be_one() -> None:
    assert names_in(load(PROXY)) == {"proxy_password": "egress.upstream_proxy.password"}
    filled = fill(load(PROXY), {"proxy_password": "open-sesame"})
    assert filled.egress.upstream_proxy is not None
    assert filled.egress.upstream_proxy.password is not None
    assert filled.egress.upstream_proxy.password.get_secret_value() == "open-sesame"
    assert "open-sesame" not in repr(public(filled)) + repr(filled)
    assert public(filled)["egress"]["upstream_proxy"]["password"] == "***"
    with pytest.raises(ConfigError, match=r"egress\.upstream_proxy\.password: .*podmentor vault set proxy_password"):
        fill(load(PROXY), {})
    with pytest.raises(ConfigError, match=r"api_key and extra_env, and in egress\.upstream_proxy\.password"):
        load(PROXY.replace("pm", '"${secret:user}"'))


def test_a_missing_one_names_key_and_command() -> None:
    with pytest.raises(ConfigError, match=r"backends\.codex\.api_key: .*podmentor vault set codex_key"):
        fill(load(), {"a.b-c": "x"})


def test_nothing_of_it_is_shown() -> None:
    shown = repr(public(fill(load(), {"codex_key": "sk-one", "a.b-c": "sk-two"})))
    assert "sk-one" not in shown
    assert "sk-two" not in shown


def test_the_master_key_must_not_lie_where_an_agent_works() -> None:
    with pytest.raises(ConfigError, match="lies inside the repo all"):
        load("repos: {all: /tmp}\nvault: {key_file: /tmp/x/vault.key}\n")
    assert load("vault: {key_file: ~/k, key_env: OTHER}").vault.key_env == "OTHER"
    with pytest.raises(ConfigError):
        load("vault: {key_env: 'A B'}")
