"""A store of secrets in memory."""

from __future__ import annotations

from orchestrator.contract.secrets import SecretInfo


class FakeSecrets:
    """Implements ``SecretStore``; ``failure`` is raised by ``get``."""

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], str] = {}
        self.touched: list[tuple[str, str]] = []
        self.failure: Exception | None = None

    async def get(self, user_id: str, name: str) -> str | None:
        if self.failure is not None:
            raise self.failure
        return self.values.get((user_id, name))

    async def put(self, user_id: str, name: str, value: str) -> SecretInfo:
        self.values[user_id, name] = value
        return _info(user_id, name)

    async def delete(self, user_id: str, name: str) -> bool:
        return self.values.pop((user_id, name), None) is not None

    async def list_secrets(self, *, user_id: str | None = None, prefix: str = "") -> list[SecretInfo]:
        return [
            _info(owner, name)
            for owner, name in sorted(self.values)
            if user_id in {None, owner} and name.startswith(prefix)
        ]

    async def touch(self, user_id: str, name: str) -> None:
        self.touched.append((user_id, name))


def _info(user_id: str, name: str) -> SecretInfo:
    at = "2030-01-01T00:00:00Z"
    return SecretInfo(
        user_id=user_id, name=name, fingerprint="0badf00d", created_at=at, updated_at=at, last_used_at=None
    )
