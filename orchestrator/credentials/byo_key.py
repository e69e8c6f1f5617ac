"""A user's own key (C18, C19): kept in the vault, shown to nobody, used for that user's runs alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from orchestrator.config.models import BackendConfig
from orchestrator.contract.audit import Audit
from orchestrator.contract.credentials import KeyInfo, Resolved, SourceName
from orchestrator.contract.secrets import SecretInfo, SecretStore
from orchestrator.contract.types import Credentials
from orchestrator.errors import InvalidRequestError, NotFoundError, UnknownBackendError, VaultUnavailableError

MIN_CHARS: Final = 8
MAX_CHARS: Final = 4096
_PREFIX: Final = "external_agent/"
_SUFFIX: Final = "/api_key"
_NO_VAULT: Final = (
    "this service has no vault, so it keeps no keys of users; its operator makes one: podmentor vault init"
)
_VISIBLE = re.compile(r"[!-~]+")


def secret_name(backend: str) -> str:
    """Under which name the key of a backend is stored."""
    return f"{_PREFIX}{backend}{_SUFFIX}"


async def resolve(*, store: SecretStore | None, user_id: str, backend: str) -> Credentials | None:
    """The user's own key; None: there is none, or no store.

    Raises SecretUnreadableError, VaultUnavailableError: a key that is there and cannot be read must not silently
    become somebody else's.
    """
    value = None if store is None else await store.get(user_id, secret_name(backend))
    return None if value is None else Credentials(api_key=value)


def check_key(text: str) -> str:
    """``text``, trimmed, when it can be a key.  Raises InvalidRequestError, which does not quote it."""
    key = text.strip()
    if not MIN_CHARS <= len(key) <= MAX_CHARS:
        raise InvalidRequestError(f"a key has {MIN_CHARS} to {MAX_CHARS} characters; this has {len(key)}")
    if not _VISIBLE.fullmatch(key):
        raise InvalidRequestError("a key is one word of visible ASCII characters; this has others in it")
    return key


class ByoKey:
    """The credential source of a user's own key.  ``store`` None: no vault, so nobody has a key of their own."""

    source: Final[SourceName] = "byo_key"

    def __init__(self, store: SecretStore | None) -> None:
        self._store = store

    async def find(self, user_id: str, backend: str, config: BackendConfig) -> Resolved | None:
        """The user's key, with a copy of what the operator adds to the environment."""
        found = await resolve(store=self._store, user_id=user_id, backend=backend)
        if found is None:
            return None
        return Resolved(source=self.source, api_key=found.api_key, home=found.home, extra_env=dict(config.extra_env))

    async def used(self, user_id: str, backend: str) -> None:
        """Record the time of this use."""
        if self._store is not None:
            await self._store.touch(user_id, secret_name(backend))

    def hint(self, backend: str) -> str:
        """How a user brings a key."""
        if self._store is None:
            return "have the operator make a vault (podmentor vault init), then store your own key"
        return f"store your own key: podmentor keys set {backend}, or PUT /v1/keys/{backend}"


class OwnKeys:
    """What users do with their keys; implements ``UserKeys``."""

    def __init__(self, store: SecretStore | None, audit: Audit, backends: Iterable[str]) -> None:
        """``backends``: those for which a key can be stored."""
        self._store = store
        self._audit = audit
        self._backends = frozenset(backends)

    async def put(self, *, user_id: str, backend: str, api_key: str, actor: str) -> KeyInfo:
        """Store a key; recorded in the audit log before.  Raises UnknownBackendError, InvalidRequestError,
        VaultUnavailableError."""
        store = self._vault()
        if backend not in self._backends:
            raise UnknownBackendError(f"no such backend is enabled; enabled: {', '.join(sorted(self._backends))}")
        key = check_key(api_key)
        await self._audit.record("key.set", actor=actor, user_id=user_id, backend=backend)
        return _info(await store.put(user_id, secret_name(backend), key))

    async def list_keys(self, *, user_id: str | None) -> list[KeyInfo]:
        """All keys of a user, or of everybody."""
        found = await self._vault().list_secrets(user_id=user_id, prefix=_PREFIX)
        return [_info(info) for info in found if info.name.endswith(_SUFFIX)]

    async def get(self, *, user_id: str, backend: str) -> KeyInfo:
        """What may be shown of one key.  Raises NotFoundError, VaultUnavailableError."""
        for info in await self.list_keys(user_id=user_id):
            if info.backend == backend:
                return info
        raise NotFoundError("no key is stored for this backend")

    async def delete(self, *, user_id: str, backend: str, actor: str) -> None:
        """Remove a key; recorded in the audit log before.  Raises NotFoundError, VaultUnavailableError."""
        store = self._vault()
        await self.get(user_id=user_id, backend=backend)
        await self._audit.record("key.deleted", actor=actor, user_id=user_id, backend=backend)
        await store.delete(user_id, secret_name(backend))

    def _vault(self) -> SecretStore:
        if self._store is None:
            raise VaultUnavailableError(_NO_VAULT)
        return self._store


def _info(info: SecretInfo) -> KeyInfo:
    return KeyInfo(
        user_id=info.user_id,
        backend=info.name.removeprefix(_PREFIX).removesuffix(_SUFFIX),
        fingerprint=info.fingerprint,
        created_at=info.created_at,
        updated_at=info.updated_at,
        last_used_at=info.last_used_at,
    )
