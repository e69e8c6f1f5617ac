"""The sockets; what is wrong before any handler: still a problem, with a request id, and nothing about the server."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from orchestrator.api.server import RunningServers, start_servers
from orchestrator.errors import ConfigError, ConflictError
from tests.orchestrator.api.harness import SPEC, Api, validate

Begin = Callable[..., Any]


async def _hello(_: web.Request) -> web.Response:
    return web.Response(text="hello")


@pytest.fixture
async def begin(tmp_path: Path) -> AsyncIterator[Begin]:
    """Start a small application; closed at the end."""
    async with AsyncExitStack() as stack:

        async def run(**settings: Any) -> RunningServers:
            app = web.Application()
            app.router.add_get("/", _hello)
            wanted = {"host": "127.0.0.1", "port": 0, "unix_socket": tmp_path / "run" / "api.sock", **settings}
            servers = await start_servers(app, **wanted)
            stack.push_async_callback(servers.aclose)
            return servers

        yield run


async def ask(servers: RunningServers) -> tuple[str, str]:
    """The answer at both sockets."""
    async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{servers.port}/") as response:
        over_tcp = await response.text()
    connector = aiohttp.UnixConnector(path=str(servers.unix_socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://localhost/") as response:
        return over_tcp, await response.text()


async def test_both_sockets_answer_and_the_file_is_the_owners(begin: Begin, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        servers = await begin()
    finally:
        os.umask(old)
    assert await ask(servers) == ("hello", "hello")
    assert (tmp_path / "run" / "api.sock").stat().st_mode & 0o777 == 0o600
    await servers.aclose()
    assert not (tmp_path / "run" / "api.sock").exists()
    await servers.aclose()


async def test_without_a_host_there_is_only_the_unix_socket(begin: Begin) -> None:
    servers = await begin(host=None)
    assert servers.port is None
    connector = aiohttp.UnixConnector(path=str(servers.unix_socket))
    async with aiohttp.ClientSession(connector=connector) as session, session.get("http://localhost/") as response:
        assert await response.text() == "hello"


async def test_a_stale_socket_is_replaced(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(tmp_path / "run" / "api.sock"))
    assert await ask(await begin()) == ("hello", "hello")


async def test_a_living_one_is_not(begin: Begin) -> None:
    first = await begin()
    with pytest.raises(ConflictError, match="another podmentor"):
        await begin()
    assert await ask(first) == ("hello", "hello")


async def test_one_that_listens_and_does_not_accept_is_alive_too(begin: Begin, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "run" / "api.sock"))
        busy.listen(0)
        with pytest.raises(ConflictError):
            await begin()
        assert (tmp_path / "run" / "api.sock").exists()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir, lambda path: path.symlink_to("/etc/passwd")])
async def test_what_is_no_socket_is_left_alone(begin: Begin, tmp_path: Path, make: Callable[[Path], Any]) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "api.sock"
    make(path)
    with pytest.raises(ConfigError, match="not a socket"):
        await begin()
    assert path.is_symlink() or path.exists()


async def test_a_path_that_is_too_long_is_explained(begin: Begin, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="runtime_dir"):
        await begin(unix_socket=tmp_path / ("x" * 120))


async def test_a_port_in_use_is_explained_and_nothing_stays_open(begin: Begin, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConflictError, match=str(port)):
            await begin(port=port)
    assert not (tmp_path / "run" / "api.sock").exists()


async def test_the_port_is_free_again_when_the_unix_socket_fails(begin: Begin, tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    (tmp_path / "run").touch()
    with pytest.raises(ConfigError):
        await begin(port=port)
    (tmp_path / "run").unlink()
    assert (await begin(port=port)).port == port


async def test_the_socket_of_a_following_service_is_not_removed(begin: Begin, tmp_path: Path) -> None:
    first = await begin()
    path = tmp_path / "run" / "api.sock"
    path.unlink()
    second = await begin()
    await first.aclose()
    assert await ask(second) == ("hello", "hello")


async def test_listening_beyond_this_machine_is_warned_of(begin: Begin, caplog: pytest.LogCaptureFixture) -> None:
    await begin(host="localhost")
    assert not caplog.records
    with pytest.raises(ConflictError):
        await begin(host="192.0.2.1")  # documentation address: never ours, so nothing listens
    assert "other machines can reach" in caplog.text


async def test_closing_does_not_wait_for_a_request_that_never_ends(tmp_path: Path) -> None:
    entered, ended = asyncio.Event(), asyncio.Event()

    async def hang(_: web.Request) -> web.Response:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError("never")

    app = web.Application()
    app.router.add_get("/", hang)
    servers = await start_servers(
        app, host="127.0.0.1", port=0, unix_socket=tmp_path / "api.sock", shutdown_seconds=0.1
    )
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.get(f"http://127.0.0.1:{servers.port}/"))
        await entered.wait()
        await asyncio.wait_for(servers.aclose(), 10)
        assert ended.is_set()
        with pytest.raises(aiohttp.ClientError):
            await asking


async def test_a_service_inside_a_command_says_so(start: Any) -> None:
    api = await start(embedded=True)
    assert (await api.get("/healthz", who=None)).json["embedded"] is True


async def test_health_and_readiness_need_no_token(api: Api) -> None:
    health = await api.get("/healthz", who=None)
    assert health.json == {"status": "ok", "instance": "i-1", "version": "1.2.3", "embedded": False}
    assert (await api.get("/readyz", who=None)).status == 200
    api.runs.ready = {"ready": False, "runtime": "podman does not answer"}
    answer = await api.get("/readyz", who=None)
    assert (answer.status, answer.json["runtime"]) == (503, "podman does not answer")


@pytest.mark.parametrize("begun", [b"", b"GET / HT", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
async def test_a_connection_that_asks_for_nothing_is_closed(begin: Begin, begun: bytes) -> None:
    servers = await begin(silent_seconds=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", servers.port)
    writer.write(begun)
    async with asyncio.timeout(20):
        assert await reader.read(-1) == b""
    writer.close()


HOST = b"Host: localhost\r\n"
HEAD = b"GET /healthz HTTP/1.1\r\n" + HOST
BROKEN = {
    "a URL of 9 kB": b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST,
    "a query of 9 kB": b"GET /healthz?x=" + b"x" * 9000 + b" HTTP/1.1\r\n" + HOST,
    "a header of 9 kB": HEAD + b"X-Long: " + b"x" * 9000 + b"\r\n",
    "too many headers": HEAD + b"".join(b"X-%d: x\r\n" % number for number in range(300)),
    "a NUL in a header": HEAD + b"X-A: a\0b\r\n",
    "a NUL in the URL": b"GET /\0 HTTP/1.1\r\n" + HOST,
    "a header without a colon": HEAD + b"nothing\r\n",
    "a folded header": HEAD + b"X-A: a\r\n b\r\n",
    "an unknown method": b"BREW /healthz HTTP/1.1\r\n" + HOST,
    "no method": b"G@T /healthz HTTP/1.1\r\n" + HOST,
    "a method in small letters": b"get /healthz HTTP/1.1\r\n" + HOST,
    "no HTTP": b"hello\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"x" * 50 + b"\r\n",
    "HTTP of another version": b"GET /healthz HTTP/9.9\r\n" + HOST,
    "HTTP/2": b"PRI * HTTP/2.0\r\n",
    "a tunnel": b"CONNECT example.com:443 HTTP/1.1\r\n" + HOST,
    "an asterisk": b"OPTIONS * HTTP/1.1\r\n" + HOST,
    "two lengths": HEAD + b"Content-Length: 1\r\nContent-Length: 2\r\n",
    "a length that is none": HEAD + b"Content-Length: x\r\n",
    "a length and chunks": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "an unknown transfer coding": HEAD + b"Transfer-Encoding: wrapped\r\n",
    "an expectation that nobody meets": HEAD + b"Expect: tea\r\n",
    "a wrong escape": b"GET /%zz HTTP/1.1\r\n" + HOST,
    "bytes that are no text": b"GET /\xff\xfe HTTP/1.1\r\n" + HOST,
    "no host": b"GET /v1/runs HTTP/1.1\r\n",
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
async def test_every_error_is_a_problem_that_says_nothing_of_the_server(api: Api, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.servers.port)
    writer.write(raw + b"Connection: close\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    code = int(status.split()[1])
    assert 400 <= code < 500
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"] == "podmentor"
    problem = json.loads(body)
    validate(problem, SPEC["components"]["schemas"]["Problem"])
    assert (problem["status"], problem["request_id"]) == (code, headers["X-Request-Id"])
    assert problem["request_id"]
    for word in (b"aiohttp", b"Python", b"Traceback", b".py"):
        assert word not in answer


async def test_the_connection_works_for_others_afterwards(api: Api) -> None:
    for raw in BROKEN.values():
        _, writer = await asyncio.open_connection("127.0.0.1", api.servers.port)
        writer.write(raw + b"\r\n")
        writer.close()
    assert (await api.get("/healthz", who=None)).status == 200


async def test_what_cannot_be_parsed_is_no_error_of_ours(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", api.servers.port)
    writer.write(b"hello\r\n\r\n")
    await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert not [record for record in caplog.records if record.levelname in {"ERROR", "WARNING"}]
