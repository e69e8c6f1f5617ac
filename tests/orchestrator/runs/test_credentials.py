"""Which credential a run used: in its record, in the audit log, and the same one after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator.errors import SecretUnreadableError, StorageError, VaultUnavailableError
from tests.orchestrator.runs.harness import USER, World, answer


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_the_record_and_the_audit_log_say_which_link_was_used(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        assert run.credential_source is None
        answer(await service.container())
        assert (await service.finished(run.run_id)).credential_source == "technical_user"
    assert world.audit.of("credential.") == [
        {
            "event": "credential.used",
            "user_id": USER,
            "backend": "echo",
            "run_id": run.run_id,
            "credential_source": "technical_user",
        },
    ]


async def test_a_run_that_is_taken_over_keeps_to_its_link(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
    assert world.credentials.asked == [None]
    async with world.service() as service:
        async with asyncio.timeout(10):
            while len(world.credentials.asked) < 2:  # noqa: ASYNC110 -- the fake gives no signal
                await asyncio.sleep(0)
        container.say(done="x")
        container.exit(0)
        await service.finished(run.run_id)
    assert world.credentials.asked == [None, "technical_user"]
    assert [one["run_id"] for one in world.audit.of("credential.")] == [run.run_id] * 2


@pytest.mark.parametrize("failure", [SecretUnreadableError("it is broken"), VaultUnavailableError("no key of a vault")])
async def test_a_key_that_cannot_be_read_ends_the_run_before_anything_is_started(
    world: World, failure: Exception
) -> None:
    world.credentials.failure = failure
    async with world.service() as service:
        run = await service.submit()
        record = await service.finished(run.run_id)
    assert record.error is not None
    assert (record.error["reason"], record.error["message"]) == ("auth_required", str(failure))
    assert record.credential_source is None
    assert (world.runtime.containers, world.relay.grants, world.audit.of("credential.")) == ({}, {}, [])
    assert world.audit.of("run.started") == []


async def test_what_cannot_be_audited_is_not_used(world: World) -> None:
    world.audit.failure = StorageError("the audit log cannot be written")
    async with world.service() as service:
        record = await service.finished((await service.submit()).run_id)
    assert record.error is not None
    assert "audit log" in record.error["message"]
    assert (world.runtime.containers, world.relay.grants) == ({}, {})
