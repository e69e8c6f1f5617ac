"""How the example's CLI is started, and what it prints: ``{"type": "session" | "text" | "end", …}``, one per line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, Capabilities
from orchestrator.contract.types import Credentials
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Tokens


class ExampleParser(JsonLinesParser):
    """Each type of line is one kind of event."""

    def on_object(self, obj: dict[str, Any]) -> Sequence[AgentEvent]:
        match obj:
            case {"type": "session", "id": str(session_id)}:
                return [SessionStarted(session_id=session_id)]
            case {"type": "text", "text": str(text)}:
                return [MessageDelta(text=text, message_id="1")]
            case {"type": "end", "text": str(text), "words": int(words)}:
                return [Completed(final_text=text, tokens=Tokens(input=words, output=words), duration_ms=0)]
            case _:
                raise ValueError("a line that this CLI does not print")

    def on_close(self, exit_code: int | None, stderr_tail: str) -> Sequence[AgentEvent]:
        if exit_code == 127:
            return [Error(reason="cli_not_installed", message="The image has no example-agent; build it again.")]
        return [
            Error(
                reason="cli_failed",
                message=f"example-agent ended early (exit code {exit_code})",
                details={"stderr": stderr_tail},
            )
        ]


class ExampleAdapter(BaseAdapter):
    """One process per run, the prompt on stdin."""

    name = "example"
    binary = "example-agent"
    supports_resume = False
    supports_stream_json = True
    capabilities = Capabilities(streaming=True)

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        del prompt, session_id, cwd
        return [self.binary]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return self.base_env(creds=creds, home=home)

    def parser(self) -> JsonLinesParser:
        return ExampleParser()

    def probe_argv(self) -> list[str] | None:
        return [self.binary, "--check"]
