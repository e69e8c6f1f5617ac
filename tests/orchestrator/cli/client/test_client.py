import asyncio
from pathlib import Path

import pytest

from orchestrator import errors
from orchestrator.cli.client.client import ApiClient, RemoteError, ServiceGoneError, error_of
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
        assert not await client.healthy()
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
        assert await client.healthy()
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
