import asyncio
import contextlib
import gzip
import logging
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from orchestrator.contract.gateway import GatewayGrant
from orchestrator.relay.gateway.server import LOGGED_REFUSALS, RunGateway
from orchestrator.relay.gateway.upstream import open_session
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from tests.orchestrator.relay.support import (
    AUTH,
    KEY,
    MESSAGES,
    TOKEN,
    Provider,
    agent,
    exchange,
    grant_for,
    route,
    status,
)


@contextlib.asynccontextmanager
async def serving(grant: GatewayGrant, limits: Limits | None = None) -> AsyncIterator[RunGateway]:
    limits = limits or Limits()
    session = open_session(limits)
    gateway = RunGateway(grant, session=session, limits=limits, uplink=Uplink())
    await gateway.open()
    try:
        yield gateway
    finally:
        await gateway.aclose()
        await session.close()


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str, str]:
    body = await answer.json()
    assert body["type"] == "error"
    assert KEY not in str(body)
    assert TOKEN not in str(body)
    return answer.status, body["error"]["type"], body["error"]["message"]


async def test_a_request_reaches_the_provider_with_the_real_key_and_the_path_below_its_base(
    provider: Provider, directory: Path
) -> None:
    grant = grant_for(directory, provider.url + "/base")
    async with serving(grant) as gateway, agent(grant.socket_path) as client:
        answer = await client.post(
            MESSAGES + "?beta=true&key=foreign", data=b"{}", headers={**AUTH, "Cookie": "a=1", "User-Agent": "cli"}
        )
        assert (answer.status, await answer.json()) == (200, {"hello": "there"})
        assert TOKEN not in str(answer.headers)
    method, path, headers = provider.requests[0]
    assert (method, path) == ("POST", "/base/v1/messages?beta=true")
    assert headers["x-api-key"] == KEY
    assert headers["accept-encoding"] == "identity"
    assert headers["host"] == provider.url.removeprefix("http://")
    assert headers["user-agent"] == "cli"
    assert "cookie" not in headers
    assert TOKEN not in str(headers)
    assert (gateway.traffic.requests, gateway.traffic.bytes_up, gateway.traffic.bytes_down) == (
        1,
        2,
        len(b'{"hello": "there"}'),
    )


async def test_an_answer_streams_chunk_by_chunk_and_its_head_before_its_body(
    provider: Provider, directory: Path
) -> None:
    seen = asyncio.Queue[str]()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Request-Id": "r1", "Set-Cookie": "a=1"}
        )
        await response.prepare(request)
        assert await seen.get() == "head"
        for number in range(5):
            await response.write(f"data: {number}\n\n".encode())
            assert await seen.get() == f"data: {number}\n\n"  # not before the agent has the last one
        return response

    provider.handler = stream
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, json={}, headers=AUTH)
        assert answer.headers["Content-Type"] == "text/event-stream"
        assert answer.headers["Request-Id"] == "r1"
        assert "Set-Cookie" not in answer.headers
        await seen.put("head")
        for _ in range(5):
            await seen.put((await answer.content.readany()).decode())
        assert await answer.content.read() == b""


async def test_a_request_body_streams_chunk_by_chunk(provider: Provider, directory: Path) -> None:
    arrived = asyncio.Queue[bytes]()

    async def take(request: web.Request) -> web.StreamResponse:
        async for chunk in request.content.iter_any():
            await arrived.put(chunk)
        return web.Response(text="done")

    async def body() -> AsyncIterator[bytes]:
        for number in range(4):
            yield b"part %d" % number
            assert await arrived.get() == b"part %d" % number  # the provider has it before the next one is made

    provider.handler = take
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, data=body(), headers=AUTH)
        assert await answer.text() == "done"
    assert provider.requests[0][2]["transfer-encoding"] == "chunked"


async def test_a_rate_limit_far_longer_than_the_route_waits_is_said_with_its_time(
    provider: Provider, directory: Path
) -> None:
    async def limited(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, text="later", headers={"Retry-After": request.query["wait"]})

    provider.handler = limited
    for longest, wait, kept in ((60.0, 3600, False), (60.0, 2, True), (None, 3600, True)):
        grant = grant_for(directory, provider.url)
        grant = replace(grant, route=replace(grant.route, longest_wait=longest))
        async with serving(grant), agent(grant.socket_path) as client:
            answer = await client.post(f"{MESSAGES}?wait={wait}", data=b"{}", headers=AUTH)
            assert answer.status == 429
            if kept:
                assert (await answer.text(), answer.headers["Retry-After"]) == ("later", str(wait))
            else:
                error = (await answer.json())["error"]
                assert (error["type"], error["resets_in_seconds"]) == ("usage_limit_reached", wait)
                assert "Retry-After" not in answer.headers


async def test_lengths_encodings_status_and_redirects_are_kept(provider: Provider, directory: Path) -> None:
    packed = gzip.compress(b"hello " * 50)
    bodies: list[bytes] = []

    async def answer_by_path(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.read())
        match request.path:
            case "/v1/messages/gzip":
                return web.Response(body=packed, headers={"Content-Encoding": "gzip"})
            case "/v1/messages/empty":
                return web.Response(status=204)
            case "/v1/messages/away":
                return web.Response(status=307, headers={"Location": "http://evil.test/v1/messages"})
            case _:
                return web.Response(status=529, text="busy", headers={"Retry-After": "2"})

    provider.handler = answer_by_path
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES + "/gzip", data=packed, headers={**AUTH, "Content-Encoding": "gzip"})
        assert (answer.headers["Content-Encoding"], answer.headers["Content-Length"]) == ("gzip", str(len(packed)))
        assert await answer.read() == packed
        answer = await client.get(MESSAGES + "/empty", headers=AUTH)
        assert (answer.status, await answer.read()) == (204, b"")
        answer = await client.post(MESSAGES + "/away", headers=AUTH, allow_redirects=False)
        assert (answer.status, answer.headers["Location"]) == (307, "http://evil.test/v1/messages")
        answer = await client.head(MESSAGES + "/x", headers=AUTH)
        assert (answer.status, answer.headers["Content-Length"], answer.headers["Retry-After"]) == (529, "4", "2")
        answer = await client.get(MESSAGES + "/x", headers=AUTH)
        assert (answer.status, answer.headers["Content-Length"], await answer.read()) == (529, "4", b"busy")
    assert bodies[0] == packed
    assert provider.requests[0][2]["content-length"] == str(len(packed))
    assert len(provider.requests) == 5  # the redirect was not followed


async def test_wrong_token_path_host_and_method_are_refused_and_never_reach_the_provider(
    provider: Provider, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    grant = grant_for(directory, provider.url)
    async with serving(grant) as gateway, agent(grant.socket_path) as client:
        assert (await error_of(await client.post(MESSAGES, headers={"x-api-key": "other"})))[:2] == (
            401,
            "authentication_error",
        )
        assert (await error_of(await client.post(MESSAGES)))[:2] == (401, "authentication_error")
        assert (await error_of(await client.get("http://gateway/v1/organizations", headers=AUTH)))[:2] == (
            404,
            "not_found_error",
        )
        assert (await error_of(await client.options(MESSAGES, headers=AUTH)))[:2] == (403, "permission_error")
        for line in (
            b"GET http://evil.test/v1/messages",
            b"GET //evil.test/v1/messages",
            b"POST /v1/messages/../x",
            b"CONNECT evil.test:443",
        ):
            head = (
                line
                + b" HTTP/1.1\r\nHost: evil.test\r\nx-api-key: "
                + TOKEN.encode()
                + b"\r\nConnection: close\r\n\r\n"
            )
            assert (await exchange(grant.socket_path, head)).split()[1] in {b"403", b"400"}
        for _ in range(LOGGED_REFUSALS):
            await status(client)
    assert provider.requests == []
    assert gateway.traffic.requests == 0
    assert gateway.traffic.refusals >= LOGGED_REFUSALS + 4
    assert sum("refused" in record.message for record in caplog.records) == LOGGED_REFUSALS
    assert TOKEN not in caplog.text
    assert KEY not in caplog.text


async def test_a_look_at_the_base_url_is_answered_without_the_provider(provider: Provider, directory: Path) -> None:
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        assert (await client.head("http://gateway/")).status == 200
        assert (await client.get("http://gateway/")).status == 200
    assert provider.requests == []


async def test_a_websocket_is_refused_with_426(provider: Provider, directory: Path) -> None:
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await client.ws_connect("http://gateway/v1/messages", headers=AUTH)
    assert caught.value.status == 426
    assert provider.requests == []


async def test_an_echoing_provider_does_not_give_the_key_away(provider: Provider, directory: Path) -> None:
    passed_on = asyncio.Event()

    async def echo(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            status=400, reason=KEY, headers={"X-Echo": request.headers["x-api-key"], "X-Other": "fine"}
        )
        await response.prepare(request)
        await response.write(b"key: " + KEY[:9].encode())
        await passed_on.wait()
        await response.write(KEY[9:].encode() + b" and " + KEY.encode() + b", " + KEY[:4].encode())
        return response

    provider.handler = echo
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, headers=AUTH)
        first = await answer.content.readany()
        assert first == b"key: "
        passed_on.set()
        body = first + await answer.read()
        mask = b"*" * len(KEY)
        assert body == b"key: " + mask + b" and " + mask + b", " + KEY[:4].encode()
        assert KEY not in str(answer.headers)
        assert KEY not in str(answer.reason)
        assert answer.headers["X-Other"] == "fine"


async def test_an_agent_that_goes_away_ends_the_request_to_the_provider(provider: Provider, directory: Path) -> None:
    ended = asyncio.Event()

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return response

    provider.handler = endless
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, headers=AUTH)
        assert await answer.content.readany() == b"first"
        answer.close()
        async with asyncio.timeout(20):
            await ended.wait()


@pytest.mark.parametrize("length", [None, 1000])
async def test_an_answer_that_breaks_off_is_seen_as_broken_off(
    provider: Provider, directory: Path, length: int | None
) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = length
        await response.prepare(request)
        await response.write(b"some of it")
        assert request.transport is not None
        request.transport.close()
        return response

    provider.handler = cut
    grant = grant_for(directory, provider.url)
    async with (
        serving(grant) as gateway,
        agent(grant.socket_path) as client,
        client.post(MESSAGES, headers=AUTH) as answer,
    ):
        assert await answer.content.readany() == b"some of it"
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.readany()
    assert gateway.traffic.failures == 1


async def test_an_unreachable_provider_is_a_502_with_host_and_reason(directory: Path) -> None:
    with socket.socket() as taken:  # bound, not listening: connections are refused
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        grant = grant_for(directory, f"http://127.0.0.1:{port}")
        async with serving(grant), agent(grant.socket_path) as client:
            status, kind, message = await error_of(await client.post(MESSAGES, json={}, headers=AUTH))
    assert (status, kind) == (502, "api_error")
    assert f"127.0.0.1:{port}" in message
    assert "refused" in message


async def test_a_provider_that_says_nothing_is_a_504(provider: Provider, directory: Path) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    provider.handler = silent
    grant = grant_for(directory, provider.url)
    async with serving(grant, Limits(idle_seconds=0.2)), agent(grant.socket_path) as client:
        status, kind, _ = await error_of(await client.post(MESSAGES, json={}, headers=AUTH))
    assert (status, kind) == (504, "api_error")


async def test_a_provider_that_falls_silent_in_its_answer_is_cut(provider: Provider, directory: Path) -> None:
    async def stalls(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.Event().wait()
        return response

    provider.handler = stalls
    grant = grant_for(directory, provider.url)
    async with (
        serving(grant, Limits(idle_seconds=2.0)),
        agent(grant.socket_path) as client,
        client.post(MESSAGES, json={}, headers=AUTH) as answer,
    ):
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()


@pytest.mark.parametrize("announced", [True, False])
async def test_a_body_over_the_limit_is_a_413(provider: Provider, directory: Path, announced: bool) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * 400

    async def take(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response()

    provider.handler = take
    grant = grant_for(directory, provider.url)
    async with serving(grant, Limits(body_bytes=1000)), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, data=b"x" * 1600 if announced else chunks(), headers=AUTH)
        assert (await error_of(answer))[:2] == (413, "request_too_large")
        assert (await client.post(MESSAGES, data=b"x" * 1000, headers=AUTH)).status == 200


async def test_expect_100_continue_is_answered_here(provider: Provider, directory: Path) -> None:
    async def take(request: web.Request) -> web.StreamResponse:
        return web.Response(body=await request.read())

    provider.handler = take
    grant = grant_for(directory, provider.url)
    async with serving(grant), agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, data=b"body", headers=AUTH, expect100=True)
        assert await answer.read() == b"body"
    assert "expect" not in provider.requests[0][2]


async def test_connections_over_the_limit_are_answered_so(provider: Provider, directory: Path) -> None:
    grant = grant_for(directory, provider.url)
    async with serving(grant, Limits(connections=1)), agent(grant.socket_path) as client:
        assert (await client.head("http://gateway/")).status == 200  # its connection stays open
        refused = await exchange(grant.socket_path, b"")  # said before anything is asked
        assert refused.startswith(b"HTTP/1.1 503 ")
        assert (await client.head("http://gateway/")).status == 200


async def test_a_replaced_grant_counts_from_the_next_request_and_leaves_streams_alone(
    provider: Provider, directory: Path
) -> None:
    go_on = asyncio.Event()

    async def two_parts(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one ")
        await go_on.wait()
        await response.write(f"two {KEY}".encode())
        return response

    provider.handler = two_parts
    grant = grant_for(directory, provider.url)
    async with serving(grant) as gateway, agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, headers=AUTH)
        assert await answer.content.readany() == b"one "
        inode = grant.socket_path.stat().st_ino
        await gateway.replace(replace(grant, api_key="sk-new", route=route(provider.url + "/new")))
        assert grant.socket_path.stat().st_ino == inode
        go_on.set()
        assert await answer.read() == b"two " + b"*" * len(KEY)
        await status(client, AUTH)
    assert [(path, headers["x-api-key"]) for _, path, headers in provider.requests] == [
        ("/v1/messages", KEY),
        ("/new/v1/messages", "sk-new"),
    ]


async def test_replacing_a_grant_brings_back_a_socket_that_was_lost(provider: Provider, directory: Path) -> None:
    grant = grant_for(directory, provider.url)
    async with serving(grant) as gateway:
        grant.socket_path.unlink()
        await gateway.replace(grant)
        async with agent(grant.socket_path) as client:
            assert await status(client, AUTH) == 200
        moved = replace(grant, socket_path=directory / "moved.sock")
        await gateway.replace(moved)
        assert not grant.socket_path.exists()
        with pytest.raises(OSError, match="No such file"):
            await gateway.replace(replace(grant, socket_path=directory / "missing" / "x.sock"))
        async with agent(moved.socket_path) as client:
            assert await status(client, AUTH) == 200


async def test_closing_cuts_streams_removes_the_socket_and_leaves_no_task(provider: Provider, directory: Path) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.Event().wait()
        return response

    provider.handler = endless
    grant = grant_for(directory, provider.url)
    before = asyncio.all_tasks()
    async with agent(grant.socket_path) as client:
        async with serving(grant):
            answer = await client.post(MESSAGES, headers=AUTH)
            assert await answer.content.readany() == b"first"
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert not grant.socket_path.exists()
    assert list(grant.socket_path.parent.iterdir()) == []
    left = [task for task in asyncio.all_tasks() - before if "RequestHandler" not in repr(task)]  # the provider's own
    assert left == []


async def test_a_grant_without_a_key_passes_the_clis_own_login_through(provider: Provider, directory: Path) -> None:
    async def echo(request: web.Request) -> web.Response:
        return web.json_response({"seen": request.headers["Authorization"]})

    provider.handler = echo
    grant = grant_for(directory, provider.url, api_key=None)
    login = {"Authorization": "Bearer sk-ant-oat01-mine"}
    async with serving(grant) as gateway, agent(grant.socket_path) as client:
        answer = await client.post(MESSAGES, data=b"{}", headers=login)
        # It is the container's own: nothing in the answer has to be kept from it.
        assert await answer.json() == {"seen": login["Authorization"]}
        refused = await client.post("http://gateway/v1/files", data=b"{}", headers=login)
        assert refused.status == 404
    assert [path for _, path, _ in provider.requests] == ["/v1/messages"]
    assert gateway.traffic.refusals == 1
