"""The registry: entry points in, checked adapters out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint

import pytest

from orchestrator.contract.adapter import BaseAdapter
from orchestrator.errors import ConfigError
from orchestrator.registry import ADAPTER_REGISTRY, GROUP, AdapterRegistry, load_adapters, tool_name
from tests.fakes import adapters as fakes


class Silent(BaseAdapter):
    name = "silent"
    binary = "silent"

    def build_argv(self, **_: object) -> list[str]:
        return []

    def build_env(self, **_: object) -> dict[str, str]:
        return {}


def registry(*points: tuple[str, str]) -> AdapterRegistry:
    found = [EntryPoint(name=name, value=value, group=GROUP) for name, value in points]
    return AdapterRegistry(lambda: found)


HERE = "tests.fakes.adapters"
MANY = registry(
    ("documented", f"{HERE}:DocumentedAdapter"),
    ("oneshot", f"{HERE}:OneshotAdapter"),
    ("boom", "tests.fakes.no_such_module:X"),
)


def test_c26_the_registry_maps_names_to_classes() -> None:
    assert MANY["documented"] is fakes.DocumentedAdapter
    assert list(MANY) == ["boom", "documented", "oneshot"]
    assert len(MANY) == 3
    assert "oneshot" in MANY
    assert "other" not in MANY
    with pytest.raises(KeyError):
        MANY["other"]


def test_c26_the_shipped_registry_is_a_view_over_the_entry_points() -> None:
    assert isinstance(ADAPTER_REGISTRY, AdapterRegistry)


def test_c1_an_adapter_with_the_documented_members_is_accepted() -> None:
    loaded = load_adapters(["documented", "documented"], registry=MANY)
    assert list(loaded) == ["documented"]
    assert isinstance(loaded["documented"], fakes.DocumentedAdapter)


def test_only_enabled_adapters_are_loaded(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Recording(EntryPoint):
        def load(self) -> object:
            loaded.append(self.name)
            return super().load()

    points: Iterable[EntryPoint] = [
        Recording(name="documented", value=f"{HERE}:DocumentedAdapter", group=GROUP),
        Recording(name="oneshot", value=f"{HERE}:OneshotAdapter", group=GROUP),
    ]
    found = AdapterRegistry(lambda: points)
    assert "oneshot" in list(found)
    load_adapters(["documented"], registry=found)
    assert loaded == ["documented"]
    assert "tests.fakes.no_such_module" not in sys.modules


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("nobody", f"{HERE}:DocumentedAdapter", r"its name is 'documented'"),
        ("boom", "tests.fakes.no_such_module:X", r"cannot be loaded: No module named"),
        ("boom", f"{HERE}:NoSuchClass", r"cannot be loaded"),
        ("object", f"{HERE}:NOT_A_CLASS", r"is not a class"),
        ("needs-arguments", f"{HERE}:NeedsArguments", r"cannot be made without arguments"),
        ("incomplete", f"{HERE}:Incomplete", r"supports_resume must be True or False; build_argv\(\) is missing"),
        ("http-without-call", f"{HERE}:HttpWithoutCall", r"call_http\(\) is missing"),
        ("silent", "tests.orchestrator.test_registry:Silent", r"nothing to read its output with"),
    ],
)
def test_an_adapter_that_breaks_the_contract_is_refused_with_the_reason(name: str, value: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_adapters([name], registry=registry((name, value)))


def test_an_unknown_name_is_refused_naming_what_is_installed() -> None:
    with pytest.raises(ConfigError, match="'clod-code'; installed: boom, documented, oneshot"):
        load_adapters(["clod-code"], registry=MANY)
    with pytest.raises(ConfigError, match="installed: none"):
        load_adapters(["clod-code"], registry=registry())


def test_two_distributions_that_claim_one_name_are_refused() -> None:
    twice = registry(("documented", f"{HERE}:DocumentedAdapter"), ("documented", f"{HERE}:OneshotAdapter"))
    with pytest.raises(ConfigError, match="more than once"):
        load_adapters(["documented"], registry=twice)
    same = registry(("documented", f"{HERE}:DocumentedAdapter"), ("documented", f"{HERE}:DocumentedAdapter"))
    assert load_adapters(["documented"], registry=same)


def test_c11_tool_names() -> None:
    assert [tool_name(x) for x in ("claude-code", "codex", "opencode", "gemini", "codumentor")] == [
        "claude_code", "codex", "opencode", "gemini", "codumentor",
    ]  # fmt: skip
