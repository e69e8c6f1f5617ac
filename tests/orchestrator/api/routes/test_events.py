"""The streams: replay, resume, heartbeats, forms, clients that go or stall."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from orchestrator.api.streams import Outbox
from orchestrator.events import (
    KINDS,
    AgentEvent,
    Error,
    MessageDelta,
    SessionStarted,
    Status,
    Thinking,
    ToolResult,
    ToolUse,
)
from tests.fakes.run_service import done
from tests.orchestrator.api.harness import Api, frames, validate

PATH = "/v1/runs/run-1/events"
UI_PATH = "/ui/plugins/external_agent/runs/run-1/events"
STORY: tuple[AgentEvent, ...] = (
    Status(phase="queued", info={"position": 1}),
    SessionStarted(session_id="s", model="m", tools=["Bash"], mcp_servers=[{"name": "x"}]),
    Thinking(text="hm"),
    MessageDelta(text="I look.\r\nid: 9\n\ndata: no\u2028", message_id="m1"),
    ToolUse(tool_call_id="t1", name="Bash", input={"command": "ls"}, parent_tool_call_id="t0"),
    ToolResult(tool_call_id="t1", content="a\udcff\x1b[0m", is_error=False),
    done(),
)
COUNT = len(STORY)


@pytest.fixture
def story(api: Api) -> Api:
    """A run that has ended, with seven events."""
    api.runs.add_run()
    api.runs.emit("run-1", *STORY)
    return api


async def test_a_finished_run_is_replayed_and_the_stream_ends(story: Api) -> None:
    seen = await story.events(PATH)
    assert [frame.data for frame in seen] == [record.to_dict() for record in story.runs.journal["run-1"]]
    assert [frame.id for frame in seen] == [str(seq) for seq in range(1, COUNT + 1)]
    assert [frame.event for frame in seen] == [event.kind for event in STORY]


async def test_the_stream_says_what_it_is_and_is_not_kept(story: Api) -> None:
    async with story.session.get(story.url + PATH, headers=story.headers("alice")) as response:
        assert response.headers["Content-Type"] == "text/event-stream"
        assert response.headers["Cache-Control"] == "no-store"
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["X-Request-Id"]
        assert (await response.read()).startswith(b"retry: 1000\nid: 1\nevent: ")


async def test_there_is_no_block_without_data(story: Api) -> None:
    """Some clients make an empty event of one."""
    body = (await story.get(PATH)).body
    assert all(b"\ndata: " in block for block in body.removesuffix(b"\n\n").split(b"\n\n"))


async def test_a_browser_that_comes_back_behind_the_end_is_sent_away(story: Api) -> None:
    """EventSource reconnects to whatever has ended, but for a 204."""
    behind = {"Last-Event-ID": str(COUNT)}
    answer = await story.get(PATH, headers=behind)
    assert (answer.status, answer.body) == (204, b"")
    assert (await story.get(PATH, headers={"Last-Event-ID": str(COUNT + 5)})).status == 204
    assert (await story.get("/ui/plugins/external_agent/runs/run-1/events", headers=behind)).status == 204
    for others in (f"{PATH}?format=ndjson", f"{PATH}?follow=0"):
        assert (await story.get(others, headers=behind)).status == 200
    story.runs.add_run()
    story.runs.emit("run-2", MessageDelta(text="so far", message_id="m"))
    going_on = asyncio.create_task(story.events("/v1/runs/run-2/events", headers={"Last-Event-ID": "1"}))
    await story.runs.until(lambda: story.runs.readers == 1)
    story.runs.emit("run-2", done())
    assert [frame.id for frame in await going_on] == ["2"]


@pytest.mark.parametrize(
    ("how", "seq"), [("header", seq) for seq in range(COUNT)] + [("parameter", seq) for seq in range(COUNT + 1)]
)
async def test_a_client_resumes_behind_any_event(story: Api, seq: int, how: str) -> None:
    if how == "header":
        seen = await story.events(PATH, headers={"Last-Event-ID": str(seq)})
    else:
        seen = await story.events(f"{PATH}?after={seq}")
    assert [frame.data["seq"] for frame in seen] == list(range(seq + 1, COUNT + 1))


async def test_the_header_wins_over_the_parameter(story: Api) -> None:
    """A browser keeps the URL when it reconnects; only the header has moved on."""
    seen = await story.events(f"{PATH}?after=1", headers={"Last-Event-ID": "5"})
    assert [frame.id for frame in seen] == ["6", "7"]


async def test_replay_and_live_events_join_without_a_gap(api: Api) -> None:
    api.runs.add_run()
    api.runs.emit("run-1", *STORY[:3])
    reading = asyncio.create_task(api.events(PATH))
    await api.runs.until(lambda: api.runs.readers == 1)
    for event in STORY[3:]:
        api.runs.emit("run-1", event)
    assert [frame.data["seq"] for frame in await reading] == list(range(1, COUNT + 1))


async def test_an_event_arrives_before_the_next_one_exists(api: Api) -> None:
    api.runs.add_run()
    async with api.session.get(api.url + PATH, headers=api.headers("alice")) as response:
        stream = frames(response)
        for number in range(1, 4):
            api.runs.emit("run-1", MessageDelta(text=str(number), message_id="m"))
            frame = await asyncio.wait_for(anext(stream), 10)
            assert (frame.id, frame.data["data"]["text"]) == (str(number), str(number))


async def test_many_clients_see_the_same(api: Api) -> None:
    api.runs.add_run()
    readings = [asyncio.create_task(api.events(f"{PATH}?after={number % 3}")) for number in range(20)]
    await api.runs.until(lambda: api.runs.readers == 20)
    api.runs.emit("run-1", *STORY)
    for number, reading in enumerate(readings):
        assert [frame.data["seq"] for frame in await reading] == list(range(number % 3 + 1, COUNT + 1))


async def test_every_kind_has_its_own_name_on_the_ui_stream(story: Api) -> None:
    """C13"""
    story.runs.add_run()
    story.runs.emit("run-2", Error(reason="cli_failed", message="no"))
    seen = [*await story.events(UI_PATH), *await story.events(UI_PATH.replace("run-1", "run-2"))]
    assert [frame.event for frame in seen] == [f"plugin.external_agent.{frame.data['kind']}" for frame in seen]
    assert {frame.data["kind"] for frame in seen} == set(KINDS)


@pytest.mark.parametrize(
    ("query", "accept", "expected"),
    [
        ("", "*/*", "text/event-stream"),
        ("", "application/x-ndjson", "application/x-ndjson"),
        ("", "text/html, Application/X-NDJSON;q=0.9", "application/x-ndjson"),
        ("?format=ndjson", "text/event-stream", "application/x-ndjson"),
        ("?format=sse", "application/x-ndjson", "text/event-stream"),
    ],
)
async def test_the_form_is_negotiated(story: Api, query: str, accept: str, expected: str) -> None:
    headers = story.headers("alice", {"Accept": accept})
    async with story.session.get(story.url + PATH + query, headers=headers) as response:
        assert response.content_type == expected
        await response.read()


async def test_ndjson_is_one_event_a_line(story: Api) -> None:
    answer = await story.get(f"{PATH}?format=ndjson&after=2")
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert lines == [record.to_dict() for record in story.runs.journal["run-1"][2:]]
    for line in lines:
        validate(line, {"$ref": "#/components/schemas/Event"})


async def test_without_follow_the_stream_ends_with_what_there_is(api: Api) -> None:
    api.runs.add_run()
    api.runs.emit("run-1", *STORY[:2])
    assert len(await api.events(f"{PATH}?follow=0")) == 2
    assert await api.events(f"{PATH}?follow=false&after=2") == []


@pytest.mark.parametrize(
    "query", ["after=-1", "after=x", "after=1.5", "follow=maybe", "format=xml", "since=3", "after=1&after=2"]
)
async def test_wrong_parameters_are_refused(story: Api, query: str) -> None:
    assert (await story.get(f"{PATH}?{query}")).status == 400


@pytest.mark.parametrize("value", ["x", "-1", "1 2", "9" * 16, "\u0661"])
async def test_a_wrong_last_event_id_is_refused(story: Api, value: str) -> None:
    assert (await story.get(PATH, headers={"Last-Event-ID": value})).status == 400


@pytest.mark.parametrize("form", ["sse", "ndjson"])
async def test_silence_is_filled_with_heartbeats_outside_the_journal(start: Any, form: str) -> None:
    api: Api = await start(server={"heartbeat_seconds": 0.02})
    api.runs.add_run()
    url = f"{api.url}{PATH}?format={form}"
    async with api.session.get(url, headers=api.headers("alice")) as response:
        if form == "sse":
            frame = await asyncio.wait_for(anext(frames(response)), 10)
            assert (frame.id, frame.event) == (None, "status")
            beat = frame.data
        else:
            beat = json.loads(await asyncio.wait_for(response.content.readline(), 10))
    assert (beat["seq"], beat["kind"], beat["data"]) == (None, "status", {"phase": "heartbeat"})
    assert (beat["run_id"], beat["subagent_id"]) == ("run-1", "sub-1")
    assert api.runs.journal["run-1"] == []


async def test_a_client_that_leaves_frees_its_reader(start: Any) -> None:
    api: Api = await start(server={"heartbeat_seconds": 0.02})
    api.runs.add_run()
    async with api.session.get(api.url + PATH, headers=api.headers("alice")) as response:
        await api.runs.until(lambda: api.runs.readers == 1)
        response.close()
    await api.runs.until(lambda: api.runs.readers == 0)
    assert api.runs.runs["run-1"].state == "queued"


async def test_a_client_that_takes_nothing_is_disconnected_and_harms_nobody(start: Any) -> None:
    api: Api = await start(stall_seconds=0.2)
    api.runs.add_run()
    reader, writer = await asyncio.open_connection("127.0.0.1", api.servers.port, limit=1024)
    head = f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token['alice']}\r\n\r\n"
    writer.write(head.encode())
    await api.runs.until(lambda: api.runs.readers == 1)
    for _ in range(300):
        api.runs.emit("run-1", MessageDelta(text="x" * 100_000, message_id="m"))
    api.runs.emit("run-1", done())
    whole = await api.get(f"{PATH}?format=ndjson")  # another client reads all of it meanwhile
    assert whole.body.count(b"\n") == 301
    await api.runs.until(lambda: api.runs.readers == 0)
    received = 0
    try:
        while data := await asyncio.wait_for(reader.read(1 << 20), 10):
            received += len(data)
    except ConnectionError:
        received += 0
    assert received < 30_000_000
    writer.close()


async def test_a_journal_that_breaks_does_not_look_like_the_end(story: Api) -> None:
    story.runs.break_after = 3
    with pytest.raises(aiohttp.ClientPayloadError):
        await story.events(PATH)
    story.runs.break_after = None
    assert len(await story.events(PATH, headers={"Last-Event-ID": "3"})) == COUNT - 3


async def test_shutdown_ends_streams_cleanly_and_soon(api: Api) -> None:
    api.runs.add_run()
    api.runs.emit("run-1", *STORY[:2])
    reading = asyncio.create_task(api.events(PATH))
    await api.runs.until(lambda: api.runs.readers == 1)
    await asyncio.wait_for(api.servers.aclose(), 10)
    assert [frame.id for frame in await reading] == ["1", "2"]


async def test_a_large_event_and_a_long_story_arrive_whole(api: Api) -> None:
    api.runs.add_run()
    api.runs.emit("run-1", MessageDelta(text="y" * 3_000_000, message_id="m"))
    for number in range(5000):
        api.runs.emit("run-1", MessageDelta(text=str(number), message_id="m"))
    api.runs.emit("run-1", done())
    lines = (await api.get(f"{PATH}?format=ndjson")).body.splitlines()
    assert [json.loads(line)["seq"] for line in lines] == list(range(1, 5003))
    assert len(lines[0]) > 3_000_000


async def test_an_outbox_holds_its_filler_back_until_it_is_emptied() -> None:
    outbox = Outbox(limit=10)
    await outbox.put(b"0123456789")
    waiting = asyncio.create_task(outbox.put(b"more"))
    assert not (await asyncio.wait({waiting}, timeout=0))[0]
    assert await outbox.take(1) == b"0123456789"
    await asyncio.wait_for(waiting, 10)
    outbox.end(broken=False)
    assert await outbox.take(1) == b"more"
    assert await outbox.take(1) is None


async def test_an_outbox_tells_silence_from_the_end() -> None:
    outbox = Outbox()
    assert await outbox.take(0.001) == b""
    outbox.end(broken=True)
    assert await outbox.take(0.001) is None
    assert outbox.broken
