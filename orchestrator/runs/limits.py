"""The limits of one run, in the documented order: built in, then default_limits, then the backend's (C23).

A caller may narrow them, never widen.  Pure.
"""

import math
from dataclasses import fields, replace
from typing import Any

from orchestrator.config.models import Config
from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import InvalidRequestError, UnknownBackendError


def resolve_limits(config: Config, backend: str, request: LimitsRequest) -> ResourceLimits:
    """What a run of ``backend`` may use.

    Raises UnknownBackendError when the configuration does not enable it, and InvalidRequestError (``details``: limit,
    asked, allowed) when ``request`` asks for more than is configured, or for nothing at all.
    """
    settings = config.external_agent.backends.get(backend)
    if settings is None or not settings.enabled or not config.external_agent.enabled:
        raise UnknownBackendError(f"no backend {backend!r} is enabled", backend=backend)
    limits = ResourceLimits()
    for level in (config.external_agent.default_limits, settings.limits):
        limits = replace(limits, **level.model_dump(exclude_none=True))
    return narrow(limits, request)


def narrow(limits: ResourceLimits, request: LimitsRequest) -> ResourceLimits:
    """``limits``, made smaller where ``request`` says so.  None in ``limits`` is unlimited: any value narrows it."""
    asked: dict[str, Any] = {}
    for item in fields(request):
        value = getattr(request, item.name)
        if value is None:
            continue
        allowed = getattr(limits, item.name)
        if not math.isfinite(value) or value <= 0:
            raise InvalidRequestError(
                f"limit {item.name}: must be more than 0",
                limit=item.name,
                asked=value if math.isfinite(value) else str(value),
                allowed=allowed,
            )
        if allowed is not None and value > allowed:
            raise InvalidRequestError(
                f"limit {item.name}: {value} was asked for, at most {allowed} is allowed",
                limit=item.name,
                asked=value,
                allowed=allowed,
            )
        asked[item.name] = value
    return replace(limits, **asked)
