from typing import Any

import pytest

from orchestrator.config import placeholders
from orchestrator.config.load import parse as load_text
from orchestrator.config.models import Config, public
from orchestrator.config.placeholders import fill, names_in
from orchestrator.config.yamltree import parse
from orchestrator.errors import ConfigError


def resolve(text: str, **env: str) -> placeholders.Resolution:
    return placeholders.resolve(parse(text, name="f"), env)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a: ${env:X}", {"a": "value"}),
        ("a: pre-${env:X}-${env:Y}", {"a": "pre-value-2"}),
        ("a: ['${env:X}', {b: '${env:Y}'}]", {"a": ["value", {"b": "2"}]}),
        ("a: $${env:X}", {"a": "${env:X}"}),
        ("a: $${ and ${env:X}", {"a": "${ and value"}),
        ("a: costs $5 and $$", {"a": "costs $5 and $$"}),
        ("a: 3", {"a": 3}),
        ("${env:X}: a", {"${env:X}": "a"}),
    ],
)
def test_replacement(text: str, want: Any) -> None:
    """C14: ``${env:X}``."""
    assert resolve(text, X="value", Y="2").data == want


def test_what_the_environment_holds_is_not_expanded_again() -> None:
    assert resolve("a: ${env:X}", X="${env:HOME}").data == {"a": "${env:HOME}"}


def test_an_empty_variable_is_a_value_except_for_a_key() -> None:
    assert resolve("a: ${env:X}", X="").data == {"a": ""}
    found = resolve("backends: {b: {api_key: '${env:X}'}}", X="")
    assert found.data["backends"]["b"]["api_key"] is None


def test_a_missing_variable_names_key_line_and_variable() -> None:
    with pytest.raises(ConfigError, match=r"f:2: a\.b: environment variable NOPE is not set") as caught:
        resolve("a:\n  b: ${env:NOPE}")
    assert caught.value.details["variable"] == "NOPE"


def test_a_missing_api_key_of_a_backend_is_left_out_and_told() -> None:
    found = resolve("external_agent:\n  backends:\n    codex:\n      api_key: ${env:NOPE}\n")
    assert found.data["external_agent"]["backends"]["codex"]["api_key"] is None
    assert found.missing == [(("external_agent", "backends", "codex", "api_key"), "NOPE")]


def test_a_secret_may_stand_only_where_it_is_never_shown() -> None:
    """C14: ``${secret:X}``."""
    for text in ("a: ${secret:X}", "backends: {b: {base_url: '${secret:X}'}}", "api_key: ${secret:X}"):
        with pytest.raises(ConfigError, match=r"\$\{secret:X\} may stand only in a backend's api_key and extra_env"):
            resolve(text)


@pytest.mark.parametrize("name", ["", "../x", "a b", "_config", "x" * 65, "a\nb"])
def test_a_secret_has_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match="a secret's name has letters"):
        placeholders.resolve(
            parse(f'backends: {{b: {{api_key: "${{secret:{name}}}"}}}}'.replace("\n", "\\n"), name="f"), {}
        )


@pytest.mark.parametrize("value", ["${HOME}", "${env:}", "${env:1X}", "${envX:Y}", "${env:A B}", "${}", "${env:X"])
def test_other_placeholders_are_refused(value: str) -> None:
    with pytest.raises(ConfigError, match=r"f:1: a: "):
        resolve(f"a: '{value}'", X="1")


def test_a_bare_name_gets_the_right_spelling_as_advice() -> None:
    with pytest.raises(ConfigError, match=r"write \$\{env:HOME\}"):
        resolve("a: ${HOME}")


TEXT = """
external_agent:
  backends:
    codex:
      api_key: ${secret:codex_key}
      extra_env: {A: "x-${secret:a.b-c}-${env:V}", B: plain}
    claude-code: {api_key: "$${secret:not-one}"}
    gemini: {}
"""


def loaded(text: str = TEXT, **env: str) -> Config:
    return load_text(text, name="f", env={"V": "${secret:from-the-environment}", **env}).config


def test_the_names_are_found_with_the_keys_that_ask_for_them() -> None:
    assert names_in(loaded()) == {
        "codex_key": "external_agent.backends.codex.api_key",
        "a.b-c": "external_agent.backends.codex.extra_env.A",
    }


def test_the_values_take_their_place_and_what_came_out_is_not_looked_at_again() -> None:
    filled = fill(loaded(), {"codex_key": "${secret:a.b-c}", "a.b-c": r"\1"})
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
    assert names_in(loaded(PROXY)) == {"proxy_password": "egress.upstream_proxy.password"}
    filled = fill(loaded(PROXY), {"proxy_password": "open-sesame"})
    assert filled.egress.upstream_proxy is not None
    assert filled.egress.upstream_proxy.password is not None
    assert filled.egress.upstream_proxy.password.get_secret_value() == "open-sesame"
    assert "open-sesame" not in repr(public(filled)) + repr(filled)
    assert public(filled)["egress"]["upstream_proxy"]["password"] == "***"
    with pytest.raises(ConfigError, match=r"egress\.upstream_proxy\.password: .*podmentor vault set proxy_password"):
        fill(loaded(PROXY), {})
    with pytest.raises(ConfigError, match=r"api_key and extra_env, and in egress\.upstream_proxy\.password"):
        loaded(PROXY.replace("pm", '"${secret:user}"'))


def test_a_missing_one_names_key_and_command() -> None:
    with pytest.raises(ConfigError, match=r"backends\.codex\.api_key: .*podmentor vault set codex_key"):
        fill(loaded(), {"a.b-c": "x"})


def test_nothing_of_it_is_shown() -> None:
    shown = repr(public(fill(loaded(), {"codex_key": "sk-one", "a.b-c": "sk-two"})))
    assert "sk-one" not in shown
    assert "sk-two" not in shown


def test_the_master_key_must_not_lie_where_an_agent_works() -> None:
    with pytest.raises(ConfigError, match="lies inside the repo all"):
        loaded("repos: {all: /tmp}\nvault: {key_file: /tmp/x/vault.key}\n")
    assert loaded("vault: {key_file: ~/k, key_env: OTHER}").vault.key_env == "OTHER"
    with pytest.raises(ConfigError):
        loaded("vault: {key_env: 'A B'}")
