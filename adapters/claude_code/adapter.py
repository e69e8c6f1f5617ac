"""How the Claude Code CLI is started, what it may reach, and what its login probe says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from adapters.claude_code.parser import ClaudeCodeParser
from orchestrator.adapterkit.command import cannot_be_run, no_command, output_tail, uuid_session
from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, Capabilities, GatewayRoute
from orchestrator.contract.types import AuthStatus, Credentials

MAX_RETRIES = 3
"""The CLI's own default is 10, with which a refused key takes three minutes to be reported."""

QUIET_ENV = {
    # The provider, its address, keys, models and proxies are taken from the environment alone: what the settings of a
    # repository say of them (``env`` in ``.claude/settings.json``) does not count.
    "CLAUDE_CODE_PROVIDER_MANAGED_BY_HOST": "1",
    # Each of the last three alone leaves connection attempts to api.anthropic.com; the first ends them.
    "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1",
    "DISABLE_TELEMETRY": "1",
    "DISABLE_ERROR_REPORTING": "1",
    "CLAUDE_CODE_MAX_RETRIES": str(MAX_RETRIES),
    # Without a writable temporary directory the CLI hangs for ever and prints nothing.
    "CLAUDE_CODE_TMPDIR": "/tmp",  # noqa: S108 - the container's own tmpfs
    "TMPDIR": "/tmp",  # noqa: S108
}


class ClaudeCodeAdapter(BaseAdapter):
    """Claude Code, one process per run, the prompt on stdin, JSON lines on stdout."""

    name = "claude-code"
    binary = "claude"
    supports_resume = True
    supports_stream_json = True
    supports_byo_subscription = True
    default_allowed_egress: ClassVar[list[str]] = [
        "api.anthropic.com",
        "statsig.anthropic.com",
        # Addition to the documented list: where a subscription's login is renewed.
        "platform.claude.com",
    ]
    gateway = GatewayRoute(
        upstream="https://api.anthropic.com",
        key_headers=("x-api-key", "authorization"),
        path_prefixes=("/v1/messages", "/v1/models"),
    )
    subscription_gateway = gateway
    credential_files = (".claude/.credentials.json",)
    capabilities = Capabilities(
        streaming=True, deltas=True, thinking=True, resume=True, cost=True, mcp=True, byo_subscription=True
    )

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """The documented command line, then what today's CLI needs to run unattended and to stream.

        Raises InvalidRequestError when ``session_id`` is not one that this CLI could have given.
        """
        del prompt, cwd  # the prompt is read from stdin; a session belongs to the directory that the CLI is started in
        argv = [self.binary, "--print", "--output-format", "stream-json", "--input-format", "text", "--verbose"]
        if session_id is not None:
            argv += ["--resume", uuid_session(session_id, backend=self.name, what="a Claude Code session id")]
        return [*argv, "--include-partial-messages", "--dangerously-skip-permissions"]

    def stdin_of(self, prompt: str) -> str:
        """A prompt that begins with a slash is no command."""
        return no_command(prompt)

    def model_argv(self, model: str) -> list[str]:
        """Outranks what the environment and settings say."""
        return ["--model", model]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """Everything the CLI gets; the operator's ``extra_env`` wins over our settings, never over the key."""
        env = {**QUIET_ENV, **self.base_env(creds=creds, home=home or creds.home)}
        if creds.api_key is not None:
            env["ANTHROPIC_API_KEY"] = creds.api_key
        return env

    def gateway_env(self, base_url: str) -> dict[str, str]:
        """The CLI puts ``/v1/messages`` behind this URL."""
        return {"ANTHROPIC_BASE_URL": base_url}

    def parser(self) -> JsonLinesParser:
        """A new parser for one run."""
        return ClaudeCodeParser()

    def login_argv(self) -> list[str] | None:
        """Shows a URL to open anywhere, then waits for the code that the page gives."""
        return [self.binary, "auth", "login"]

    def probe_argv(self) -> list[str] | None:
        """Takes about a second; tells whether a login is there, not whether the provider takes it."""
        return [self.binary, "auth", "status"]

    def read_probe(self, *, exit_code: int, stdout: str, stderr: str) -> AuthStatus:
        """``auth status`` prints one JSON object; ``loggedIn`` decides."""
        if exit_code in {126, 127}:
            return cannot_be_run(self.binary, stderr)
        try:
            logged_in = json.loads(stdout)["loggedIn"]
        except (ValueError, KeyError, TypeError):
            said = output_tail(stderr or stdout)
            error = f"`{self.binary} auth status` printed no status (exit code {exit_code}): {said}"
            return AuthStatus(installed=True, authenticated=False, error=error)
        if logged_in is True:
            return AuthStatus(installed=True, authenticated=True)
        return AuthStatus(installed=True, authenticated=False, error="not logged in")
