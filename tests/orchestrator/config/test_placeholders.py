from typing import Any

import pytest

from orchestrator.config import placeholders
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
