"""Waiting for the end of a run on behalf of a client that may go away, in a service that may stop."""

import asyncio

from aiohttp import web

from orchestrator.api import keys
from orchestrator.contract.runs import RunRecord

STEP_SECONDS = 5.0
"""How soon a client's leaving is noticed."""


async def wait_for_end(request: web.Request, run_id: str, *, timeout: float) -> RunRecord:
    """The run once it has finished; as it is after ``timeout`` seconds, at shutdown, or when the client has gone."""
    runs, scope = request.app[keys.RUNS], keys.identity_of(request).scope
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    while True:
        step = min(max(deadline - loop.time(), 0.0), STEP_SECONDS)
        waiter = request.app[keys.TASKS].spawn(runs.wait(run_id, user_id=scope, timeout=step), name=f"wait {run_id}")
        try:
            await asyncio.wait({waiter})
        finally:
            waiter.cancel()
        if waiter.cancelled():
            return await runs.get(run_id, user_id=scope)
        record = waiter.result()
        if record.state == "finished" or request.transport is None or loop.time() >= deadline:
            return record
