import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchestrator.cli.client.follow import Progress, follow, submit
from orchestrator.cli.client.service import ServiceLink
from orchestrator.cli.context import CliContext
from orchestrator.cli.signals import InterruptedByUserError, Interrupts
from orchestrator.config.models import Paths
from orchestrator.errors import InvalidRequestError
from tests.fakes.api_server import FakeApi, serve


async def test_signals_become_events() -> None:
    before = signal.getsignal(signal.SIGINT)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.wait_for(interrupts.first.wait(), 5)
        assert not interrupts.second.is_set()
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(interrupts.second.wait(), 5)
    assert signal.getsignal(signal.SIGINT) in {before, signal.default_int_handler}


async def test_guard_gives_the_result_or_gives_up() -> None:
    interrupts = Interrupts()
    assert await interrupts.guard(asyncio.sleep(0, "x"), interrupts.first) == "x"
    ended = asyncio.Event()

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    asyncio.get_running_loop().call_soon(interrupts.first.set)
    with pytest.raises(InterruptedByUserError):
        await interrupts.guard(endless(), interrupts.first)
    assert ended.is_set()


async def test_guard_passes_errors_on() -> None:
    interrupts = Interrupts()

    async def fails() -> None:
        raise InvalidRequestError("x")

    with pytest.raises(InvalidRequestError):
        await interrupts.guard(fails(), interrupts.first)


async def test_following_from_the_middle(paths: Paths) -> None:
    paths.token_file.write_text("pml_local\n")
    seen: list[int] = []
    async with serve(FakeApi(), paths.api_socket), ServiceLink(CliContext()) as link:
        progress = Progress(run_id="run_1", last_seq=8)
        await follow(link, progress, lambda event: seen.append(event["seq"]))
    assert seen == [9, 10, 11]
    assert progress.last_seq == 11


async def test_a_service_that_goes_away_during_submit_is_replaced(paths: Paths, embedded: None, place: Path) -> None:
    paths.token_file.write_text("pml_local\n")
    async with serve(FakeApi(), paths.api_socket):
        link = ServiceLink(CliContext())
        await link.connect()
    accepted = await submit(link, {"backend": "claude-code", "query": "x"})
    assert accepted["run_id"] == "run_1"
    assert link.embedded
    await link.aclose()
