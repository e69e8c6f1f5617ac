"""An adapter as the rest of podmentor reads it: every optional member has its default.

An adapter with only the documented members works (C1, C2): whoever wants an optional one asks the view.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal, cast

from orchestrator.contract.adapter import AgentAdapter, BaseAdapter, Capabilities, GatewayRoute, StreamParser
from orchestrator.contract.bridge import OneshotBridge, StreamBridge
from orchestrator.contract.types import AuthStatus, Credentials
from orchestrator.events import AgentEvent


class AdapterView:
    """Reads through to ``adapter``; what it lacks comes from ``BaseAdapter``."""

    def __init__(self, adapter: AgentAdapter) -> None:
        self.adapter = adapter
        self._defaults = BaseAdapter()

    def _get(self, member: str) -> Any:
        found = getattr(self.adapter, member, None)
        return getattr(self._defaults, member) if found is None else found

    @property
    def name(self) -> str:
        """The backend's name."""
        return self.adapter.name

    @property
    def tool_name(self) -> str:
        """The backend's name as a tool: ``claude_code`` for ``claude-code``."""
        return tool_name(self.adapter.name)

    @property
    def binary(self) -> str:
        """The CLI's executable."""
        return self.adapter.binary

    @property
    def transport(self) -> Literal["subprocess", "http"]:
        """How it is reached; ``subprocess`` unless it says otherwise."""
        return cast("Literal['subprocess', 'http']", self._get("transport"))

    @property
    def supports_resume(self) -> bool:
        """Whether a session can be gone on with."""
        return self.adapter.supports_resume

    @property
    def supports_stream_json(self) -> bool:
        """Whether events come while it works."""
        return self.adapter.supports_stream_json

    @property
    def supports_byo_subscription(self) -> bool:
        """Whether a user can log in with a subscription of their own; False unless it says otherwise."""
        return bool(self._get("supports_byo_subscription"))

    @property
    def default_allowed_egress(self) -> list[str]:
        """Hosts that it may reach when the configuration names none (a new list each time)."""
        return list(self._get("default_allowed_egress"))

    @property
    def image(self) -> str:
        """Name of its image: its own name unless it says otherwise."""
        return str(self._get("image")) or self.adapter.name

    @property
    def gateway(self) -> GatewayRoute | None:
        """The way to its provider; None: it cannot be used through the gateway."""
        return cast("GatewayRoute | None", getattr(self.adapter, "gateway", None))

    @property
    def capabilities(self) -> Capabilities:
        """As it tells, else what the documented flags imply."""
        told = getattr(self.adapter, "capabilities", None)
        if isinstance(told, Capabilities) and told is not BaseAdapter.capabilities:
            return told
        return Capabilities(streaming=self.supports_stream_json, resume=self.supports_resume,
                            byo_subscription=self.supports_byo_subscription)  # fmt: skip

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """The command line; a session that cannot be resumed is not passed on."""
        return self.adapter.build_argv(prompt=prompt, session_id=session_id if self.supports_resume else None, cwd=cwd)

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """The whole environment of the CLI, without the gateway's part."""
        return self.adapter.build_env(creds=creds, home=home)

    def gateway_env(self, base_url: str) -> dict[str, str]:
        """Variables that make the CLI talk to the gateway; none unless it says otherwise."""
        return cast("dict[str, str]", self._get("gateway_env")(base_url))

    def parser(self) -> StreamParser:
        """A new parser for one run, made from ``parse_stream`` or ``parse_oneshot`` when it brings none."""
        if _brings(self.adapter, "parser"):
            return cast("StreamParser", cast("Any", self.adapter).parser())
        return StreamBridge(self.adapter) if self.supports_stream_json else OneshotBridge(self.adapter)

    def extract_session_id(self, evt: AgentEvent) -> str | None:
        """The CLI's session id, when ``evt`` tells it."""
        return self.adapter.extract_session_id(evt)

    def probe_argv(self) -> list[str] | None:
        """A local command that tells whether the CLI could log in; None: there is none."""
        return cast("list[str] | None", self._get("probe_argv")())

    def read_probe(self, *, exit_code: int, stdout: str, stderr: str) -> AuthStatus:
        """What that command said."""
        return cast("AuthStatus", self._get("read_probe")(exit_code=exit_code, stdout=stdout, stderr=stderr))

    def call_http(self, *, prompt: str, session_id: str | None, creds: Credentials) -> AsyncIterator[AgentEvent]:
        """Only for ``transport = "http"``; raises NotImplementedError otherwise."""
        call = getattr(self.adapter, "call_http", None)
        if call is None:
            raise NotImplementedError(f"{self.name} is run as a process, not over HTTP")
        return cast("AsyncIterator[AgentEvent]", call(prompt=prompt, session_id=session_id, creds=creds))


def tool_name(backend: str) -> str:
    """The name of a backend's tool (C11): ``claude_code`` for ``claude-code``."""
    return backend.replace("-", "_")


def brings_parser(adapter: AgentAdapter) -> bool:
    """Whether there is anything of the adapter's own to read its output with."""
    wanted = "parse_stream" if adapter.supports_stream_json else "parse_oneshot"
    return _brings(adapter, "parser") or _brings(adapter, wanted)


def _brings(adapter: AgentAdapter, member: str) -> bool:
    """Whether the adapter itself has the member, and not only BaseAdapter's default of it."""
    own = getattr(type(adapter), member, None)
    return own is not None and own is not getattr(BaseAdapter, member)
