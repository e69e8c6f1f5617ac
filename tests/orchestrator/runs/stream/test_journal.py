"""The journal: numbering, replay, following, and readers that do not disturb anybody."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

from orchestrator.events import Completed, EventRecord, MessageDelta, Status, Tokens
from orchestrator.runs.storage.store import Store
from orchestrator.runs.stream.journal import PAGE_EVENTS, Entry, Journal
from tests.orchestrator.runs.stored import insert

DONE = Completed(final_text="x", tokens=Tokens(input=0, output=0), duration_ms=0)


def delta(text: str) -> Entry:
    return Entry("2026-01-01T00:00:00Z", "agent", MessageDelta(text=text, message_id="m"))


async def read_all(journal: Journal, run_id: str, after: int = 0, *, follow: bool = False) -> list[EventRecord]:
    async with aclosing(journal.follow(run_id, after=after, follow=follow)) as records:
        return [record async for record in records]


async def test_events_are_numbered_without_gaps_and_replayed_from_any_number(journal: Journal, store: Store) -> None:
    run = await insert(store)
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
    run = await insert(store)
    reader = asyncio.ensure_future(read_all(journal, run.run_id, follow=True))
    for text in "abc":
        await journal.append(run.run_id, [delta(text)])
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    assert [record.seq for record in await asyncio.wait_for(reader, 10)] == [1, 2, 3, 4]


async def test_a_dead_and_a_slow_reader_hold_up_nobody(journal: Journal, store: Store) -> None:
    run = await insert(store)
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
    run = await insert(store)
    await journal.append(run.run_id, [Entry("t", "agent", DONE)], {"state": "finished"})
    await journal.append(run.run_id, [delta("late")])
    assert len(await read_all(journal, run.run_id)) == 1


async def test_an_append_can_depend_on_the_state(journal: Journal, store: Store) -> None:
    run = await insert(store)
    status = Entry("t", "orchestrator", Status(phase="queued", info={"position": 1}))
    await journal.append(run.run_id, [status], when="running")
    assert await read_all(journal, run.run_id) == []
    await journal.append(run.run_id, [status], when="queued")
    assert len(await read_all(journal, run.run_id)) == 1


async def test_text_that_is_not_unicode_is_stored_all_the_same(journal: Journal, store: Store) -> None:
    run = await insert(store)
    await journal.append(run.run_id, [delta("lone \ud800 surrogate")])
    [record] = await read_all(journal, run.run_id)
    assert record.data["text"] == "lone ? surrogate"


async def test_closing_ends_every_follower(journal: Journal, store: Store) -> None:
    run = await insert(store)
    reader = asyncio.ensure_future(read_all(journal, run.run_id, follow=True))
    await journal.append(run.run_id, [delta("a")])
    journal.close()
    assert len(await asyncio.wait_for(reader, 10)) == 1


async def test_only_the_agents_events_are_counted_for_a_re_read(journal: Journal, store: Store) -> None:
    run = await insert(store)
    await journal.append(run.run_id, [Entry("t", "orchestrator", Status(phase="starting")), delta("a"), delta("b")])
    assert await journal.agent_events(run.run_id) == 2
