"""What is wrong before any handler: still a problem, with a request id, and nothing about the server."""

import asyncio
import json

import pytest

from tests.orchestrator.api.harness import SPEC, Api, validate

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
