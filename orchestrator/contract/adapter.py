"""What a backend must bring.

``AgentAdapter`` is the documented Protocol; ``BaseAdapter`` gives every optional part a default, so that an adapter
with only the documented members works.  Everything here is pure: an adapter never does I/O, it says what should be
done (argv, environment, gateway route) and reads what was printed (parser).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal, Protocol, runtime_checkable

from orchestrator.contract.types import AgentResult, AuthStatus, Credentials
from orchestrator.errors import InvalidRequestError
from orchestrator.events import AgentEvent, Completed, Error, MessageDelta, SessionStarted, Tokens


class StreamParser(Protocol):
    """Bytes of one run's stdout in, events out; deterministic, with no clock and no I/O.

    Any cutting of the same bytes gives the same events.  ``close`` is called exactly once, after the last ``feed``;
    over a whole run exactly one ``Completed`` or ``Error`` comes out and nothing after it.
    """

    def feed(self, data: bytes) -> list[AgentEvent]:
        """Take the next bytes."""
        ...

    def close(self, exit_code: int | None, stderr_tail: str) -> list[AgentEvent]:
        """The process has ended with ``exit_code`` (128+n for signal n; None: not known)."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """The conversation that a run continues.

    ``session_id``: the CLI's own, which the run was told to resume.  ``tokens``: what the conversation's earlier runs
    have used together, as far as they were told.
    """

    session_id: str
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayRoute:
    """How the gateway reaches the provider of a backend.

    ``upstream``: base URL of the real API, without a trailing slash; the request's path is put behind it.
    ``key_headers``: request headers in which the CLI sends its token; the gateway checks the token there and puts the
    real key in the same header.  ``path_prefixes``: the only paths that are let through (each ends the match at its
    end, ``/`` or ``?``).
    """

    upstream: str
    key_headers: tuple[Literal["x-api-key", "authorization", "x-goog-api-key"], ...]
    path_prefixes: tuple[str, ...]
    longest_wait: float | None = None
    """Seconds that a rate limit may ask the CLI to wait.  One that asks for more is passed on as the error
    ``usage_limit_reached`` of OpenAI's protocols, with the time of its reset; None: it is passed on as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a backend can do."""

    streaming: bool = True
    deltas: bool = False
    thinking: bool = False
    resume: bool = False
    cost: bool = False
    mcp: bool = False
    byo_subscription: bool = False


@runtime_checkable
class AgentAdapter(Protocol):
    """The documented adapter contract."""

    name: str
    binary: str
    supports_resume: bool
    supports_stream_json: bool

    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """The command line.  The prompt goes to stdin unless the adapter says otherwise; never a secret in here."""
        ...

    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """The whole environment of the CLI: nothing else is passed on."""
        ...

    def parse_stream(self, stdout: AsyncIterator[bytes]) -> AsyncIterator[AgentEvent]:
        """Events of a stream, for callers that have one; podmentor itself uses ``parser``."""
        ...

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        """The result of a whole output at once."""
        ...

    def extract_session_id(self, evt: AgentEvent) -> str | None:
        """The CLI's session id, when ``evt`` tells it."""
        ...

    async def probe_auth(self, env: dict[str, str]) -> AuthStatus:
        """Whether the CLI could log in with ``env``."""
        ...


CONTAINER_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BaseAdapter(ABC):
    """Defaults for everything that the documented contract leaves open.  Subclasses set the class attributes."""

    name: ClassVar[str]
    binary: ClassVar[str]
    supports_resume: ClassVar[bool] = False
    supports_stream_json: ClassVar[bool] = True
    supports_byo_subscription: ClassVar[bool] = False
    transport: ClassVar[Literal["subprocess", "http"]] = "subprocess"
    default_allowed_egress: ClassVar[list[str]] = []
    image: ClassVar[str] = ""
    """Name of the image; empty: the adapter's name."""
    gateway: ClassVar[GatewayRoute | None] = None
    subscription_gateway: ClassVar[GatewayRoute | None] = None
    """Where a subscription's requests go, when ``gateway_env`` can send them through the gateway; None: they cannot."""
    credential_files: ClassVar[tuple[str, ...]] = ()
    """Where the CLI keeps its login: JSON files, relative to HOME."""
    capabilities: ClassVar[Capabilities] = Capabilities()
    reports_usage: ClassVar[bool] = True
    """Whether the CLI's output has token counts; the bench holds it to that."""
    prompt_in_argv: ClassVar[bool] = False
    """Whether the CLI takes the prompt as an argument."""
    oneshot: ClassVar[type[BaseAdapter] | None] = None
    """Another adapter of the same backend, for ``oneshot: true`` in its config: one answer at the end, no stream."""

    @abstractmethod
    def build_argv(self, *, prompt: str, session_id: str | None, cwd: Path) -> list[str]:
        """See ``AgentAdapter``."""

    @abstractmethod
    def build_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """See ``AgentAdapter``."""

    def stdin_of(self, prompt: str) -> str:
        """What the CLI reads on stdin: the prompt, as it must be written for this CLI to take it as text.

        A prompt is text whatever it begins with; a CLI that takes ``/word`` for a command must not see it so.
        """
        return prompt

    def gateway_env(self, base_url: str) -> dict[str, str]:
        """Variables that make the CLI talk to the gateway at ``base_url`` (no trailing slash)."""
        del base_url
        return {}

    def gateway_argv(self, base_url: str) -> list[str]:
        """Words behind ``build_argv`` that do the same, for a CLI that takes no base URL from its environment."""
        del base_url
        return []

    def model_argv(self, model: str) -> list[str]:
        """Words behind ``build_argv`` that choose the model, by the name that the provider has for it.

        An adapter whose CLI takes it from its environment returns none, and has ``model_env``.  Raises
        InvalidRequestError: this adapter cannot choose one.
        """
        raise InvalidRequestError(
            f"the adapter of {self.name} cannot choose a model ({model}): leave it out, or set what its CLI reads in"
            " extra_env",
            backend=self.name,
        )

    def model_env(self, model: str) -> dict[str, str]:
        """Variables that choose the model, for a CLI that takes none on its command line; ``extra_env`` yields."""
        del model
        return {}

    def base_env(self, *, creds: Credentials, home: Path | None) -> dict[str, str]:
        """PATH, HOME and LANG as they are inside every container, and the operator's ``extra_env``."""
        return {
            "PATH": CONTAINER_PATH,
            "HOME": str(home or "/home/agent"),
            "LANG": "C.UTF-8",
            **creds.extra_env,
        }

    def parser(self) -> StreamParser:
        """A new parser for one run."""
        raise NotImplementedError

    def parser_for(self, resumed: Resumed | None) -> StreamParser:
        """A new parser for one run that continues ``resumed``; for a CLI whose output depends on what was before."""
        del resumed
        return self.parser()

    async def parse_stream(self, stdout: AsyncIterator[bytes]) -> AsyncIterator[AgentEvent]:
        """``parser`` over an async stream; the end of the stream counts as exit code 0."""
        parser = self.parser()
        async for chunk in stdout:
            for event in parser.feed(chunk):
                yield event
        for event in parser.close(0, ""):
            yield event

    def parse_oneshot(self, stdout: str, stderr: str, rc: int) -> AgentResult:
        """The result of a whole output at once, by the same parser."""
        parser = self.parser()
        return collect_result([*parser.feed(stdout.encode()), *parser.close(rc, stderr)])

    def extract_session_id(self, evt: AgentEvent) -> str | None:
        """The session id of ``session_started``."""
        return evt.session_id if isinstance(evt, SessionStarted) else None

    def login_argv(self) -> list[str] | None:
        """The CLI's own login, for a person at a terminal; None: the CLI has none."""
        return None

    def probe_argv(self) -> list[str] | None:
        """A cheap local command that tells whether the CLI could log in; None: the CLI has none."""
        return None

    def read_probe(self, *, exit_code: int, stdout: str, stderr: str) -> AuthStatus:
        """What the output of ``probe_argv`` says."""
        detail = (stderr or stdout).strip()[:300]
        return AuthStatus(
            installed=exit_code not in {126, 127},
            authenticated=exit_code == 0,
            error=None if exit_code == 0 else detail or f"exit code {exit_code}",
        )

    async def probe_auth(self, env: dict[str, str]) -> AuthStatus:
        """Whether ``env`` alone holds something to log in with; the probe in a container is the runtime's to do."""
        has_key = any(name.endswith(("_API_KEY", "_TOKEN")) and value for name, value in env.items())
        return AuthStatus(installed=True, authenticated=has_key, error=None if has_key else "no key in the environment")

    def call_http(self, *, prompt: str, session_id: str | None, creds: Credentials) -> AsyncIterator[AgentEvent]:
        """Only for ``transport = "http"``."""
        del prompt, session_id, creds
        raise NotImplementedError(f"{self.name} is run as a process, not over HTTP")


def collect_result(events: list[AgentEvent]) -> AgentResult:
    """Fold the events of a whole run into its result."""
    session_id: str | None = None
    text: dict[str, list[str]] = {}
    for event in events:
        match event:
            case SessionStarted():
                session_id = event.session_id
            case MessageDelta():
                text.setdefault(event.message_id, []).append(event.text)
            case Completed():
                return AgentResult(
                    final_text=event.final_text,
                    is_error=False,
                    session_id=session_id,
                    stop_reason=event.stop_reason,
                    tokens=event.tokens.to_dict(),
                    cost_usd=event.cost_usd,
                )
            case Error():
                last = "".join(list(text.values())[-1]) if text else ""
                return AgentResult(final_text=last, is_error=True, session_id=session_id, error=event.data())
            case _:
                continue
    return AgentResult(
        final_text="",
        is_error=True,
        session_id=session_id,
        error={"reason": "lost", "message": "the output has no end"},
    )


def tool_name(backend: str) -> str:
    """The name of a backend's tool: ``claude_code`` for ``claude-code``."""
    return backend.replace("-", "_")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendInfo:
    """One enabled backend as clients see it."""

    name: str
    tool_name: str
    image: str | None
    """Image id; null: not built."""
    image_tag: str | None
    cli_version: str | None
    capabilities: Capabilities
    default_allowed_egress: list[str]
    auth: Mapping[str, object] = field(default_factory=dict)
    """link, authenticated and, when it is not, error: for the asking user; never a value."""
    capabilities_seen: Mapping[str, object] | None = None
    """What `podmentor bench` observed of exactly this CLI version: cli_version, when, capabilities, timings (in
    seconds, on the machine where it ran); null: this version was not tried."""
