import asyncio
import json
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from orchestrator import errors
from orchestrator.cli.client import api as module
from orchestrator.cli.client.api import ApiClient, error_of, lines_of
from orchestrator.errors import RemoteError, ServiceGoneError
from tests.fakes.api_server import HELLO, FakeApi, make_events, serve


@pytest.fixture
def socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k") / "api.sock"


async def read(client: ApiClient, after: int = 0) -> list[int]:
    return [event["seq"] async for event in client.events("run_1", after=after)]


async def test_events_come_once_and_in_order(socket: Path) -> None:
    async with serve(FakeApi(), socket), ApiClient(socket=socket, token="pml_local") as client:
        assert [event async for event in client.events("run_1")] == make_events("run_1", HELLO)
        assert await read(client, after=9) == [10, 11]


async def test_a_broken_stream_goes_on_after_the_last_event(socket: Path) -> None:
    api = FakeApi(cut_after=[3, 0, 4])
    async with serve(api, socket), ApiClient(socket=socket, token="pml_local") as client:
        assert await read(client) == list(range(1, 12))
    assert api.resumed_from == [None, "3", "3", "7"]


async def test_a_stream_that_never_comes_back_is_given_up(socket: Path) -> None:
    api = FakeApi(cut_after=[2, *[0] * 100])
    async with serve(api, socket), ApiClient(socket=socket, token="pml_local", patience=0.3) as client:
        stream = client.events("run_1")
        assert [(await anext(stream))["seq"], (await anext(stream))["seq"]] == [1, 2]
        with pytest.raises(ServiceGoneError, match="broke off"):
            await anext(stream)


async def test_nobody_there(socket: Path) -> None:
    async with ApiClient(socket=socket, token="x", patience=0.1) as client:
        assert await client.health() is None
        with pytest.raises(ServiceGoneError, match="no answer from the service"):
            await client.run("run_1")
        with pytest.raises(ServiceGoneError):
            await read(client)


async def test_errors_come_back_as_they_were_raised(socket: Path) -> None:
    async with serve(FakeApi(), socket):
        async with ApiClient(socket=socket, token="pml_local") as client:
            with pytest.raises(errors.NotFoundError, match="no such run"):
                await client.run("run_9")
            with pytest.raises(errors.NotFoundError):
                [event async for event in client.events("run_9")]
        async with ApiClient(socket=socket, token="wrong") as client:
            with pytest.raises(errors.UnauthorizedError):
                await client.runs()


def test_problems_of_every_kind() -> None:
    body = b'{"code": "queue_full", "detail": "no place", "retry_after": 3, "message": "m", "status": 429}'
    error = error_of(429, body)
    assert isinstance(error, errors.QueueFullError)
    assert (error.message, error.details["retry_after"]) == ("no place", 3)
    assert isinstance(error_of(418, b'{"code": "teapot", "detail": "short and stout"}'), RemoteError)
    assert "teapot" in error_of(418, b'{"code": "teapot", "detail": "x"}').message
    assert isinstance(error_of(502, b"<html>"), RemoteError)
    assert isinstance(error_of(500, b"[1]"), RemoteError)


async def test_ids_never_leave_their_place_in_the_path(socket: Path) -> None:
    async with serve(FakeApi(), socket), ApiClient(socket=socket, token="pml_local") as client:
        with pytest.raises(errors.NotFoundError):
            await client.run("../../healthz")


async def test_over_tcp() -> None:
    async with serve(FakeApi(), None) as port, ApiClient(url=f"http://127.0.0.1:{port}/", token="pml_local") as client:
        assert await client.health() is not None
        assert len(await read(client)) == len(HELLO)


async def test_an_answer_that_is_no_json_object(socket: Path) -> None:
    async with serve(FakeApi(log=b"[]"), socket), ApiClient(socket=socket, token="pml_local") as client:
        with pytest.raises(RemoteError, match="is this podmentor"):
            await client.json("GET", "/v1/runs/run_1/log")


async def test_a_stream_that_was_silent_for_long_is_sought_again_all_the_same(socket: Path) -> None:
    """A tool that takes minutes, and a restart of the service in the middle of it."""
    api = FakeApi(stop_short=5)
    async with ApiClient(socket=socket, token="pml_local", patience=0.5) as client:
        stream = client.events("run_1")
        async with serve(api, socket):
            assert [(await anext(stream))["seq"] for _ in range(5)] == [1, 2, 3, 4, 5]
            rest = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0.6)  # longer than the patience
            assert not rest.done()
        api.finish = True
        async with serve(api, socket):
            assert (await asyncio.wait_for(rest, 10))["seq"] == 6
            assert [event["seq"] async for event in stream] == list(range(7, 12))


STREAM = '{"a":1}\n\n{"b":"ü"}\r\n{"c":\u2028}\nlast, unfinished'.encode()
LINES = [b'{"a":1}', b"", '{"b":"ü"}\r'.encode(), '{"c":\u2028}'.encode()]


def split(*chunks: bytes) -> list[bytes]:
    async def source() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    async def whole() -> list[bytes]:
        return [line async for line in lines_of(source())]

    return asyncio.run(whole())


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_any_cutting_gives_the_same_lines(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    assert split(*(STREAM[start:end] for start, end in pairwise(edges))) == LINES


def test_byte_by_byte() -> None:
    assert split(*(STREAM[i : i + 1] for i in range(len(STREAM)))) == LINES


def test_an_event_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_LINE", 1000)
    assert len(split(*[b"x" * 100 + b"\n"] * 20, b"x" * 900)) == 20
    with pytest.raises(Exception, match="without an end"):
        split(*[b"x" * 100] * 11)


async def test_lines_that_are_no_events_break_the_stream_and_heartbeats_are_passed_over(
    socket: Path,
) -> None:
    """Whatever else a broken or hostile service sends counts as a lost stream, and never as an event."""
    cut = [b'{"seq": 1, "kind": "stat', b"\xff\xfe", b"<html>", b"[" * 100_000]

    class Sends(FakeApi):
        async def _events(self, request: web.Request) -> web.StreamResponse:
            self.resumed_from.append(request.headers.get("Last-Event-ID"))
            lines = [b'{"seq":null,"kind":"status","data":{"phase":"heartbeat"}}', b'{"seq":"2","kind":3}', b"[1]"]
            if cut:
                lines.append(cut.pop())
            else:
                lines.append(json.dumps(make_events("run_1", [HELLO[-1]])[0]).encode())
            return web.Response(body=b"\n".join([*lines, b""]), content_type="application/x-ndjson")

    api = Sends()
    async with serve(api, socket), ApiClient(socket=socket, token="pml_local") as client:
        assert await read(client) == [1]
    assert len(api.resumed_from) == 5
