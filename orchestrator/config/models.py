"""The shape of podmentor.yaml.  Every model is frozen and refuses unknown keys.

The ``external_agent`` block keeps the names that Codumentor's documents give it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from orchestrator.config.hosts import direct_pattern, egress_pattern, normalise_host

PLAIN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
USER_ID = r"^[A-Za-z0-9][A-Za-z0-9._@+-]{0,63}$"
"""A plain name or an e-mail address.  User ids become components of paths, so nothing else is let in."""
USER_ID_WORDS = "letters, digits, '.', '_', '-', '+' and '@', at most 64"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
HIDDEN = "***"
"""Stands for a secret in what is shown of the configuration."""
MODEL_MAX = 200
_MODEL = re.compile(rf"[!-,.-~][!-~]{{0,{MODEL_MAX - 1}}}")
_CALL = re.compile(r"/(chat/completions|messages|responses)$")
"""What stands behind the address of an API in the URL of a call."""


def _a_number(value: Any) -> Any:
    """YAML reads ``yes`` and ``on`` as true, which must not become a limit of 1."""
    if isinstance(value, bool):
        raise ValueError("must be a number, not yes/no")  # noqa: TRY004  # pydantic reports ValueErrors only
    return value


def _expanded(value: Any) -> Any:
    """``~`` at the start of a path is the user's home."""
    return str(Path(value).expanduser()) if isinstance(value, str) and value.startswith("~") else value


def _absolute(value: Path) -> Path:
    if not value.is_absolute():
        raise ValueError("must be an absolute path")
    return value


def _base_url(value: str) -> str:
    """http(s), a host, nothing that would be lost or shown: user:password, query, fragment."""
    parts = urlsplit(value)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ValueError("must be a URL such as https://api.example.com")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user name or password; give the key as api_key")
    if parts.query or parts.fragment:
        raise ValueError("must not have a query or a fragment")
    return value.rstrip("/")


def _provider_url(value: str) -> str:
    """A base URL, and not the address of one of the API's calls."""
    value = _base_url(value)
    if found := _CALL.search(value):
        raise ValueError(f"must be the address of the API, without the call behind it: leave out {found[0]}")
    return value


def model_name(value: str) -> str:
    """A model's name as it may stand on a command line: printable ASCII without spaces, no dash at its beginning."""
    if not _MODEL.fullmatch(value):
        raise ValueError(
            f"must be a model's name: at most {MODEL_MAX} printable characters without spaces, and no dash at the start"
        )
    return value


def _variables(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not _VARIABLE.match(name):
            raise ValueError("has a name that no environment variable can have")
        if "\0" in text:
            raise ValueError("has a value with a NUL byte")
    return value


Count = Annotated[int, BeforeValidator(_a_number), Field(gt=0)]
Bytes = Annotated[int, BeforeValidator(_a_number), Field(gt=0)]
Seconds = Annotated[float, BeforeValidator(_a_number), Field(gt=0)]
Cpus = Annotated[float, BeforeValidator(_a_number), Field(gt=0)]
AbsolutePath = Annotated[Path, BeforeValidator(_expanded), AfterValidator(_absolute)]


class Model(BaseModel):
    """Base of all settings."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class LimitsConfig(Model):
    """Limits of a run; what is not given comes from the next level (backend, then default_limits, then built in)."""

    memory_max_bytes: Bytes | None = None
    wall_clock_seconds: Seconds | None = None
    idle_seconds: Seconds | None = None
    start_seconds: Seconds | None = None
    output_max_bytes: Bytes | None = None
    pids_max: Count | None = None
    cpus: Cpus | None = None
    disk_max_bytes: Bytes | None = None


class BackendConfig(Model):
    """One backend."""

    enabled: bool = True
    binary: str | None = None
    """Another executable inside the image."""
    mode: Literal["technical_user", "byo_key", "byo_subscription"] = "technical_user"
    oneshot: bool = False
    """Use the backend's plain mode, one answer at the end without a stream, where its adapter has one (gemini)."""
    api_key: SecretStr | None = None
    """The technical user's key, usually ``${env:ANTHROPIC_API_KEY}``."""
    extra_env: Annotated[dict[str, str], AfterValidator(_variables)] = Field(default_factory=dict)
    allowed_egress: list[Annotated[str, AfterValidator(egress_pattern)]] | None = None
    limits: LimitsConfig = LimitsConfig()
    login_command: Annotated[list[str], Field(min_length=1)] | None = None
    """What ``podmentor login`` runs in the image instead of the CLI's usual login."""
    base_url: Annotated[str, AfterValidator(_provider_url)] | None = None
    """Where the API of the provider (or of the peer instance) is, when it is not where the adapter looks: the address
    as the provider documents it, with or without the version at its end (``/v1``)."""
    model: Annotated[str, AfterValidator(model_name)] | None = None
    """By the name that the provider has for it, for runs that name none; None: the CLI's own choice."""
    expose_mcp_tools: list[str] = Field(default_factory=list)
    workspace: Literal["overlay", "copy", "direct", "readonly"] = "overlay"
    """What a new subagent works on, when its first run does not say."""


class ExternalAgentConfig(Model):
    """The documented block."""

    enabled: bool = True
    default_sandbox_tier: Literal[0, 1] = 0
    default_limits: LimitsConfig = LimitsConfig()
    target_agents: Literal["main", "subagent", "all"] = "main"
    backends: dict[Annotated[str, Field(pattern=PLAIN_NAME)], BackendConfig] = Field(default_factory=dict)


class ServerConfig(Model):
    """The HTTP API."""

    host: str = "127.0.0.1"
    port: Annotated[int, BeforeValidator(_a_number), Field(ge=0, le=65535)] = 8765
    allowed_hosts: list[str] = Field(default_factory=list)
    """Further names under which clients reach the API (its Host header); localhost and ``host`` always work."""
    max_body_bytes: Bytes = 4 * 1024**2
    max_query_chars: Count = 1_000_000
    heartbeat_seconds: Seconds = 10.0


class StorageConfig(Model):
    """Where state lives.  Unset: ``$XDG_STATE_HOME/podmentor`` and ``$XDG_RUNTIME_DIR/podmentor``."""

    state_dir: AbsolutePath | None = None
    runtime_dir: AbsolutePath | None = None
    retention_days: Annotated[float, BeforeValidator(_a_number), Field(gt=0)] = 30.0
    """What ``podmentor gc`` keeps: subagents and logs that were used within so many days."""
    keep_free_bytes: Annotated[int, BeforeValidator(_a_number), Field(ge=0)] = 256 * 1024**2
    """With less left on the disk of the state no run is taken; with less than a quarter of it, runs are ended."""


class VaultConfig(Model):
    """Where the master key of the vault is.  Neither given nor there: there is no vault."""

    key_file: AbsolutePath | None = None
    """Unset: ``<state>/vault.key``, if it exists."""
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = "PODMENTOR_VAULT_KEY"
    """The variable that holds the key, when ``key_file`` is not given."""


class RunsConfig(Model):
    """How many runs at once, and how long the line may be."""

    max_concurrent: Count = 8
    max_concurrent_per_home: Count = 1
    """Of one user's subscription to one backend: CLIs that renew the same login at once can lose it."""
    max_queued: Annotated[int, BeforeValidator(_a_number), Field(ge=0)] = 1000


class PodmanConfig(Model):
    """The container runtime."""

    socket: AbsolutePath | None = None
    """An existing Podman service; unset: the user's own socket if it answers, else one is started."""
    start_concurrency: Annotated[int, BeforeValidator(_a_number), Field(gt=0, le=32)] = 4
    tier0_network: Literal["default", "host"] = "default"
    require_cgroup_limits: bool = False
    runtime: str | None = None
    """OCI runtime; unset: the first of the installed ones that really runs a container."""


class ImagesConfig(Model):
    """How images are built."""

    base: str = "auto"
    ca_bundle: AbsolutePath | None = None


def _proxy_url(value: str) -> str:
    parts = urlsplit(value)
    if "@" in parts.netloc:
        raise ValueError("must not hold credentials: they belong into username and password")
    try:
        good = parts.scheme == "http" and parts.path in {"", "/"} and not parts.query and not parts.fragment
        host = normalise_host(parts.hostname or "")
        port = 80 if parts.port is None else parts.port
    except ValueError:
        good, host, port = False, "", 0
    if not good or not port:
        raise ValueError("must be like http://proxy.example.com:3128")
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


class UpstreamProxyConfig(Model):
    """The HTTP proxy through which this machine reaches the internet."""

    url: Annotated[str, AfterValidator(_proxy_url)]
    username: Annotated[str, Field(min_length=1, pattern=r"^[^:]*$")] | None = None
    password: SecretStr | None = None
    """Usually ``${secret:NAME}``."""
    no_proxy: list[Annotated[str, AfterValidator(direct_pattern)]] = Field(default_factory=list)
    """Hosts, ``*.DOMAIN``, addresses and networks that are reached without it."""

    @model_validator(mode="after")
    def _both(self) -> Self:
        if self.password is not None and self.username is None:
            raise ValueError("password needs a username beside it")
        return self


class EgressConfig(Model):
    """What the relay does on behalf of the runs: the egress proxy of tier 1, and the network that it stands in."""

    allow_by: Literal["owner", "admin"] = "owner"
    """Who may allow a further host for the rest of a run: its owner too, or admins only."""
    hosts_file: AbsolutePath | None = None
    """Names are looked up in this file alone (lines as in /etc/hosts), not by the system's resolver."""
    upstream_proxy: UpstreamProxyConfig | None = None
    ca_file: AbsolutePath | None = None
    """Authorities trusted beside the system's when a provider is reached (PEM)."""


class TelemetryConfig(Model):
    """Traces for an OpenTelemetry collector."""

    otlp_endpoint: Annotated[str, AfterValidator(_base_url)] | None = None
    """Base URL of an OTLP/HTTP receiver (``/v1/traces`` is added); unset: ``$OTEL_EXPORTER_OTLP_ENDPOINT``, else no
    traces."""


class Config(Model):
    """The whole file."""

    external_agent: ExternalAgentConfig = ExternalAgentConfig()
    server: ServerConfig = ServerConfig()
    storage: StorageConfig = StorageConfig()
    repos: dict[Annotated[str, Field(pattern=PLAIN_NAME)], AbsolutePath] = Field(default_factory=dict)
    vault: VaultConfig = VaultConfig()
    runs: RunsConfig = RunsConfig()
    podman: PodmanConfig = PodmanConfig()
    images: ImagesConfig = ImagesConfig()
    egress: EgressConfig = EgressConfig()
    telemetry: TelemetryConfig = TelemetryConfig()


class Paths(Model):
    """Every place on disk, resolved."""

    state_dir: Path
    runtime_dir: Path

    @property
    def database(self) -> Path:
        """The SQLite journal."""
        return self.state_dir / "podmentor.db"

    @property
    def lock_file(self) -> Path:
        """Held by the one service that owns this state directory."""
        return self.state_dir / "service.lock"

    @property
    def api_socket(self) -> Path:
        """The API on a Unix socket, for the command on the same machine."""
        return self.runtime_dir / "api.sock"

    @property
    def token_file(self) -> Path:
        """The local owner's token: made at first use, 0600."""
        return self.state_dir / "local-token"

    @property
    def plugin_storage(self) -> Path:
        """Subscriptions: HOMEs and what is noted about them."""
        return self.state_dir / "external_agent"

    @property
    def vault_key(self) -> Path:
        """The vault's master key, unless the configuration puts it elsewhere."""
        return self.state_dir / "vault.key"

    @property
    def audit_log(self) -> Path:
        """Who did what: see docs/audit.md."""
        return self.state_dir / "audit.log"

    def run_dir(self, run_id: str) -> Path:
        """Durable files of one run."""
        return self.state_dir / "runs" / run_id

    def log_path(self, run_id: str) -> Path:
        """The log that conmon writes."""
        return self.run_dir(run_id) / "ctr.log"

    def subagent_dir(self, subagent_id: str) -> Path:
        """home, upper and work of one subagent."""
        return self.state_dir / "subagents" / subagent_id

    def control_dir(self, run_id: str) -> Path:
        """Prompt and sockets of one run (Unix socket paths: 107 bytes at most, so this is kept short)."""
        return self.runtime_dir / run_id


def public(config: Config) -> dict[str, Any]:
    """Plain JSON data of the whole configuration.

    Hidden are keys, and the values of ``extra_env``: nobody can know which of those are secret, so all count as such.
    """
    data = config.model_dump(mode="json", exclude_none=True)
    for name, backend in config.external_agent.backends.items():
        shown = data["external_agent"]["backends"][name]
        if backend.api_key is not None:
            shown["api_key"] = HIDDEN
        shown["extra_env"] = dict.fromkeys(backend.extra_env, HIDDEN)
    if config.egress.upstream_proxy is not None and config.egress.upstream_proxy.password is not None:
        data["egress"]["upstream_proxy"]["password"] = HIDDEN
    return data
