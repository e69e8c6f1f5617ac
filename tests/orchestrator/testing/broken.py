"""A small adapter that keeps every contract, to be broken in one point at a time."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, GatewayRoute
from orchestrator.contract.types import Credentials
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Tokens, ToolResult, ToolUse


class GoodParser(JsonLinesParser):
    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.started = False

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        out: list[AgentEvent] = [] if self.started else [SessionStarted(session_id="s")]
        if "say" in obj:
            self.text += obj["say"]
            out.append(MessageDelta(text=obj["say"], message_id="m"))
        elif "call" in obj:
            out.append(ToolUse(tool_call_id=obj["call"], name="t", input={}))
        elif "back" in obj:
            out.append(ToolResult(tool_call_id=obj["back"], content="", is_error=False))
        else:
            raise ValueError("unknown")
        self.started = True
        return out

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        if exit_code == 127:
            return [Error(reason="cli_not_installed", message="not there")]
        if exit_code or not self.text:
            return [Error(reason="cli_failed", message="failed")]
        return [Completed(final_text=self.text, tokens=Tokens(input=1, output=1), duration_ms=1)]


class Good(BaseAdapter):
    name = "good"
    binary = "good"
    supports_resume = True
    default_allowed_egress = ["api.example.org"]  # noqa: RUF012
    gateway = GatewayRoute(upstream="https://api.example.org", key_headers=("x-api-key",), path_prefixes=("/v1",))

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return [self.binary] + ([f"--resume={session_id}"] if session_id else [])

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return self.base_env(creds=creds, home=home) | ({"KEY": creds.api_key} if creds.api_key else {})

    def gateway_env(self, base_url: str) -> dict[str, str]:
        return {"BASE": f"{base_url}/v1"}

    def parser(self) -> JsonLinesParser:
        return GoodParser()
