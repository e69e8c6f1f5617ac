"""How the Codex CLI is started, what it may reach, and what its login probe says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from adapters.codex.parser import CodexParser
from orchestrator.adapterkit.command import cannot_be_run, output_tail, uuid_session
from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, Capabilities, GatewayRoute, Resumed
from orchestrator.contract.types import AuthStatus, Credentials

RETRIES = 4
"""Of a request that failed: about three seconds.  These are reported on stdout; those that the CLI would do beneath
them (``request_max_retries``) are silent, multiply with them, and are off."""
LONGEST_WAIT = 60.0
"""Seconds.  The CLI sleeps as long as a rate limit asks, and prints nothing of how long that is."""
PROVIDER = "podmentor"
"""Name of the provider that leads to the gateway.  The CLI's own one takes no base URL from the environment, and tries
a WebSocket first."""
FLAGS = (
    "--json",
    # The container is the sandbox; a second one inside it would only make commands fail, and unseen.
    "--dangerously-bypass-approvals-and-sandbox",
    "--skip-git-repo-check",
    # Each of these looks for hosts of its own: ab.chatgpt.com, github.com, chatgpt.com.
    "-c",
    "analytics.enabled=false",
    "--disable",
    "plugins",
    "--disable",
    "apps",
    "--disable",
    "remote_plugin",
)

# The CLI takes an empty auth.json for a login, so what it says is not enough.
PROBE = """codex login status || exit
jq -e '(.OPENAI_API_KEY // .tokens.access_token // "") != ""' "${CODEX_HOME:-$HOME/.codex}/auth.json" >/dev/null && exit
echo 'auth.json holds no login' >&2
exit 1
"""


class CodexAdapter(BaseAdapter):
    """Codex, one ``exec`` per run, the prompt on stdin, JSON lines on stdout.

    ``~/.codex`` is made by the CLI itself as long as ``CODEX_HOME`` is not set.
    """

    name = "codex"
    binary = "codex"
    supports_resume = True
    supports_stream_json = True
    supports_byo_subscription = True
    default_allowed_egress: ClassVar[list[str]] = [
        "api.openai.com",
        "auth.openai.com",
        # Addition to the documented list: where a subscription's requests go.
        "chatgpt.com",
    ]
    gateway = GatewayRoute(
        upstream="https://api.openai.com",
        key_headers=("authorization",),
        path_prefixes=("/v1/responses", "/v1/models"),
        longest_wait=LONGEST_WAIT,
    )
    credential_files = (".codex/auth.json",)
    capabilities = Capabilities(
        # ``exec --json`` tells each message when it is complete.
        streaming=True,
        deltas=False,
        thinking=True,
        resume=True,
        cost=False,
        mcp=True,
        byo_subscription=True,
    )

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """``codex exec [resume] FLAGS [THREAD_ID] -``: the prompt is read from stdin.

        Raises InvalidRequestError when ``session_id`` is not one that this CLI could have given.
        """
        del prompt, cwd
        if session_id is None:
            return [self.binary, "exec", *FLAGS, "-"]
        thread_id = uuid_session(session_id, backend=self.name, what="a Codex thread id")
        return [self.binary, "exec", "resume", *FLAGS, thread_id, "-"]

    def gateway_argv(self, base_url: str) -> list[str]:
        """A provider of our own, whose URL and retries are ours to set."""
        members = {
            "name": PROVIDER,
            "base_url": f"{base_url}/v1",
            "env_key": "OPENAI_API_KEY",
            "wire_api": "responses",
            "request_max_retries": 0,
            "stream_max_retries": RETRIES,
        }
        # Strings and numbers are written in TOML as they are in JSON.
        table = ",".join(f"{name}={json.dumps(value)}" for name, value in members.items())
        return ["-c", f'model_provider="{PROVIDER}"', "-c", f"model_providers.{PROVIDER}={{{table}}}"]

    def model_argv(self, model: str) -> list[str]:
        """Outranks what the environment and settings say."""
        return ["-m", model]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """The key under both names: the CLI's own provider reads the first, ours the second."""
        env = self.base_env(creds=creds, home=home or creds.home)
        if creds.api_key is not None:
            env["CODEX_API_KEY"] = env["OPENAI_API_KEY"] = creds.api_key
        return env

    def parser(self) -> JsonLinesParser:
        """A new parser for one run of a new thread."""
        return CodexParser()

    def parser_for(self, resumed: Resumed | None) -> JsonLinesParser:
        """A new parser for one run; with ``resumed`` it tells that thread from another and its tokens from earlier."""
        return CodexParser(resumed)

    def login_argv(self) -> list[str] | None:
        """Shows a URL and a code to type there; no browser on this machine is needed."""
        return [self.binary, "login", "--device-auth"]

    def probe_argv(self) -> list[str] | None:
        """0.3 s, and no network; tells whether a login is there, not whether the provider takes it."""
        return ["sh", "-c", PROBE]

    def read_probe(self, *, exit_code: int, stdout: str, stderr: str) -> AuthStatus:
        """The exit code decides; what the CLI says is on stderr."""
        if exit_code in {126, 127}:
            return cannot_be_run(self.binary, stderr)
        if exit_code == 0:
            return AuthStatus(installed=True, authenticated=True)
        said = output_tail(stderr or stdout)
        error = "not logged in" if "not logged in" in said.lower() else said
        return AuthStatus(installed=True, authenticated=False, error=error)
