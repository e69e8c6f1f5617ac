"""The registry: entry points in, checked adapters out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.adapterkit.bridge import OneshotBridge, StreamBridge
from orchestrator.contract.adapter import AgentAdapter, BaseAdapter, Capabilities, GatewayRoute, StreamParser
from orchestrator.contract.types import AgentResult, Credentials
from orchestrator.errors import ConfigError
from orchestrator.registry import ADAPTER_REGISTRY, GROUP, AdapterRegistry, complete, load_adapters, tool_name
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


class Talkative(fakes.DocumentedAdapter):
    name = "talkative"
    supports_byo_subscription = True
    image = "chatterbox"
    default_allowed_egress: ClassVar[list[str]] = ["api.example.org"]
    gateway = GatewayRoute(upstream="https://api.example.org", key_headers=("x-api-key",), path_prefixes=("/v1",))
    capabilities = Capabilities(cost=True)

    def gateway_env(self, base_url: str) -> dict[str, str]:
        return {"BASE": base_url}

    def probe_argv(self) -> list[str] | None:
        return ["talkative", "status"]

    def parser(self) -> OneshotBridge:
        return OneshotBridge(self)


class Whole(BaseAdapter):
    name = "whole"
    binary = "whole"
    capabilities = Capabilities(deltas=True)

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return []

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return {}

    def parser(self) -> StreamParser:
        raise NotImplementedError


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
        "claude_code",
        "codex",
        "opencode",
        "gemini",
        "codumentor",
    ]


def test_c1_the_documented_adapter_is_an_agent_adapter() -> None:
    assert isinstance(fakes.DocumentedAdapter(), AgentAdapter)


def test_c1_c2_c3_defaults_of_what_the_documents_leave_open() -> None:
    adapter = complete(fakes.DocumentedAdapter)()
    assert isinstance(adapter, fakes.DocumentedAdapter)
    assert adapter.transport == "subprocess"
    assert adapter.supports_byo_subscription is False
    assert adapter.default_allowed_egress == []
    assert adapter.image == ""
    assert adapter.gateway is None
    assert adapter.gateway_env("http://127.0.0.1:1") == {}
    assert adapter.probe_argv() is None
    assert adapter.read_probe(exit_code=127, stdout="", stderr="not found").installed is False
    assert adapter.capabilities == Capabilities(streaming=True, resume=False)
    assert isinstance(adapter.parser(), StreamBridge)
    oneshot = complete(fakes.OneshotAdapter)()
    assert oneshot.capabilities.streaming is False
    assert isinstance(oneshot.parser(), OneshotBridge)
    with pytest.raises(NotImplementedError):
        adapter.call_http(prompt="x", session_id=None, creds=Credentials())


def test_what_the_adapter_brings_is_kept() -> None:
    adapter = complete(Talkative)()
    assert adapter.supports_byo_subscription is True
    assert adapter.image == "chatterbox"
    assert adapter.default_allowed_egress == ["api.example.org"]
    assert adapter.gateway is Talkative.gateway
    assert adapter.gateway_env("http://x") == {"BASE": "http://x"}
    assert adapter.capabilities is Talkative.capabilities
    assert adapter.probe_argv() == ["talkative", "status"]
    assert isinstance(adapter.parser(), OneshotBridge)
    assert adapter.build_env(creds=Credentials(api_key="k"), home=None) == {"KEY": "k"}


def test_a_whole_adapter_is_left_as_it_is() -> None:
    whole: Any = Whole
    assert complete(whole) is Whole


class Plain(Silent):
    """The plain mode of a backend that streams."""

    name = "both"
    supports_stream_json = False

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        return AgentResult(final_text=stdout, is_error=False)


class Both(Silent):
    name = "both"
    oneshot = Plain

    def parser(self) -> StreamParser:
        raise NotImplementedError


def test_c9_the_plain_mode_is_taken_where_it_is_wanted() -> None:
    found = registry(("both", f"{__name__}:Both"))
    assert isinstance(load_adapters(["both"], registry=found)["both"], Both)
    plain = load_adapters(["both"], oneshot=["both"], registry=found)["both"]
    assert isinstance(plain, Plain)
    assert isinstance(plain.parser(), OneshotBridge)


def test_c9_a_plain_mode_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigError, match="'talkative' has no plain mode"):
        load_adapters(["talkative"], oneshot=["talkative"], registry=registry(("talkative", f"{__name__}:Talkative")))
