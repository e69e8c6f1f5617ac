import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.contract.egress import EgressReport
from orchestrator.contract.gateway import Traffic
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from orchestrator.relay.proxy import handshake
from orchestrator.relay.proxy import server as proxy
from orchestrator.relay.proxy.server import RunProxy
from tests.fakes.resolver import ScriptedResolver
from tests.orchestrator.relay.proxied import (
    Streams,
    connect,
    egress_grant,
    eventually,
    plain,
    proxy_with,
    target,
    to_end,
)


def good() -> ScriptedResolver:
    return ScriptedResolver(good_example=[["127.0.0.1"]])


async def finish(streams: Streams) -> bytes:
    reader, writer = streams
    async with asyncio.timeout(20):
        data = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return data


# --- what is allowed ------------------------------------------------------------------------------------------------


async def test_a_tunnel_carries_both_directions_and_each_end_alone(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, writer = await running.connect("GOOD.example.", server.port)
        assert await reader.readexactly(5) == b"hello"
        writer.write(b"over ")
        writer.write(b"and out")
        writer.write_eof()
        assert await finish((reader, writer)) == b""
        assert await running.reported(1) == [
            EgressReport(
                run_id="run-1", verdict="allowed", host="good.example", port=server.port, bytes_up=12, bytes_down=5
            )
        ]
        assert server.received == [b"over and out"]
        assert running.proxy.traffic == Traffic(connections=1, requests=1, bytes_up=12, bytes_down=5)


async def test_a_server_may_stop_first_and_the_client_go_on(directory: Path) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.write_eof()
        heard.set_result(await reader.read(-1))

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, writer = await running.connect("good.example", server.port)
        assert await reader.read(-1) == b"bye"
        writer.write(b"still here")
        writer.write_eof()
        assert await asyncio.wait_for(heard, 20) == b"still here"
        writer.close()


async def test_what_comes_with_the_head_goes_into_the_tunnel(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, writer = await running.ask(connect("good.example", server.port) + b"early")
        writer.write_eof()
        await reader.readuntil(b"\r\n\r\n")
        assert await finish((reader, writer)) == b"hello"
        assert server.received == [b"early"]


async def test_a_slow_reader_stops_the_server_and_loses_nothing(directory: Path) -> None:
    size, written = 16 * 1024 * 1024, 0
    stuck = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        block = bytes(65536)
        while written < size:
            writer.write(block)
            written += len(block)
            try:
                await asyncio.wait_for(writer.drain(), 0.5)
            except TimeoutError:
                stuck.set()
                await writer.drain()

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, writer = await running.connect("good.example", server.port)
        await asyncio.wait_for(stuck.wait(), 30)
        assert written < size
        assert len(await finish((reader, writer))) == size


async def test_a_plain_request_is_written_anew_and_answered(directory: Path) -> None:
    heads: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        assert await reader.readexactly(5) == b"12345"
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nKeep-Alive: 5\r\n\r\nbody")
        heads.append(await reader.read(-1))  # nothing but the end may follow

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        second = plain("evil.example", 80)
        said = await running.said(
            plain(
                "good.example",
                server.port,
                "Content-Length: 5",
                "Proxy-Connection: keep-alive",
                "Accept: */*",
                method="POST",
                body=b"12345" + second,
            )
        )
        assert said == b"HTTP/1.1 200 \r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
        expected = f"POST /x HTTP/1.1\r\nHost: good.example:{server.port}\r\nAccept: */*\r\nContent-Length: 5\r\n"
        await eventually(lambda: len(heads) == 2)
        assert heads == [f"{expected}Connection: close\r\n\r\n".encode(), b""]
        assert running.resolver.asked == ["good.example"], "the second request was not even looked at"


async def test_an_answer_streams_as_it_comes(directory: Path) -> None:
    go_on = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")
        await go_on.wait()
        writer.write(b"3\r\ntwo\r\n0\r\n\r\n")
        await reader.read(-1)

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, writer = await running.ask(plain("good.example", server.port))
        async with asyncio.timeout(20):
            assert (await reader.readuntil(b"one\r\n")).endswith(b"3\r\none\r\n")
            go_on.set()
            assert await finish((reader, writer)) == b"3\r\ntwo\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (b"SSH-2.0-x\r\n\r\n", b"not HTTP/1"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"both Transfer-Encoding"),
        (b"", b"without an answer"),
        (b"HTTP/1.1 200 OK\r\nContent", b"without an answer"),
    ],
)
async def test_an_answer_that_cannot_be_read_is_said_to_be_so(directory: Path, answer: bytes, why: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        said = await running.said(plain("good.example", server.port))
        assert said.startswith(b"HTTP/1.1 502 podmentor: ")
        assert why in said


async def test_a_cut_answer_is_seen_as_cut(directory: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n")

    async with (
        target(serve) as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, _ = await running.ask(plain("good.example", server.port))
        said = await to_end(reader)
        assert b"one" in said
        assert not said.endswith(b"0\r\n\r\n")


# --- what is not ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "port", "why"),
    [
        ("evil.example", 443, b"not on this run's allow-list"),
        ("good.example", 22, b"port 22 of this host is not allowed"),
        ("127.0.0.1", 443, b"an address may only be used"),
        ("[::1]", 443, b"an address may only be used"),
        ("127.1", 443, b"unusual form"),
    ],
)
@pytest.mark.parametrize("form", [connect, plain])
async def test_a_denial_says_why_and_what_to_do(
    directory: Path, form: object, host: str, port: int, why: bytes
) -> None:
    async with proxy_with(directory, "good.example", resolver=good()) as running:
        request = connect(host, port) if form is connect else plain(host, port)
        said = await running.said(request)
        head, _, body = said.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 403 podmentor: ")
        assert why in head.partition(b"\r\n")[0]
        assert b"X-Podmentor-Refusal: egress_denied" in head
        assert b"podmentor runs allow run-1 " + host.encode() in body
        assert b"This run may reach: good.example." in body
        assert running.resolver.asked == [], "a name that is not allowed is not looked up"
        [report] = running.reports
        assert (report.verdict, report.host, report.port) == ("denied", host.strip("[]"), port)
        assert report.reason.encode() in said


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "fe80::1", "0.0.0.0"],
)
async def test_a_name_that_leads_inside_is_denied(directory: Path, address: str) -> None:
    async with target() as server:
        resolver = ScriptedResolver(inside_example=[[address]])
        async with proxy_with(directory, f"inside.example:{server.port}", resolver=resolver) as running:
            said = await running.said(connect("inside.example", server.port))
            assert said.startswith(b"HTTP/1.1 403 ")
            assert b"its name leads to" in said
            assert server.connections == 0
            assert [report.verdict for report in running.reports] == ["denied"]


async def test_a_name_is_looked_up_once_for_a_connection(directory: Path) -> None:
    """A resolver that gives a good address first and another one later (rebinding) does not get to the later one."""
    async with target() as server, target() as inside:
        resolver = ScriptedResolver(rebind_example=[["127.0.0.1"], ["127.0.0.2"]])
        rules = (f"rebind.example:{server.port}", f"127.0.0.1:{server.port}")
        async with proxy_with(directory, *rules, resolver=resolver) as running:
            reader, writer = await running.connect("rebind.example", server.port)
            assert resolver.asked == ["rebind.example"]
            writer.write_eof()
            assert await finish((reader, writer)) == b"hello"
            said = await running.said(connect("rebind.example", server.port))
            assert said.startswith(b"HTTP/1.1 403 ")
            assert b"a loopback address" in said
            assert (server.connections, inside.connections) == (1, 0)


async def test_only_the_good_ones_of_several_addresses_are_tried(directory: Path) -> None:
    async with target() as server:
        resolver = ScriptedResolver(both_example=[["127.0.0.2", "10.0.0.1", "127.0.0.1"]])
        rules = (f"both.example:{server.port}", f"127.0.0.1:{server.port}")
        async with proxy_with(directory, *rules, resolver=resolver) as running:
            reader, writer = await running.connect("both.example", server.port)
            writer.write_eof()
            assert await finish((reader, writer)) == b"hello"


async def test_a_rule_that_names_an_address_opens_it(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(directory, f"127.0.0.1:{server.port}", resolver=ScriptedResolver()) as running,
    ):
        reader, writer = await running.connect("127.0.0.1", server.port)
        writer.write_eof()
        assert await finish((reader, writer)) == b"hello"
        assert running.resolver.asked == []


async def test_what_cannot_be_read_is_refused_and_not_reported_as_a_target(directory: Path) -> None:
    async with proxy_with(directory, "good.example", resolver=good()) as running:
        said = await running.said(b"GET / HTTP/1.1\r\nHost: good.example\r\n\r\n")
        assert said.startswith(b"HTTP/1.1 400 podmentor: this is a proxy")
        assert running.proxy.traffic == Traffic(connections=1, failures=1)
        assert running.reports == []


async def test_an_unknown_name_and_a_closed_port_are_no_denials(directory: Path) -> None:
    async with target() as server:
        closed = server.port
    rules = (f"good.example:{closed}", f"127.0.0.1:{closed}", "none.example")
    async with proxy_with(directory, *rules, resolver=good()) as running:
        said = await running.said(connect("none.example", 443))
        assert said.startswith(b"HTTP/1.1 502 podmentor: none.example:443 is not known")
        said = await running.said(connect("good.example", closed))
        assert said.startswith(f"HTTP/1.1 502 podmentor: good.example:{closed} refused the connection".encode())
        assert running.proxy.traffic == Traffic(connections=2, failures=2)
        assert running.reports == []


# --- bounds ---------------------------------------------------------------------------------------------------------


async def test_there_is_an_end_to_connections(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(
            directory,
            f"good.example:{server.port}",
            f"127.0.0.1:{server.port}",
            resolver=good(),
            limits=Limits(connections=2),
        ) as running,
    ):
        tunnel = await running.connect("good.example", server.port)
        waiting = await running.ask(b"CONNECT ")
        said = await running.said(connect("good.example", server.port))
        assert said.startswith(b"HTTP/1.1 503 podmentor: too many connections")
        waiting[1].close()
        tunnel[1].write_eof()
        await finish(tunnel)
        await running.reported(1)
        await running.connect("good.example", server.port)


async def test_a_tunnel_in_which_nothing_moves_is_cut(directory: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)

    async with (
        target(serve) as server,
        proxy_with(
            directory,
            f"good.example:{server.port}",
            f"127.0.0.1:{server.port}",
            resolver=good(),
            limits=Limits(idle_seconds=0.2),
        ) as running,
    ):
        reader, _writer = await running.connect("good.example", server.port)
        assert await to_end(reader) == b""
        assert [report.verdict for report in await running.reported(1)] == ["allowed"]


async def test_a_client_that_never_ends_its_head_is_cut(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handshake, "HEAD_SECONDS", 0.1)
    async with proxy_with(directory, "good.example", resolver=good()) as running:
        reader, _writer = await running.ask(b"CONNECT good")
        assert await to_end(reader) == b""


async def test_a_client_that_goes_away_while_its_name_is_looked_up_leaves_nothing(directory: Path) -> None:
    resolver = good()
    resolver.gate = asyncio.Event()
    async with (
        target() as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=resolver) as running,
    ):
        _, writer = await running.ask(connect("good.example", server.port))
        await eventually(lambda: bool(resolver.asked))
        writer.transport.abort()
        resolver.gate.set()
        await running.reported(1)
        assert not running.proxy._tunnels
        assert not running.proxy._handshakes


async def test_the_end_of_the_grant_cuts_what_is_under_way_and_reports_it(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(directory, f"good.example:{server.port}", f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        reader, _writer = await running.connect("good.example", server.port)
        assert await reader.readexactly(5) == b"hello"
        await running.said(connect("evil.example", 443))
        await running.said(connect("evil.example", 443))
        await running.proxy.aclose()
        assert await to_end(reader) == b""
        assert not running.path.exists()
        assert [(report.verdict, report.count) for report in running.reports] == [
            ("denied", 1),
            ("allowed", 1),
            ("denied", 1),
        ]


async def test_new_rules_hold_for_the_next_connection_and_cut_none(directory: Path) -> None:
    async with (
        target() as server,
        proxy_with(directory, f"127.0.0.1:{server.port}", resolver=good()) as running,
    ):
        tunnel = await running.connect("127.0.0.1", server.port)
        assert (await running.said(connect("good.example", server.port))).startswith(b"HTTP/1.1 403 ")
        grant = running.proxy.grant
        await running.proxy.replace(replace(grant, rules=(*grant.rules, f"good.example:{server.port}")))
        other = await running.connect("good.example", server.port)
        for streams in (tunnel, other):
            streams[1].write_eof()
            assert await finish(streams) == b"hello"


async def test_a_socket_that_is_gone_is_made_anew(directory: Path) -> None:
    async with proxy_with(directory, "good.example", resolver=good()) as running:
        running.path.unlink()
        await running.proxy.replace(running.proxy.grant)
        assert (await running.said(connect("evil.example", 1))).startswith(b"HTTP/1.1 403 ")


async def test_a_grant_whose_directory_is_gone_is_refused(directory: Path) -> None:
    grant = replace(egress_grant(directory, "good.example"), socket_path=directory / "nowhere" / "egress.sock")
    proxy = RunProxy(grant, resolver=good(), limits=Limits(), report=lambda _: None, uplink=Uplink())
    with pytest.raises(OSError, match="No such file"):
        await proxy.open()
    await proxy.aclose()


async def test_a_name_that_leads_to_this_machine_leads_nowhere(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proxy, "is_own", lambda address: str(address) == "192.0.2.7")
    resolver = ScriptedResolver(good_example=[["192.0.2.7"]])
    async with proxy_with(directory, "good.example", resolver=resolver) as running:
        answer = await running.said(connect("good.example", 443))
    assert answer.startswith(
        b"HTTP/1.1 403 podmentor: good.example:443 denied: its name leads to this machine's own address"
    )
