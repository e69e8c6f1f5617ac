"""How a run's CLI reaches the model provider.  Pure.

With a key: through the gateway, which exchanges the run's token for the key.  With a subscription the CLI brings its
own login: in tier 0 it goes to the provider directly, as it does on its user's own machine (through the gateway when
the operator names another ``base_url``); in tier 1 there is only the gateway, which passes the login through.
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

    Raises InvalidRequestError for a subscription that has no way out of tier 1.
    """
    route = adapter.gateway
    if subscription:
        route = adapter.subscription_gateway
        if tier == 1 and route is None:
            raise InvalidRequestError(
                f"a subscription to {adapter.name} needs tier 0 or the egress proxy: this CLI cannot send it through"
                " the gateway, and tier 1 has no other way out here; use tier 0, or a key"
            )
        if tier == 0 and base_url is None:
            return None
    return route if route is None or base_url is None else replace(route, upstream=base_url.rstrip("/"))
