"""The configuration as it may be shown: every secret as ``***``."""

from typing import Any

from orchestrator.config.models import Config

HIDDEN = "***"


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
