"""libpod calls: the right socket, the transport, and retries of what is known to pass."""

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, stop_after_delay
from tenacity.wait import wait_base, wait_exponential, wait_random

from orchestrator.contract.metrics import NO_METRICS, PODMAN_ERRORS, PODMAN_RETRIES, PODMAN_SECONDS, Metrics
from orchestrator.errors import RuntimeUnavailableError, SandboxError, TransientSandboxError
from orchestrator.podman.service import PodmanService
from orchestrator.podman.transport import Method, Reply, Transport
from orchestrator.system.tasks import TaskOwner, ignore_outcome

log = logging.getLogger(__name__)

ATTEMPTS: Final = 8
RETRY_SECONDS: Final = 60.0
"""No new attempt is begun after so long."""
CALL_SECONDS: Final = 20.0
PATIENCE_SECONDS: Final = 4.0
"""A call that has waited so long makes us ask whether the service answers anybody."""
_KINDS: Final = frozenset({"info", "containers", "images"})
_CALLS: Final = frozenset(
    {("containers", what) for what in ("create", "start", "kill", "wait", "exists", "delete", "json")}
    | {("images", "json")}
)


class LibpodClient:
    """Sends calls to whatever Podman service there is.  ``wait`` is the pause between attempts (for tests)."""

    def __init__(
        self,
        service: PodmanService,
        transport: Transport,
        *,
        wait: wait_base | None = None,
        metrics: Metrics = NO_METRICS,
    ) -> None:
        self._service = service
        self._transport = transport
        self._tasks = TaskOwner("libpod")
        self._metrics = metrics
        self._wait = wait or wait_exponential(multiplier=0.05, max=2.0) + wait_random(0.0, 0.1)

    def attempts(
        self, *also: type[SandboxError], attempts: int = ATTEMPTS, seconds: float = RETRY_SECONDS
    ) -> AsyncRetrying:
        """The rule for trying again: transient failures (and those given) only, bounded, the last one raised."""
        return AsyncRetrying(
            retry=retry_if_exception_type((TransientSandboxError, *also)),
            stop=stop_after_attempt(attempts) | stop_after_delay(seconds),
            wait=self._wait,
            sleep=asyncio.sleep,
            before_sleep=self._note_retry,
            reraise=True,
        )

    def _note_retry(self, state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome is not None else None
        log.info("Podman, attempt %d: %s", state.attempt_number, error)
        self._metrics.add(PODMAN_RETRIES)

    async def once(
        self,
        method: Method,
        path: str,
        *,
        timeout: float = CALL_SECONDS,
        params: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> Reply:
        """One attempt.  Raises SandboxError; a service that did not answer is looked for anew by the next call.

        While the call waits, the service has to answer a ping now and then: one that hangs is not waited for.
        """
        socket = await self._service.ensure()
        sending = self._tasks.spawn(
            self._transport.call(socket, method, path, timeout=timeout, params=params, body=body),
            name=f"{method} {path}",
            awaited=True,
        )
        call, began = call_name(method, path), time.monotonic()
        try:
            while not (await asyncio.wait({sending}, timeout=PATIENCE_SECONDS))[0]:
                if await self._service.hangs(socket) and not sending.done():
                    raise RuntimeUnavailableError(
                        "the Podman service hangs: it does not even answer a ping", status=None
                    )
            return sending.result()
        except SandboxError as error:
            if not answered(error):
                self._service.suspect()
            self._metrics.add(PODMAN_ERRORS, call=call, code=error.code)
            raise
        finally:
            sending.cancel()
            sending.add_done_callback(ignore_outcome)
            self._metrics.observe(PODMAN_SECONDS, time.monotonic() - began, call=call)

    async def call(
        self,
        method: Method,
        path: str,
        *,
        timeout: float = CALL_SECONDS,
        params: Mapping[str, str] | None = None,
    ) -> Reply:
        """A call that may be made twice without harm, tried again on transient failures."""
        async for attempt in self.attempts():
            with attempt:
                return await self.once(method, path, timeout=timeout, params=params)
        raise RuntimeUnavailableError("Podman was not asked")  # the loop above returns or raises


def answered(error: SandboxError) -> bool:
    """Whether Podman itself gave this error; else nobody knows whether it did what it was asked."""
    return error.details.get("status") is not None


def call_name(method: Method, path: str) -> str:
    """What a call is, without the id or name that it is about: one of a few words such as ``containers.kill``."""
    first, *rest = path.strip("/").split("/")
    last = rest[-1] if rest else ""
    if method == "DELETE":
        last = "delete"
    return f"{first}.{last}" if (first, last) in _CALLS else first if first in _KINDS else "other"
