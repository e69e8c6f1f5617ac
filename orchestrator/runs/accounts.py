"""The ``AccountService``: what users can do with their own subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from orchestrator.config.models import Config
from orchestrator.contract.accounts import AccountRecord, DisconnectMode, HomeKey, SubscriptionHomes
from orchestrator.contract.adapter import BaseAdapter
from orchestrator.contract.audit import SERVICE, Audit
from orchestrator.contract.runs import RunService
from orchestrator.contract.types import AuthStatus
from orchestrator.errors import ConflictError, InvalidRequestError, PodmentorError, UnknownBackendError
from orchestrator.runs.teardown.outcome import login_command
from orchestrator.system.tasks import TaskOwner

log = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
"""Between attempts to remove a HOME in which somebody logs in just now (a login is bounded in time)."""
Prober = Callable[[BaseAdapter, HomeKey], Coroutine[Any, Any, AuthStatus]]


class Accounts:
    """See ``orchestrator.contract.accounts.AccountService`` for what each method promises.

    ``prober``: asks the CLI whether it finds a login.
    """

    def __init__(
        self,
        *,
        config: Config,
        adapters: Mapping[str, BaseAdapter],
        homes: SubscriptionHomes,
        runs: RunService,
        prober: Prober,
        audit: Audit,
    ) -> None:
        self._backends = config.external_agent.backends
        self._adapters = adapters
        self._homes = homes
        self._runs = runs
        self._prober = prober
        self._audit = audit
        self._tasks = TaskOwner("accounts")
        self._removing: dict[HomeKey, asyncio.Task[None]] = {}

    async def start(self) -> None:
        """Go on with removals that an earlier service was asked for."""
        for key in await self._homes.asked_removals():
            self._remove_soon(key)

    async def aclose(self) -> None:
        """Stop what is under way; the next service goes on with it."""
        await self._tasks.aclose()

    async def list_accounts(self, *, user_id: str) -> list[AccountRecord]:
        """One for each backend that can use a subscription."""
        names = [name for name, adapter in self._adapters.items() if adapter.supports_byo_subscription]
        return [await self._record(HomeKey(user_id, name)) for name in sorted(names)]

    async def get(self, *, user_id: str, backend: str) -> AccountRecord:
        """One of them."""
        self._adapter(backend)
        return await self._record(HomeKey(user_id, backend))

    async def connect(self, *, user_id: str, backend: str, actor: str = SERVICE) -> AccountRecord:
        """Make the HOME."""
        self._adapter(backend)
        await self._audit.record("account.connect", actor=actor, user_id=user_id, backend=backend)
        await self._homes.allocate(key := HomeKey(user_id, backend))
        return await self._record(key)

    async def verify(self, *, user_id: str, backend: str) -> AuthStatus:
        """Ask the CLI."""
        key, adapter = HomeKey(user_id, backend), self._adapter(backend)
        if key in await self._homes.asked_removals():
            return AuthStatus(installed=True, authenticated=False, error="this account is being disconnected")
        return await self._prober(adapter, key)

    async def disconnect(
        self, *, user_id: str, backend: str, mode: DisconnectMode | None, timeout: float, actor: str = SERVICE
    ) -> AccountRecord:
        """Remove the HOME, when nobody uses it any more."""
        self._adapter(backend)
        key = HomeKey(user_id, backend)
        if mode is None and (running := await self._using(key)):
            raise _in_use(running)
        if key not in await self._homes.asked_removals():  # the caller asks again while it waits
            await self._audit.record(
                "account.disconnect", actor=actor, user_id=user_id, backend=backend, mode=mode or "none"
            )
        try:
            await self._homes.ask_removal(key, unless_used=mode is None)
        except ConflictError:  # a run has begun to use it just now
            raise _in_use(await self._using(key)) from None
        if mode == "cancel":
            for run_id in await self._using(key):
                await self._runs.cancel(run_id, user_id=None, actor=actor)
        await asyncio.wait({self._remove_soon(key)}, timeout=timeout)
        return await self._record(key)

    def _remove_soon(self, key: HomeKey) -> asyncio.Task[None]:
        task = self._removing.get(key)
        if task is None or task.done():
            task = self._removing[key] = self._tasks.spawn(self._remove(key), name=f"disconnect {key.backend}")
        return task

    async def _remove(self, key: HomeKey) -> None:
        while True:
            for run_id in await self._using(key):
                await self._runs.wait(run_id, user_id=None, timeout=None)  # bounded: it has a wall clock
            try:
                await self._homes.remove(key)
            except ConflictError as error:
                log.info("the removal of an account waits: %s", error.message)
                await asyncio.sleep(AGAIN_SECONDS)
            except PodmentorError:
                log.exception("an account of %s could not be removed; the next start tries it again", key.backend)
                return
            else:
                await self._audit.note("account.removed", user_id=key.user_id, backend=key.backend)
                return

    async def _using(self, key: HomeKey) -> list[str]:
        return sorted(run_id for run_id, used in (await self._homes.leases()).items() if used == key)

    async def _record(self, key: HomeKey) -> AccountRecord:
        config = self._backends.get(key.backend)
        return AccountRecord(
            backend=key.backend,
            user_id=key.user_id,
            mode=config.mode if config is not None else "",
            connected=await self._homes.usable(key) is not None,
            disconnecting=key in await self._homes.asked_removals(),
            run_ids=tuple(await self._using(key)),
            command=login_command(key),
        )

    def _adapter(self, backend: str) -> BaseAdapter:
        adapter = self._adapters.get(backend)
        if adapter is None:
            known = ", ".join(sorted(self._adapters)) or "none"
            raise UnknownBackendError(f"there is no backend {backend!r}; enabled: {known}")
        if not adapter.supports_byo_subscription:
            raise InvalidRequestError(f"{backend} cannot use a subscription; use a key", backend=backend)
        return adapter


def _in_use(run_ids: list[str]) -> ConflictError:
    return ConflictError(
        f"{len(run_ids)} run(s) use this account now: disconnect with mode=wait (when they have ended) or"
        " mode=cancel (end them)",
        run_ids=run_ids,
    )
