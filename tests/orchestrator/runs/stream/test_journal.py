"""The journal: numbering, replay, following, and readers that do not disturb anybody."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import ConflictError, NotFoundError, StorageError
from orchestrator.events import Completed, EventRecord, MessageDelta, Status, Tokens
from orchestrator.runs.storage.database import Database
from orchestrator.runs.storage.store import NewRun, Store
from orchestrator.runs.stream.journal import PAGE_EVENTS, Entry, Journal

DONE = Completed(final_text="x", tokens=Tokens(input=0, output=0), duration_ms=0)


def new_run(run_id: str = "1" * 32, subagent_id: str = "a" * 32, **over: Any) -> NewRun:
    values: dict[str, Any] = {
        "run_id": run_id,
        "subagent_id": subagent_id,
        "new_subagent": True,
        "user_id": "u",
        "backend": "echo",
        "query": "q",
        "tier": 1,
        "repo": None,
        "source_path": None,
        "workspace": "overlay",
        "limits": ResourceLimits(),
        "egress": None,
        "metadata": {"k": "v"},
        "idempotency_key": None,
        "request_sha256": "r",
    }
    return NewRun(**{**values, **over})


def delta(text: str) -> Entry:
    return Entry("2026-01-01T00:00:00Z", "agent", MessageDelta(text=text, message_id="m"))


async def read_all(journal: Journal, run_id: str, after: int = 0, *, follow: bool = False) -> list[EventRecord]:
    async with aclosing(journal.follow(run_id, after=after, follow=follow)) as records:
        return [record async for record in records]


async def test_events_are_numbered_without_gaps_and_replayed_from_any_number(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    await journal.append(run.run_id, [delta("a"), delta("b")])
    await journal.append(run.run_id, [delta("c")])
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    records = await read_all(journal, run.run_id, follow=True)
    assert [record.seq for record in records] == [1, 2, 3, 4]
    assert records[0].to_dict() == {
        "seq": 1,
        "ts": "2026-01-01T00:00:00Z",
        "run_id": run.run_id,
        "subagent_id": run.subagent_id,
        "backend": "echo",
        "kind": "message_delta",
        "source": "agent",
        "parent_tool_call_id": None,
        "data": {"text": "a", "message_id": "m"},
    }
    for after in range(6):
        assert [r.seq for r in await read_all(journal, run.run_id, after, follow=True)] == list(range(after + 1, 5))


async def test_a_follower_gets_what_comes_later(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    reader = asyncio.ensure_future(read_all(journal, run.run_id, follow=True))
    for text in "abc":
        await journal.append(run.run_id, [delta(text)])
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    assert [record.seq for record in await asyncio.wait_for(reader, 10)] == [1, 2, 3, 4]


async def test_a_dead_and_a_slow_reader_hold_up_nobody(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    dead = journal.follow(run.run_id, after=0, follow=True)
    await journal.append(run.run_id, [delta("first")])
    assert (await anext(dead)).seq == 1  # and is never asked again
    quick = asyncio.ensure_future(read_all(journal, run.run_id, follow=True))
    for _ in range(4):
        await journal.append(run.run_id, [delta("x")] * PAGE_EVENTS)
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    assert len(await asyncio.wait_for(quick, 30)) == 4 * PAGE_EVENTS + 2
    assert [record.seq async for record in dead] == list(range(2, 4 * PAGE_EVENTS + 3))


async def test_a_finished_run_takes_no_more_events(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    await journal.append(run.run_id, [delta("late")])
    assert len(await read_all(journal, run.run_id)) == 1


async def test_an_append_can_depend_on_the_state(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    status = Entry("t", "orchestrator", Status(phase="queued", info={"position": 1}))
    await journal.append(run.run_id, [status], when="running")
    assert await read_all(journal, run.run_id) == []
    await journal.append(run.run_id, [status], when="queued")
    assert len(await read_all(journal, run.run_id)) == 1


async def test_text_that_is_not_unicode_is_stored_all_the_same(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    await journal.append(run.run_id, [delta("lone \ud800 surrogate")])
    [record] = await read_all(journal, run.run_id)
    assert record.data["text"] == "lone ? surrogate"


async def test_closing_ends_every_follower(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    reader = asyncio.ensure_future(read_all(journal, run.run_id, follow=True))
    await journal.append(run.run_id, [delta("a")])
    journal.close()
    assert len(await asyncio.wait_for(reader, 10)) == 1


async def test_only_the_agents_events_are_counted_for_a_re_read(journal: Journal, store: Store) -> None:
    run = (await store.insert_run(new_run())).record
    await journal.append(run.run_id, [Entry("t", "orchestrator", Status(phase="starting")), delta("a"), delta("b")])
    assert await journal.agent_events(run.run_id) == 2


async def test_an_idempotency_key_gives_the_same_run_and_refuses_another_request(store: Store) -> None:
    first = await store.insert_run(new_run(idempotency_key="k"))
    again = await store.insert_run(new_run("2" * 32, "b" * 32, idempotency_key="k"))
    assert again.record.run_id == first.record.run_id
    with pytest.raises(ConflictError):
        await store.insert_run(new_run("3" * 32, "c" * 32, idempotency_key="k", request_sha256="other"))
    other_user = await store.insert_run(new_run("4" * 32, "d" * 32, idempotency_key="k", user_id="v"))
    assert other_user.record.run_id == "4" * 32


async def test_a_run_of_an_unknown_subagent_is_refused(store: Store) -> None:
    with pytest.raises(NotFoundError):
        await store.insert_run(new_run(new_subagent=False))


async def test_a_newer_database_is_refused(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "podmentor.db") as connection:
        connection.execute("PRAGMA user_version=99")
    connection.close()
    database = Database(tmp_path / "podmentor.db")
    with pytest.raises(StorageError, match="newer"):
        await database.open()
    await database.aclose()


async def test_what_is_not_a_database_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "podmentor.db").write_bytes(b"not a database, but long enough to be looked at" * 40)
    database = Database(tmp_path / "podmentor.db")
    with pytest.raises(StorageError, match=r"is damaged.*backup"):
        await database.open()
    await database.aclose()
