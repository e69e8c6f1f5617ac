"""What the proxy passes on, another reader must read as the one request that the proxy has read."""

import asyncio
import random
from typing import Any, cast

from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser, HttpRequestParserPy
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.hosts import normalise_host
from orchestrator.relay.proxy.http1.body import BodyError
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.request import HeadReader, Request

CHUNKED = b"3\r\nabc\r\n0\r\n\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: a\r\n\r\n"
SEEDS = [
    b"GET http://good.example/x HTTP/1.1\r\nHost: good.example\r\n\r\n",
    b"POST http://good.example/x HTTP/1.1\r\nHost: good.example\r\nTransfer-Encoding: chunked\r\n\r\n"
    + CHUNKED
    + HIDDEN,
    b"POST http://good.example/x HTTP/1.1\r\nHost: good.example\r\nContent-Length: 5\r\n\r\nhello" + HIDDEN,
    b"POST http://good.example/x HTTP/1.1\r\nHost: good.example\r\nConnection: close, x-a\r\nX-A: b\r\n\r\n" + HIDDEN,
    b"POST http://good.example:80/x?q HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
]
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
    b"\x0b",
    b"\x85",
    b"\xff",
    b":",
    b";",
    b",",
    b"#",
    b"?",
    b"@",
    b"//",
    b"\\",
    b"%0d%0a",
    b" folded\r\n",
    b"0\r\n\r\n",
    b"3;a=b\r\n",
    b"[::1]",
    b"HTTP/1.1",
    b"GET ",
    b"Host: evil\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\tchunked \r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 5,5\r\n",
    b"Content_Length: 3\r\n",
    b"Upgrade: h2c\r\n",
    b"Connection: content-length\r\n",
    b"Connection: host\r\n",
    b"Connection: transfer-encoding\r\n",
    b"Expect: 100-continue\r\n",
]


def mutated(rnd: random.Random) -> bytes:
    data = bytearray(rnd.choice(SEEDS))
    for _ in range(rnd.choice((1, 1, 2, 3))):
        place = rnd.randrange(len(data) + 1)
        match rnd.randrange(4):
            case 0:
                data[place:place] = rnd.choice(PIECES)
            case 1:
                starts = [0, *(index + 1 for index, byte in enumerate(data) if byte == 10)]
                place = rnd.choice(starts)
                data[place:place] = rnd.choice(PIECES)
            case 2:
                del data[place : place + rnd.choice((1, 2, 9))]
            case _:
                data[place : place + 1] = bytes([rnd.randrange(256)])
    return bytes(data)


def passed_on(data: bytes, rnd: random.Random) -> tuple[Request, bytes] | None:
    """The request and what goes to the server; None: refused, or not whole."""
    reader, place, head = HeadReader(), 0, None
    try:
        while head is None and place < len(data):
            size = rnd.randrange(1, 40)
            head, place = reader.feed(data[place : place + size]), place + size
        if not isinstance(head, Request):
            return None
        normalise_host(head.host)  # what the policy does with it first
        out = head.render() + head.body.feed(reader.rest + data[place:])
    except (WireError, BodyError, ValueError):
        return None
    return (head, out) if head.body.done else None


class Reading(BaseProtocol):
    """What aiohttp's parsers want to stand behind."""


@given(st.integers(0, 2**32))
def test_nothing_is_passed_on_that_another_server_reads_as_more_or_other(seed: int) -> None:
    rnd = random.Random(seed)
    for _ in range(20):
        data = mutated(rnd)
        if (found := passed_on(data, rnd)) is None:
            continue
        head, out = found
        loop = asyncio.new_event_loop()
        try:
            for kind in (HttpRequestParser, HttpRequestParserPy):
                protocol = Reading(loop)
                parser = cast("Any", kind)(protocol, loop, 2**16)
                protocol._parser = parser
                try:
                    messages, _, tail = parser.feed_data(out)
                except HttpProcessingError:  # it may refuse what we take: that harms nobody
                    continue
                assert len(messages) == 1, data
                assert tail == b"", data
                host = head.host if head.port == 80 else f"{head.host}:{head.port}"
                assert messages[0][0].headers.getall("Host") == [host], data
        finally:
            loop.close()
