"""A backend whose CLI prints what a test tells it to: one JSON object a line, one kind of event each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, GatewayRoute, StreamParser
from orchestrator.contract.types import Credentials
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Tokens


class EchoParser(JsonLinesParser):
    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        match obj:
            case {"session": session_id}:
                return [SessionStarted(session_id=session_id)]
            case {"text": text}:
                return [MessageDelta(text=text, message_id="m1")]
            case {"done": text}:
                return [Completed(final_text=text, tokens=Tokens(input=1, output=2), duration_ms=3, cost_usd=0.5)]
            case {"fail": message}:
                return [Error(reason="cli_failed", message=message)]
            case _:
                raise ValueError("unknown line")

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        return [
            Error(reason="cli_failed", message=f"no result, exit code {exit_code}", details={"stderr": stderr_tail})
        ]


class EchoAdapter(BaseAdapter):
    name: ClassVar[str] = "echo"
    binary: ClassVar[str] = "echo-cli"
    supports_resume: ClassVar[bool] = True
    gateway: ClassVar[GatewayRoute | None] = GatewayRoute(
        upstream="http://127.0.0.1:9", key_headers=("x-api-key",), path_prefixes=("/v1/messages",)
    )

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return [self.binary, "--cwd", str(cwd), *(["--resume", session_id] if session_id else [])]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return {**self.base_env(creds=creds, home=home), "ECHO_KEY": creds.api_key or ""}

    def gateway_env(self, base_url: str) -> dict[str, str]:
        return {"ECHO_URL": base_url}

    def parser(self) -> StreamParser:
        return EchoParser()
