"""What a run in tier 1 may reach, and how its processes are told.  Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal

from orchestrator.config.hosts import HostPattern, as_address, egress_pattern, parse_pattern
from orchestrator.config.models import Config
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.egress import EGRESS_PORT
from orchestrator.errors import ForbiddenError, InvalidRequestError

PROXY_VARIABLES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
NO_PROXY: Final = "localhost,127.0.0.1,::1"
"""What is inside the container itself: its gateway, and servers that the agent starts."""


def resolve_egress(
    config: Config, adapter: BaseAdapter, *, tier: Literal[0, 1], asked: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The host patterns of a run, in the documented order: the backend's, else the adapter's (C23).

    ``asked`` may narrow them.  None: tier 0, where there is no proxy.  Raises InvalidRequestError (``details``: asked,
    allowed) for what is not covered, or in tier 0.
    """
    if tier == 0:
        if asked is not None:
            raise InvalidRequestError("egress: can be narrowed in tier 1 only; tier 0 has an open network")
        return None
    configured = config.external_agent.backends[adapter.name].allowed_egress
    allowed = (
        configured if configured is not None else [egress_pattern(host) for host in adapter.default_allowed_egress]
    )
    if asked is None:
        return tuple(dict.fromkeys(allowed))
    patterns = [parse_pattern(text) for text in allowed]
    return tuple(dict.fromkeys(_narrowed(text, patterns) for text in asked))


def _narrowed(text: str, allowed: Iterable[HostPattern]) -> str:
    try:
        pattern = parse_pattern(text)
    except ValueError as error:
        raise InvalidRequestError(f"egress: {text!r} {error}") from None
    if not any(wider.covers(pattern) for wider in allowed):
        raise InvalidRequestError(
            f"egress: {pattern} is not covered by what is configured ({', '.join(map(str, allowed)) or 'nothing'}); a"
            " request may narrow that, not widen it",
            asked=str(pattern),
            allowed=[str(wider) for wider in allowed],
        )
    return str(pattern)


def added_rule(config: Config, host: str, port: int | None, *, privileged: bool) -> HostPattern:
    """One host, to be allowed for the rest of a run.

    Raises InvalidRequestError, and ForbiddenError for what only an admin may do: addresses, which open internal
    networks too, and any host where the configuration says so.
    """
    try:
        pattern = parse_pattern(host)
    except ValueError as error:
        raise InvalidRequestError(f"host: {error}") from None
    if pattern.wildcard:
        raise InvalidRequestError("host: one host is allowed at a time; patterns belong into the configuration")
    if pattern.port is not None:
        raise InvalidRequestError("host: give the port as port")
    if not privileged and config.egress.allow_by == "admin":
        raise ForbiddenError("only an admin may allow further hosts here (egress.allow_by)")
    if not privileged and as_address(pattern.host) is not None:
        raise ForbiddenError("only an admin may allow an address; use the host's name")
    return HostPattern(pattern.host, port=port)


def _apply_egress_policy(allowed: Sequence[str] | None, env: Mapping[str, str]) -> dict[str, str]:
    """The documented step (C22): ``env`` with the variables that send its programs to the proxy.

    ``allowed`` None: there is no proxy and nothing changes.  A list, an empty one too, means that the proxy is the only
    way out, so whatever else the variables said is replaced: it could not be reached.
    """
    if allowed is None:
        return dict(env)
    names = dict.fromkeys(PROXY_VARIABLES, f"http://127.0.0.1:{EGRESS_PORT}") | {"NO_PROXY": NO_PROXY}
    return {**env, **names, **{name.lower(): value for name, value in names.items()}}


apply_egress_policy = _apply_egress_policy
