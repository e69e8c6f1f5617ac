"""One key for everybody, or none."""

from __future__ import annotations

from typing import Any

from orchestrator.contract.credentials import Resolved, SourceName
from orchestrator.errors import AuthRequiredError


class FakeCredentials:
    """Implements ``Credentialing``."""

    def __init__(self, api_key: str | None = "real-key") -> None:
        self.api_key = api_key
        self.extra_env: dict[str, str] = {}
        self.failure: Exception | None = None
        self.asked: list[SourceName | None] = []
        """For which source each call of ``resolve`` asked."""

    async def resolve(self, *, user_id: str, backend: str, source: SourceName | None = None) -> Resolved:
        self.asked.append(source)
        if self.failure is not None:
            raise self.failure
        if self.api_key is None:
            raise AuthRequiredError(f"there is no key for {backend}; set api_key in podmentor.yaml")
        return Resolved(source="technical_user", api_key=self.api_key, extra_env=dict(self.extra_env))

    async def explain(self, *, user_id: str, backend: str) -> list[dict[str, Any]]:
        return [{"source": "technical_user", "chosen": self.api_key is not None, "reason": "as it is"}]
