"""How the Gemini CLI is started, and what it may reach."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar, cast

from adapters.gemini.oneshot import read_oneshot
from adapters.gemini.parser import GeminiParser
from orchestrator.adapterkit.bridge import OneshotBridge
from orchestrator.adapterkit.command import no_command, uuid_session
from orchestrator.contract.adapter import (
    AgentAdapter,
    BaseAdapter,
    Capabilities,
    GatewayRoute,
    StreamParser,
    collect_result,
)
from orchestrator.contract.types import AgentResult, Credentials
from orchestrator.errors import InvalidRequestError

SETTINGS = "/etc/podmentor/gemini.json"
"""Part of the image: the CLI takes settings as the system's only from a file and a directory that belong to root."""

QUIET_ENV = {
    "GEMINI_CLI_SYSTEM_SETTINGS_PATH": SETTINGS,
    # Started anew as its own child, as it does by default, the CLI cannot be interrupted.
    "GEMINI_CLI_NO_RELAUNCH": "true",
    "GEMINI_CLI_TRUST_WORKSPACE": "true",
    # An alias of the CLI for its newest Flash model.  The CLI's own default asks a small model with every prompt which
    # of the large ones shall answer.
    "GEMINI_MODEL": "flash",
    # Without these the CLI begins with warnings about the terminal.
    "TERM": "xterm-256color",
    "COLORTERM": "truecolor",
    "NO_COLOR": "1",
    "TMPDIR": "/tmp",  # noqa: S108 - the container's own tmpfs
}

PROMPT_MAX_BYTES = 120_000
"""The kernel takes no argument of more than 128 KiB."""

RAW = ("--raw-output", "--accept-raw-output-risk")
"""Text as the model wrote it: what the CLI would take out for a terminal's sake it takes out of pieces, and leaves the
halves of escape sequences.  Whoever prints events in a terminal cleans them there."""


class GeminiAdapter(BaseAdapter):
    """Gemini CLI, one process per run, the prompt on stdin, JSON lines on stdout.

    In the image ``gemini`` is a script that lets the CLI write to a file and relays it: on a pipe the CLI loses the
    end of its output.  Thoughts, costs and a failing command's exit code are not in the CLI's output.
    """

    name = "gemini"
    binary = "gemini"
    image = "gemini"
    supports_resume = True
    supports_stream_json = True
    default_allowed_egress: ClassVar[list[str]] = ["generativelanguage.googleapis.com", "oauth2.googleapis.com"]
    gateway = GatewayRoute(
        upstream="https://generativelanguage.googleapis.com",
        key_headers=("x-goog-api-key",),
        path_prefixes=("/v1beta/models", "/v1/models", "/v1alpha/models"),
    )
    capabilities = Capabilities(streaming=True, deltas=True, resume=True, mcp=True)

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """What makes today's CLI run unattended, in any directory, and stream.

        Raises InvalidRequestError when ``session_id`` is not one that this CLI could have given.
        """
        del prompt, cwd  # the prompt is read from stdin; a session belongs to the directory that the CLI is started in
        argv = [self.binary, "--output-format", "stream-json", "--approval-mode", "yolo", "--skip-trust", *RAW]
        if session_id is not None:
            argv += ["--resume", uuid_session(session_id, backend=self.name, what="a Gemini CLI session id")]
        return argv

    def stdin_of(self, prompt: str) -> str:
        """A prompt that begins with a slash is no command."""
        return no_command(prompt)

    def model_argv(self, model: str) -> list[str]:
        """Outranks what the environment and settings say."""
        return ["-m", model]

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """Everything the CLI gets; the operator's ``extra_env`` wins over our settings, never over the key."""
        env = {**QUIET_ENV, **self.base_env(creds=creds, home=home or creds.home)}
        if creds.api_key is not None:
            env["GEMINI_API_KEY"] = creds.api_key
        return env

    def gateway_env(self, base_url: str) -> dict[str, str]:
        """The CLI puts ``/v1beta/models/…`` behind this URL."""
        return {"GOOGLE_GEMINI_BASE_URL": base_url}

    def parser(self) -> StreamParser:
        """A new parser for one run."""
        return GeminiParser()

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        """A whole output in any of the CLI's formats: JSON lines, one JSON object, or plain text."""
        if not _is_stream(stdout):
            return read_oneshot(stdout, stderr, rc)
        parser = GeminiParser()
        return collect_result([*parser.feed(stdout.encode()), *parser.close(rc, stderr)])


class GeminiOneshotAdapter(GeminiAdapter):
    """The documented mode of older releases (C9): the prompt as an argument, one answer at the end, and no session.

    A fallback for releases whose stream cannot be read; the conversation goes on by a recap in the prompt.
    """

    supports_resume = False
    supports_stream_json = False
    prompt_in_argv = True
    capabilities = Capabilities(streaming=False)

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """The documented command line; ``session_id`` is ignored.  Raises InvalidRequestError for a long prompt."""
        del session_id, cwd
        if len(prompt.encode()) > PROMPT_MAX_BYTES:
            message = f"the prompt is longer than the {PROMPT_MAX_BYTES} bytes that an argument may have"
            raise InvalidRequestError(message, backend=self.name)
        # The first character decides whether this word is taken for an option.
        return [self.binary, "--prompt", f"\n{prompt}" if prompt.startswith("-") else no_command(prompt)]

    def parser(self) -> StreamParser:
        """Reads the output as a whole, at its end."""
        return OneshotBridge(cast("AgentAdapter", self))

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        """Plain text, or the one object of ``--output-format json``."""
        return read_oneshot(stdout, stderr, rc)

    def extract_session_id(self, evt: object) -> str | None:
        """There is none."""
        del evt
        return None


GeminiAdapter.oneshot = GeminiOneshotAdapter


def _is_stream(stdout: str) -> bool:
    try:
        first = json.loads(stdout.lstrip().partition("\n")[0])
    except ValueError:
        return False
    return isinstance(first, dict) and isinstance(first.get("type"), str)
