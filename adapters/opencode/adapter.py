"""How the OpenCode CLI is started, what it may reach, and what its login probe says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, ClassVar, Final

from adapters.opencode.failures import plain
from adapters.opencode.parser import OpenCodeParser
from orchestrator.adapterkit.command import cannot_be_run, output_tail
from orchestrator.adapterkit.parsing import JsonLinesParser
from orchestrator.contract.adapter import BaseAdapter, Capabilities, GatewayRoute
from orchestrator.contract.types import AuthStatus, Credentials
from orchestrator.errors import InvalidRequestError

DEFAULT_MODEL: Final = "gpt-5.5"
"""A model of the default upstream; The run's or the backend's ``model`` names another."""
PROVIDER: Final = "gateway"
"""What OpenCode calls the provider behind the gateway.  The plugin in the image knows it too."""
CONFIG_HOME: Final = "/etc/podmentor"
"""In the image and not writable: OpenCode would run npm to fetch packages into a directory that it may write to."""

QUIET_ENV: Final = {
    "OPENCODE_DISABLE_AUTOUPDATE": "1",
    "OPENCODE_DISABLE_MODELS_FETCH": "1",
    "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
    "OPENCODE_DISABLE_SHARE": "1",
    # Nobody looks at what changes while a run goes on.
    "OPENCODE_EXPERIMENTAL_DISABLE_FILEWATCHER": "1",
    "XDG_CONFIG_HOME": CONFIG_HOME,
}
KEY_ENV: Final = {
    # The built-in catalogue of all providers' models is two thirds of the time that OpenCode takes to start, and says
    # nothing of the one provider that is used.
    "OPENCODE_MODELS_PATH": f"{CONFIG_HOME}/opencode/models.json",
    # They are logins of other providers.
    "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
}
SETTINGS: Final[dict[str, Any]] = {
    "autoupdate": False,
    "share": "disabled",
    # For its undo: a git tree of the workspace before and behind each step.  Ours is the overlay.
    "snapshot": False,
}
_SESSION = re.compile(r"ses_[0-9A-Za-z]{1,64}")
_COUNT = re.compile(r"(\d+) credentials?\b")


class OpenCodeAdapter(BaseAdapter):
    """OpenCode, one process per run, the prompt on stdin, JSON lines on stdout.

    Variables in the backend's ``extra_env``: OPENCODE_CONFIG_CONTENT, JSON in the form of OpenCode's configuration
    file, laid over ours; OPENCODE_MAX_RETRIES (3) and OPENCODE_MAX_RETRY_SECONDS (30, the longest wait that a provider
    may ask for).
    """

    name = "opencode"
    binary = "opencode"
    supports_resume = True
    supports_stream_json = True
    supports_byo_subscription = True
    session_example = "ses_dd3b60b1bffeEikA0WhWEP751b"
    """For the conformance kit, whose own is a UUID."""
    default_allowed_egress: ClassVar[list[str]] = [
        "api.anthropic.com",
        "api.openai.com",
        "openrouter.ai",
        "generativelanguage.googleapis.com",
        # Additions to the documented list: a login with a ChatGPT subscription is renewed and used there.
        "auth.openai.com",
        "chatgpt.com",
    ]
    gateway = GatewayRoute(
        upstream="https://api.openai.com/v1",
        key_headers=("authorization",),
        path_prefixes=("/chat/completions", "/models"),
    )
    credential_files = (".local/share/opencode/auth.json",)
    capabilities = Capabilities(  # the cost is known only when the operator's configuration has prices
        streaming=True, deltas=True, thinking=True, resume=True, cost=False, mcp=True, byo_subscription=True
    )

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """The command line; the prompt is read from stdin, to its end.

        Raises InvalidRequestError when ``session_id`` is not one that this CLI could have given.
        """
        del prompt, cwd
        argv = [self.binary, "run", "--format", "json", "--auto", "--thinking"]
        if session_id is None:
            # A session without a title costs a request more, for the model to find one.
            return [*argv, "--title", "podmentor"]
        if not _SESSION.fullmatch(session_id):
            raise InvalidRequestError("the session id is not an OpenCode session id (ses_…)", backend=self.name)
        return [*argv, "--session", session_id]

    def model_argv(self, model: str) -> list[str]:
        """None: the model is part of the configuration that ``build_env`` makes."""
        del model
        return []

    def model_env(self, model: str) -> dict[str, str]:
        """By the provider's own name for it, without OpenCode's name of the provider."""
        return {"OPENCODE_MODEL": model}

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """Everything the CLI gets; the operator's ``extra_env`` wins over our settings, never over the key."""
        given = self.base_env(creds=creds, home=home or creds.home)
        base_url = given.pop("OPENCODE_GATEWAY_URL", None)
        model = given.pop("OPENCODE_MODEL", None)
        config = SETTINGS
        env = QUIET_ENV
        if base_url is not None:
            env = {**env, **KEY_ENV}
            config = {**config, **_provider(model or DEFAULT_MODEL, base_url)}
        elif model is not None:
            config = {**config, "model": model}
        config = _laid_over(config, _operators(given.get("OPENCODE_CONFIG_CONTENT")))
        env = {**env, **given, "OPENCODE_CONFIG_CONTENT": json.dumps(config)}
        if creds.api_key is not None:
            env["OPENCODE_API_KEY"] = creds.api_key
        return env

    def gateway_env(self, base_url: str) -> dict[str, str]:
        """The CLI puts ``/chat/completions`` behind this URL; ``build_env`` makes configuration of it."""
        return {"OPENCODE_GATEWAY_URL": base_url}

    def parser(self) -> JsonLinesParser:
        """A new parser for one run."""
        return OpenCodeParser()

    def login_argv(self) -> list[str] | None:
        """A menu of providers and of their ways to log in; "headless" ones show a URL to open anywhere."""
        return [self.binary, "auth", "login"]

    def probe_argv(self) -> list[str] | None:
        """Takes about a second without the catalogue; tells whether a login is there, not whether it is good."""
        return ["env", *(f"{name}={value}" for name, value in KEY_ENV.items()), self.binary, "auth", "list"]

    def read_probe(self, *, exit_code: int, stdout: str, stderr: str) -> AuthStatus:
        """The exit code is always 0; the words count what is in OpenCode's ``auth.json``."""
        if exit_code in {126, 127}:
            return cannot_be_run(self.binary, stderr)
        counted = _COUNT.search(plain(stdout))
        if counted is None:
            said = output_tail(stderr or stdout)
            error = f"`{self.binary} auth list` printed no count (exit code {exit_code}): {said}"
            return AuthStatus(installed=True, authenticated=False, error=error)
        if int(counted[1]) > 0:
            return AuthStatus(installed=True, authenticated=True)
        return AuthStatus(installed=True, authenticated=False, error="not logged in")


def _provider(model: str, base_url: str) -> dict[str, Any]:
    """One provider, the gateway, with one model.  The key is not in here: OpenCode takes it from the environment."""
    options = {"baseURL": base_url, "apiKey": "{env:OPENCODE_API_KEY}"}
    provider = {"npm": "@ai-sdk/openai-compatible", "name": PROVIDER, "options": options, "models": {model: {}}}
    chosen = f"{PROVIDER}/{model}"
    return {
        "enabled_providers": [PROVIDER],
        "provider": {PROVIDER: provider},
        "model": chosen,
        "small_model": chosen,
    }


def _operators(text: str | None) -> dict[str, Any]:
    """The operator's own configuration.  Raises InvalidRequestError when it is no JSON object."""
    try:
        config = json.loads(text) if text else {}
    except ValueError:
        config = None
    if not isinstance(config, dict):
        raise InvalidRequestError("OPENCODE_CONFIG_CONTENT in extra_env is not a JSON object", backend="opencode")
    return config


def _laid_over(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Objects are merged, all else is replaced."""
    merged = dict(ours)
    for name, value in theirs.items():
        mine = merged.get(name)
        merged[name] = _laid_over(mine, value) if isinstance(mine, dict) and isinstance(value, dict) else value
    return merged
