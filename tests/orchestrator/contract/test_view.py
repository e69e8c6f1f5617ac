"""C1, C2: an adapter with only the documented members works; what it lacks has a default."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest

from orchestrator.contract.adapter import AgentAdapter, Capabilities, GatewayRoute
from orchestrator.contract.bridge import OneshotBridge
from orchestrator.contract.types import Credentials
from orchestrator.contract.view import AdapterView
from tests.fakes.adapters import DocumentedAdapter, OneshotAdapter


class Talkative(DocumentedAdapter):
    name = "talkative"
    supports_resume = True
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


def test_c1_the_documented_adapter_is_an_agent_adapter() -> None:
    assert isinstance(DocumentedAdapter(), AgentAdapter)


def test_c1_c2_c3_defaults_of_what_the_documents_leave_open() -> None:
    view = AdapterView(DocumentedAdapter())
    assert view.transport == "subprocess"
    assert view.supports_byo_subscription is False
    assert view.default_allowed_egress == []
    assert view.image == "documented"
    assert view.gateway is None
    assert view.gateway_env("http://127.0.0.1:1") == {}
    assert view.probe_argv() is None
    assert view.read_probe(exit_code=127, stdout="", stderr="not found").installed is False
    assert view.capabilities == Capabilities(streaming=True, resume=False)
    assert AdapterView(OneshotAdapter()).capabilities.streaming is False
    with pytest.raises(NotImplementedError):
        view.call_http(prompt="x", session_id=None, creds=Credentials())


def test_what_the_adapter_says_is_taken() -> None:
    view = AdapterView(Talkative())
    assert (view.name, view.tool_name, view.binary) == ("talkative", "talkative", "documented-cli")
    assert view.supports_byo_subscription is True
    assert view.image == "chatterbox"
    assert view.gateway is Talkative.gateway
    assert view.gateway_env("http://x") == {"BASE": "http://x"}
    assert view.capabilities is Talkative.capabilities
    assert view.probe_argv() == ["talkative", "status"]
    assert isinstance(view.parser(), OneshotBridge)
    assert view.build_env(creds=Credentials(api_key="k"), home=None) == {"KEY": "k"}


def test_the_egress_list_is_a_copy() -> None:
    AdapterView(Talkative()).default_allowed_egress.append("evil.example.org")
    assert AdapterView(Talkative()).default_allowed_egress == ["api.example.org"]


def test_a_session_goes_only_to_an_adapter_that_can_resume() -> None:
    cwd = Path("/workspace")
    assert AdapterView(DocumentedAdapter()).build_argv(prompt="p", session_id="s", cwd=cwd) == ["documented-cli"]
    assert AdapterView(Talkative()).build_argv(prompt="p", session_id="s", cwd=cwd)[1:] == ["--resume", "s"]
