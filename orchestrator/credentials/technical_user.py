"""The operator's own key, from podmentor.yaml: what everybody uses who brings nothing."""

from __future__ import annotations

from typing import Final

from orchestrator.config.load import KEY_VARIABLES
from orchestrator.config.models import BackendConfig
from orchestrator.contract.credentials import LinkName, Resolved


class TechnicalUser:
    """``external_agent.backends.<name>.api_key``."""

    link: Final[LinkName] = "technical_user"

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The configured key, the same for every user.  An empty one (an unset variable, say) counts as none."""
        del user_id, backend
        key = config.api_key.get_secret_value().strip() if config.api_key is not None else ""
        if not key:
            return None
        return Resolved(link=self.link, api_key=key, extra_env=dict(config.extra_env))

    def hint(self, backend: str) -> str:
        """Where the key goes."""
        variable = KEY_VARIABLES.get(backend, backend.upper().replace("-", "_") + "_API_KEY")
        return f"set external_agent.backends.{backend}.api_key in podmentor.yaml, e.g. api_key: ${{env:{variable}}}"
