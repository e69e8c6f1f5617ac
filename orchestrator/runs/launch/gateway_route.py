"""How a run's CLI reaches the model provider.  Pure.

With a key: through the gateway, which exchanges the run's token for the key.  With a subscription the CLI brings its
own login: in tier 0 it goes to the provider directly, as it does on its user's own machine; in tier 1 its requests go
through the gateway, which passes the login through, where the CLI can be told to, else through the egress proxy.  An
operator's ``base_url`` is kept to in every tier: the gateway leads there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from orchestrator.contract.adapter import BaseAdapter, GatewayRoute
from orchestrator.errors import InvalidRequestError


def route_of(
    adapter: BaseAdapter, *, subscription: bool, tier: Literal[0, 1], base_url: str | None
) -> GatewayRoute | None:
    """The gateway's route for the run; None: it has no gateway.

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
    return route if route is None or base_url is None else replace(route, upstream=base_url.rstrip("/"))
