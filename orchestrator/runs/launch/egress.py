"""What a run may reach: the model provider through its gateway, other hosts through its proxy.  Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, Literal
from urllib.parse import urlsplit

from orchestrator.config.hosts import HostPattern, as_address, egress_pattern, parse_pattern
from orchestrator.config.models import Config
from orchestrator.contract.adapter import BaseAdapter, GatewayRoute
from orchestrator.contract.egress import EGRESS_PORT
from orchestrator.errors import ForbiddenError, InvalidRequestError

_VERSION: Final = re.compile(r"/v\d+(?:(?:alpha|beta)\d*)?(?=/|$)")
_VERSION_AT_END: Final = re.compile(_VERSION.pattern + "$")
PROXY_VARIABLES: Final = ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY")
NO_PROXY: Final = "localhost,127.0.0.1,::1"
"""What is inside the container itself: its gateway, and servers that the agent starts."""


def route_of(
    adapter: BaseAdapter, *, subscription: bool, tier: Literal[0, 1], base_url: str | None
) -> GatewayRoute | None:
    """The gateway's route for the run; None: it has no gateway.

    With a key: the gateway exchanges the run's token for the key.  With a subscription the CLI brings its own login: in
    tier 0 it goes to the provider directly, as it does on its user's own machine; in tier 1 its requests go through the
    gateway, which passes the login through, where the CLI can be configured so, else through the egress proxy.  An
    operator's ``base_url`` is kept to in every tier: the gateway leads there.

    Raises InvalidRequestError for a subscription that would go past ``base_url``.
    """
    route = adapter.gateway
    if subscription:
        route = adapter.subscription_gateway
        if route is None and base_url is not None:
            raise InvalidRequestError(
                f"base_url is set for {adapter.name}, and this CLI cannot send a subscription's requests there; leave"
                " base_url out, or use a key"
            )
        if tier == 0 and base_url is None:
            return None
    return route if route is None or base_url is None else replace(route, upstream=_upstream(route, base_url))


def _upstream(route: GatewayRoute, base_url: str) -> str:
    """``base_url`` such that the paths of the CLI's requests fit behind it.

    It may end in the API's version or not.  Most CLIs begin their paths with the version, so here it must not; where
    the adapter's own upstream has it, the CLI does not, and here it must.
    """
    base = base_url.rstrip("/")
    path = urlsplit(base).path
    if own := _VERSION_AT_END.search(route.upstream):
        return base if _VERSION.search(path) else base + own[0]
    if all(_VERSION.match(prefix) for prefix in route.path_prefixes) and (given := _VERSION_AT_END.search(path)):
        return base.removesuffix(given[0])
    return base


def resolve_egress(
    config: Config, adapter: BaseAdapter, *, tier: Literal[0, 1], asked: Sequence[str] | None
) -> tuple[str, ...] | None:
    """The host patterns of a run when it is accepted, in the documented order: the backend's, else the adapter's (C23).

    The adapter's list is for runs that go to the provider through the proxy; which credential a run uses is known when
    it starts, so here the widest list is meant that it may come to; ``settle_egress`` narrows it then.

    ``asked`` may narrow it.  None: tier 0, where there is no proxy.  Raises InvalidRequestError (``details``: asked,
    allowed) for what is not covered, or in tier 0.
    """
    if tier == 0:
        if asked is not None:
            raise InvalidRequestError(
                "egress: can be narrowed in tier 1 only, and this run is in tier 0, which has an open network"
            )
        return None
    backend = config.external_agent.backends[adapter.name]
    allowed = backend.allowed_egress
    if allowed is None:
        allowed = default_egress(adapter, subscription=backend.mode == "byo_subscription")
    if asked is None:
        return tuple(dict.fromkeys(allowed))
    patterns = [parse_pattern(text) for text in allowed]
    return tuple(dict.fromkeys(_narrowed(text, patterns) for text in asked))


def default_egress(adapter: BaseAdapter, *, subscription: bool) -> list[str]:
    """What a run may reach when nobody has said anything.

    With a key the gateway is the way to the provider, and the proxy would be a second one on which any key is good: an
    agent could hand what it reads to the account of a stranger.  So the adapter's hosts are not opened then.
    """
    if adapter.gateway is not None and not subscription:
        return []
    return [egress_pattern(host) for host in adapter.default_allowed_egress]


def settle_egress(
    config: Config, adapter: BaseAdapter, accepted: tuple[str, ...] | None, *, subscription: bool
) -> tuple[str, ...] | None:
    """What the run may reach, now that it is known what it uses.  Never more than was accepted."""
    if accepted is None or config.external_agent.backends[adapter.name].allowed_egress is not None:
        return accepted
    allowed = [parse_pattern(text) for text in default_egress(adapter, subscription=subscription)]
    return tuple(text for text in accepted if any(wider.covers(parse_pattern(text)) for wider in allowed))


def _narrowed(text: str, allowed: Iterable[HostPattern]) -> str:
    try:
        pattern = parse_pattern(text)
    except ValueError as error:
        raise InvalidRequestError(f"egress: {text!r} {error}") from None
    if not any(wider.covers(pattern) for wider in allowed):
        raise InvalidRequestError(
            f"egress: {pattern} is not covered by what is configured ({', '.join(map(str, allowed)) or 'nothing'}); a"
            " request may narrow that, not widen it: put the host into allowed_egress of this backend, or allow it"
            " while the run goes on",
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

    ``allowed`` None: there is no proxy and nothing changes.  A list, an empty one too, means that nothing
    else can be reached, so whatever else the variables said is replaced.
    """
    if allowed is None:
        return dict(env)
    names = dict.fromkeys(PROXY_VARIABLES, f"http://127.0.0.1:{EGRESS_PORT}") | {"NO_PROXY": NO_PROXY}
    return {**env, **names, **{name.lower(): value for name, value in names.items()}}


apply_egress_policy = _apply_egress_policy
