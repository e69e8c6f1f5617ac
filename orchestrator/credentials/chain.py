"""The choice of a run's credential.

Order (C19): the user's subscription, then the user's own key, then the technical user.  Each is a ``CredentialSource``;
the chain only puts them in order, asks them one after another, and says what to do when none has anything.  The
technical user, whose key is in the configuration, is here as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from orchestrator.config.load import KEY_VARIABLES
from orchestrator.config.models import BackendConfig, Config
from orchestrator.contract.credentials import SOURCES, CredentialSource, NotesUse, Resolved, SourceName
from orchestrator.errors import AuthRequiredError, PodmentorError, UnknownBackendError


class CredentialChain:
    """Asks the given credential sources in the documented order, whatever order they are given in."""

    def __init__(self, sources: Iterable[CredentialSource], config: Config) -> None:
        self._sources = sorted(sources, key=lambda source: SOURCES.index(source.source))
        self._backends = config.external_agent.backends

    async def resolve(self, *, user_id: str, backend: str, source: SourceName | None = None) -> Resolved:
        """The first credential found.  Raises AuthRequiredError (with what to do) and UnknownBackendError."""
        config = self._config(backend)
        for place in self._sources:
            if source not in {None, place.source}:
                continue
            if (found := await place.find(user_id, backend, config)) is not None:
                if isinstance(place, NotesUse):
                    await place.used(user_id, backend)
                return found
        if source is not None:
            raise AuthRequiredError(f"the credential {source} of the backend {backend!r} is gone", backend=backend)
        ways = "; or ".join(hint for source in reversed(self._sources) if (hint := source.hint(backend)) is not None)
        raise AuthRequiredError(
            f"no credential for the backend {backend!r}: {ways or 'no place to look for one is set up'}",
            backend=backend,
        )

    async def explain(self, *, user_id: str, backend: str) -> list[dict[str, Any]]:
        """Every credential source in its order: {source, chosen, reason}.  Raises UnknownBackendError."""
        config = self._config(backend)
        reports: list[dict[str, Any]] = []
        winner: str | None = None
        for source in self._sources:
            try:
                found = await source.find(user_id, backend, config)
            except PodmentorError as error:
                effect = f"but {winner} comes first" if winner else "and no other is used in its place"
                reports.append({"source": source.source, "chosen": False, "reason": f"{error.message} ({effect})"})
                winner = winner or source.source
                continue
            if found is None:
                hint = source.hint(backend)
                reason = "this backend has no such login" if hint is None else f"nothing found; to use it: {hint}"
            elif winner is not None:
                reason = f"available, but {winner} comes first"
            else:
                reason = "found, and nothing that comes before it has anything"
            reports.append({"source": source.source, "chosen": found is not None and winner is None, "reason": reason})
            if found is not None and winner is None:
                winner = source.source
        return reports

    def _config(self, backend: str) -> BackendConfig:
        config = self._backends.get(backend)
        if config is None or not config.enabled:
            raise UnknownBackendError(f"no backend {backend!r} is enabled", backend=backend)
        return config


class TechnicalUser:
    """``external_agent.backends.<name>.api_key``."""

    source: Final[SourceName] = "technical_user"

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The configured key, the same for every user.  An empty one (an unset variable, say) counts as none."""
        del user_id, backend
        key = config.api_key.get_secret_value().strip() if config.api_key is not None else ""
        if not key:
            return None
        return Resolved(source=self.source, api_key=key, extra_env=dict(config.extra_env))

    def hint(self, backend: str) -> str:
        """Where the key goes."""
        variable = KEY_VARIABLES.get(backend, backend.upper().replace("-", "_") + "_API_KEY")
        return f"set external_agent.backends.{backend}.api_key in podmentor.yaml, e.g. api_key: ${{env:{variable}}}"
