"""Adapters for tests: one with the documented members alone, and variants of it that break the contract."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from orchestrator.contract.types import AgentResult, AuthStatus, Credentials
from orchestrator.events import AgentEvent, Completed, MessageDelta, SessionStarted, Tokens


class DocumentedAdapter:
    """Only what the documents ask for.  Its language: a line is a piece of text, ``done`` ends the run."""

    name = "documented"
    binary = "documented-cli"
    supports_resume = False
    supports_stream_json = True

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        return [self.binary, *(["--resume", session_id] if session_id else [])]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        return {"KEY": creds.api_key or ""}

    async def parse_stream(self, stdout: AsyncIterator[bytes]) -> AsyncIterator[AgentEvent]:
        pending = b""
        yield SessionStarted(session_id="s-1")
        async for chunk in stdout:
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                if line == b"done":
                    yield Completed(final_text="ok", tokens=Tokens(input=1, output=2), duration_ms=3)
                else:
                    yield MessageDelta(text=line.decode(), message_id="m")

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        if rc:
            return AgentResult(final_text="", is_error=True, error={"reason": "cli_failed", "message": stderr})
        return AgentResult(final_text=stdout, is_error=False, session_id="s-2", tokens={"input": 4, "output": 5})

    def extract_session_id(self, evt: AgentEvent) -> str | None:
        return evt.session_id if isinstance(evt, SessionStarted) else None

    async def probe_auth(self, env: dict[str, str]) -> AuthStatus:
        return AuthStatus(installed=True, authenticated=bool(env))


class OneshotAdapter(DocumentedAdapter):
    """Prints once, at the end."""

    name = "oneshot"
    supports_stream_json = False


class LateAdapter(DocumentedAdapter):
    """``parse_stream`` as a coroutine that returns the iterator."""

    name = "late"

    async def parse_stream(self, stdout: AsyncIterator[bytes]) -> Any:  # type: ignore[override]
        return super().parse_stream(stdout)


class NeedsArguments(DocumentedAdapter):
    """Cannot be made by the registry."""

    name = "needs-arguments"

    def __init__(self, something: str) -> None:
        self.something = something


class Incomplete:
    """Lacks most of the contract."""

    name = "incomplete"
    binary = "x"
    supports_resume = "no"
    supports_stream_json = True


class HttpWithoutCall(DocumentedAdapter):
    """Says http, cannot do it."""

    name = "http-without-call"
    transport = "http"


NOT_A_CLASS = DocumentedAdapter()
