"""Users' own subscriptions: the HOMEs that hold their logins, and what can be done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple, Protocol, TypeAlias

from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.audit import SERVICE
from orchestrator.contract.types import AuthStatus

DisconnectMode: TypeAlias = Literal["wait", "cancel"]


class HomeKey(NamedTuple):
    """Whose subscription to what."""

    user_id: str
    backend: str


class AuthProbe(Protocol):
    """Runs the CLI's own check of its login, in the backend's container."""

    async def probe(self, *, adapter: BaseAdapter, home: Path) -> AuthStatus:
        """Whether the CLI is there and finds a login in ``home``."""
        ...


class SubscriptionHomes(Protocol):
    """The HOMEs and their leases.  A lease is on disk: it outlives the service, as the run's container does."""

    async def usable(self, key: HomeKey) -> Path | None:
        """The HOME that new runs use: primed, and nobody has asked for its removal; None: there is none such."""
        ...

    async def allocate(self, key: HomeKey) -> Path:
        """The HOME, made if there is none.  Raises InvalidRequestError, StorageError."""
        ...

    async def enter(self, run_id: str, key: HomeKey, files: Sequence[str]) -> Path:
        """Begin to use the HOME: the lease is noted and the login in ``files`` (relative paths) is copied.

        Raises AuthRequiredError when it is no longer usable, ConflictError while somebody logs in.
        """
        ...

    async def leave(self, run_id: str) -> list[str]:
        """End the lease of a run that is over; fine when it has none.

        Files of the login that the last run has left broken are put back as they were; their names are returned.
        """
        ...

    async def leases(self) -> Mapping[str, HomeKey]:
        """Which run uses which HOME."""
        ...

    async def ask_removal(self, key: HomeKey, *, unless_used: bool = False) -> None:
        """From now on no run begins to use the HOME any more, and ``leases`` has all that do; kept until ``remove``.

        ``unless_used``: ConflictError, and nothing asked for, when a run uses it.
        """
        ...

    async def asked_removals(self) -> list[HomeKey]:
        """Those asked for and not done."""
        ...

    async def remove(self, key: HomeKey) -> None:
        """Remove the HOME, what is noted about it, and the copies of its login; fine when there is none.

        Raises ConflictError while a run uses it.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountRecord:
    """One user's subscription to one backend."""

    backend: str
    user_id: str
    mode: str
    """The backend's configured mode; the subscription is used in ``byo_subscription`` only."""
    connected: bool
    """There is a login, and nobody has asked for its removal; whether the provider accepts it, only a run shows."""
    disconnecting: bool
    """The login is removed when the runs that use it have ended."""
    run_ids: tuple[str, ...]
    """The runs that use it now."""
    command: str
    """What to type to log in, in a terminal on the machine where podmentor runs."""


class AccountService(Protocol):
    """What users can do with their subscriptions.

    Every call raises UnknownBackendError for a backend that is not enabled, InvalidRequestError for one that has no
    subscriptions or a user id that is no plain name.  ``actor``: who does it, for the audit log.
    """

    async def list_accounts(self, *, user_id: str) -> list[AccountRecord]:
        """One for each enabled backend that can use a subscription."""
        ...

    async def get(self, *, user_id: str, backend: str) -> AccountRecord:
        """One of them."""
        ...

    async def connect(self, *, user_id: str, backend: str, actor: str = SERVICE) -> AccountRecord:
        """Make the HOME; the record has the command that logs in.  Raises ConflictError while it is being removed."""
        ...

    async def verify(self, *, user_id: str, backend: str) -> AuthStatus:
        """Whether the CLI finds a login in the HOME, by its own check."""
        ...

    async def disconnect(
        self, *, user_id: str, backend: str, mode: DisconnectMode | None, timeout: float, actor: str = SERVICE
    ) -> AccountRecord:
        """Remove the HOME; the record tells whether that is done.  Idempotent.

        While runs use it: without a ``mode`` ConflictError, ``cancel`` ends them, ``wait`` lets them finish; from then
        on no new run uses it.  Answers after ``timeout`` seconds at the latest and goes on by itself.
        """
        ...
