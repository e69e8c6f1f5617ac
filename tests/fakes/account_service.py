"""An ``AccountService`` in memory that a test steers."""

from __future__ import annotations

from dataclasses import replace

from orchestrator.contract.accounts import AccountRecord, DisconnectMode
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import ConflictError, InvalidRequestError, UnknownBackendError


class FakeAccounts:
    """``claude-code`` can use a subscription, ``gemini`` cannot."""

    def __init__(self) -> None:
        self.accounts: dict[tuple[str, str], AccountRecord] = {}
        self.status = AuthStatus(installed=True, authenticated=True)
        self.disconnects: list[tuple[str, str, DisconnectMode | None, float]] = []
        self.verified: list[tuple[str, str]] = []
        self.actors: list[tuple[str, str]] = []

    def put(self, user_id: str, **changes: object) -> None:
        """What the account of a user is like."""
        record = self._get(user_id, "claude-code")
        self.accounts[user_id, "claude-code"] = replace(record, **changes)  # type: ignore[arg-type]

    def _get(self, user_id: str, backend: str) -> AccountRecord:
        if backend == "gemini":
            raise InvalidRequestError("gemini cannot use a subscription; use a key")
        if backend != "claude-code":
            raise UnknownBackendError(f"there is no backend {backend!r}")
        empty = AccountRecord(
            backend=backend,
            user_id=user_id,
            mode="byo_subscription",
            connected=False,
            disconnecting=False,
            run_ids=(),
            command=f"podmentor login {backend} --user {user_id}",
        )
        return self.accounts.get((user_id, backend), empty)

    async def list_accounts(self, *, user_id: str) -> list[AccountRecord]:
        return [self._get(user_id, "claude-code")]

    async def get(self, *, user_id: str, backend: str) -> AccountRecord:
        return self._get(user_id, backend)

    async def connect(self, *, user_id: str, backend: str, actor: str = "service") -> AccountRecord:
        self.actors.append(("connect", actor))
        record = self._get(user_id, backend)
        if record.disconnecting:
            raise ConflictError("this account is being disconnected")
        return record

    async def verify(self, *, user_id: str, backend: str) -> AuthStatus:
        self._get(user_id, backend)
        self.verified.append((user_id, backend))
        return self.status

    async def disconnect(
        self, *, user_id: str, backend: str, mode: DisconnectMode | None, timeout: float, actor: str = "service"
    ) -> AccountRecord:
        record = self._get(user_id, backend)
        self.actors.append(("disconnect", actor))
        self.disconnects.append((user_id, backend, mode, timeout))
        if record.run_ids and mode is None:
            raise ConflictError("a run uses this account", run_ids=list(record.run_ids))
        self.put(user_id, connected=False, disconnecting=bool(record.run_ids))
        return self._get(user_id, backend)
