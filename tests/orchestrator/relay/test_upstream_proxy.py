"""A network that is left through a proxy only, and that has a certificate authority of its own."""

import asyncio
import base64
import contextlib
import os
import signal
import socket
import ssl
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.contract.egress import Network, UpstreamProxy
from orchestrator.errors import InvalidRequestError, SandboxError
from orchestrator.relay.control.client import RelayProcess
from orchestrator.relay.gateway.server import RunGateway
from orchestrator.relay.gateway.upstream import open_session
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink
from tests.fakes.connect_proxy import ConnectProxy, connect_proxy
from tests.fakes.resolver import ScriptedResolver
from tests.orchestrator.relay.private_ca import PrivateCA, private_ca
from tests.orchestrator.relay.proxied import connect, egress_grant, eventually, plain, proxy_with, target, to_end
from tests.orchestrator.relay.support import AUTH, KEY, MESSAGES, Provider, agent, grant_for

PASSWORD = "proxy-password-0123"
NAME = "provider.example"


def by(proxy: ConnectProxy, **changes: object) -> UpstreamProxy:
    found = UpstreamProxy(host="127.0.0.1", port=proxy.port, username="pm", password=PASSWORD)
    return replace(found, **changes)  # type: ignore[arg-type]


@contextlib.asynccontextmanager
async def tls_provider(ca: PrivateCA) -> AsyncIterator[Provider]:
    provider = Provider()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", provider.serve)
    server = TestServer(app)
    await server.start_server(ssl=ca.server)
    provider.url = f"https://{NAME}:{server.port}"
    try:
        yield provider
    finally:
        await server.close()


async def answer_of(directory: Path, url: str, network: Network) -> tuple[int, str]:
    """What a run gets from its gateway to ``url``."""
    async with open_session(Limits()) as session:
        gateway = RunGateway(grant_for(directory, url), session=session, limits=Limits(), uplink=Uplink(network))
        await gateway.open()
        try:
            async with agent(gateway.grant.socket_path) as client, client.post(MESSAGES, headers=AUTH) as answer:
                return answer.status, await answer.text()
        finally:
            await gateway.aclose()


@pytest.fixture
def ca(directory: Path) -> PrivateCA:
    return private_ca(directory, NAME, "127.0.0.1")


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2])


# --- the gateway -----------------------------------------------------------------------------------------------------


async def test_a_provider_is_reached_through_the_proxy_by_a_certificate_of_the_network(
    directory: Path, ca: PrivateCA
) -> None:
    async with tls_provider(ca) as provider, connect_proxy(ConnectProxy(credentials=f"pm:{PASSWORD}")) as proxy:
        proxy.names[NAME] = port_of(provider.url)
        network = Network(proxy=by(proxy), ca_file=ca.file)
        assert await answer_of(directory, provider.url, network) == (200, '{"hello": "there"}')
        assert proxy.asked == [f"CONNECT {NAME}:{port_of(provider.url)} HTTP/1.1"]
        (_, _, headers) = provider.requests[0]
        assert headers["x-api-key"] == KEY
        assert not [name for name in headers if name.startswith("proxy-")]


async def test_without_its_authority_the_answer_names_the_setting(directory: Path, ca: PrivateCA) -> None:
    async with tls_provider(ca) as provider, connect_proxy() as proxy:
        proxy.names[NAME] = port_of(provider.url)
        status, text = await answer_of(directory, provider.url, Network(proxy=by(proxy)))
        assert status == 502
        assert "its certificate was refused" in text
        assert "egress.ca_file" in text
        assert provider.requests == []


async def test_the_authorities_of_the_system_stay_trusted(ca: PrivateCA) -> None:
    system = ssl.create_default_context().cert_store_stats()["x509_ca"]
    assert Uplink(Network(ca_file=ca.file)).tls.cert_store_stats()["x509_ca"] == system + 1


async def test_a_provider_by_plain_http_goes_through_the_proxy_too(directory: Path, provider: Provider) -> None:
    async with connect_proxy(ConnectProxy(credentials=f"pm:{PASSWORD}")) as proxy:
        proxy.names[NAME] = port_of(provider.url)
        url = f"http://{NAME}:{port_of(provider.url)}"
        assert (await answer_of(directory, url, Network(proxy=by(proxy))))[0] == 200
        assert proxy.asked == [f"POST {url}/v1/messages HTTP/1.1"]
        status, text = await answer_of(directory, url, Network(proxy=by(proxy, password="wrong")))
        assert (status, "correct them" in text) == (502, True)
        assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("answer", "changes", "words"),
    [
        (None, {"password": "wrong"}, "does not take the credentials in egress.upstream_proxy: correct them"),
        (None, {"username": None, "password": None}, "wants credentials: set egress.upstream_proxy.username"),
        (b"HTTP/1.1 403 No\r\n\r\n", {}, "does not allow this host: ask who runs it"),
        (b"HTTP/1.1 503 Down\r\n\r\n", {}, "could not reach the host (status 503)"),
        (b"HTTP/1.1 302 Log in\r\n\r\n", {}, "refused the connection (status 302)"),
    ],
)
async def test_who_has_refused_and_what_to_do_is_said_to_cli_and_tool_alike(
    directory: Path, answer: bytes | None, changes: dict[str, object], words: str
) -> None:
    async with connect_proxy(ConnectProxy(credentials=f"pm:{PASSWORD}")) as proxy:
        if answer is not None:
            proxy.answers[NAME] = answer
        upstream = by(proxy, **changes)
        status, text = await answer_of(directory, f"https://{NAME}", Network(proxy=upstream))
        assert (status, words in text) == (502, True), text
        assert "proxy" in text
        assert PASSWORD not in text
        resolver, uplink = ScriptedResolver(), Uplink(Network(proxy=upstream))
        async with proxy_with(directory, NAME, resolver=resolver, uplink=uplink) as running:
            said = (await running.said(connect(NAME, 443))).decode()
        assert said.startswith("HTTP/1.1 502 ")
        assert words in said
        assert PASSWORD not in said


async def test_a_proxy_that_is_not_there_is_told_apart_from_a_provider_that_is_not(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with connect_proxy() as proxy:
        pass
    _, text = await answer_of(directory, f"https://{NAME}", Network(proxy=by(proxy)))
    assert "the network's proxy (egress.upstream_proxy) could not be reached: connection refused" in text

    async def no_names(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "no such name")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", no_names)
    _, text = await answer_of(directory, f"https://{NAME}", Network(proxy=by(proxy, host="proxy.example")))
    assert "the name of the network's proxy (egress.upstream_proxy) is not known" in text
    _, text = await answer_of(directory, f"https://{NAME}", Network())
    assert "its name is not known; check this machine's DNS, or set egress.upstream_proxy" in text


async def test_no_proxy_and_this_machine_itself_are_reached_directly(
    directory: Path, provider: Provider, ca: PrivateCA
) -> None:
    async with connect_proxy() as proxy:
        assert (await answer_of(directory, provider.url, Network(proxy=by(proxy))))[0] == 200
        uplink = Uplink(Network(proxy=by(proxy, no_proxy=("*.corp.example", "git.example", "10.0.0.0/8"))))
        for host in ("a.corp.example", "git.example", "10.1.2.3", "localhost", "127.0.0.1", "::1"):
            assert uplink.proxy_for(host) is None, host
        for host in ("corp.example", "a.git.example", "11.1.2.3", "provider.example", "2001:db8::1"):
            assert uplink.proxy_for(host) is not None, host
        assert proxy.asked == []


# --- the proxy of a run ----------------------------------------------------------------------------------------------


async def test_a_tool_gets_its_tunnel_through_the_proxy_though_no_name_is_known_here(directory: Path) -> None:
    async with target() as server, connect_proxy(ConnectProxy(credentials=f"pm:{PASSWORD}")) as proxy:
        proxy.names["pypi.example"] = server.port
        uplink = Uplink(Network(proxy=by(proxy)))
        async with proxy_with(directory, "pypi.example:22", resolver=ScriptedResolver(), uplink=uplink) as running:
            reader, writer = await running.connect("pypi.example", 22)
            assert await reader.readexactly(5) == b"hello", "what came with the proxy's answer is not lost"
            writer.write(b"bye")
            writer.write_eof()
            assert await to_end(reader) == b""
            await running.reported(1)
            assert server.received == [b"bye"]
            assert (running.reports[0].verdict, running.reports[0].bytes_up, running.reports[0].bytes_down) == (
                "allowed",
                3,
                5,
            )
        assert proxy.asked == ["CONNECT pypi.example:22 HTTP/1.1"]
        await eventually(lambda: proxy.open == 0)


async def test_a_plain_request_goes_by_connect_and_the_proxys_name_is_looked_up(directory: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Proxy-Authorization" not in head
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    async with target(serve) as server, connect_proxy() as proxy:
        proxy.names["mirror.example"] = server.port
        resolver = ScriptedResolver(edge_example=[["127.0.0.1"]])
        uplink = Uplink(Network(proxy=by(proxy, host="edge.example")))
        async with proxy_with(directory, "mirror.example:8000", resolver=resolver, uplink=uplink) as running:
            assert (await running.said(plain("mirror.example", 8000))).endswith(b"\r\n\r\nok")
        assert proxy.asked == ["CONNECT mirror.example:8000 HTTP/1.1"]


async def test_what_is_refused_here_never_comes_to_the_proxy(directory: Path) -> None:
    async with connect_proxy() as proxy:
        resolver = ScriptedResolver(inside_example=[["10.0.0.7"]], listed_example=[["10.0.0.8"]])
        rules = ("inside.example", "listed.example", "10.0.0.8")
        uplink = Uplink(Network(proxy=by(proxy)))
        async with proxy_with(directory, *rules, resolver=resolver, uplink=uplink) as running:
            for host, word in (("evil.example", "not on this run"), ("inside.example", "leads to a private address")):
                said = (await running.said(connect(host, 443))).decode()
                assert said.startswith("HTTP/1.1 403 ")
                assert word in said
            assert proxy.asked == []
            await running.said(connect("listed.example", 443))
            await running.said(connect("10.0.0.8", 443))
            assert proxy.asked == ["CONNECT listed.example:443 HTTP/1.1", "CONNECT 10.0.0.8:443 HTTP/1.1"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70_000, "not HTTP/1"),
        (b"SSH-2.0\r\n\r\n", "not HTTP/1"),
        (b"HTTP/1.1 200 OK\n\n", "not HTTP/1"),
        (b"", "closed the connection without an answer"),
    ],
)
async def test_a_proxy_that_speaks_something_else_is_an_error_and_bounded(
    directory: Path, answer: bytes, words: str
) -> None:
    async with connect_proxy(ConnectProxy(answers={NAME: answer})) as proxy:
        uplink = Uplink(Network(proxy=by(proxy)))
        async with proxy_with(directory, NAME, resolver=ScriptedResolver(), uplink=uplink) as running:
            assert words in (await running.said(connect(NAME, 443))).decode()
        await eventually(lambda: proxy.open == 0)


async def test_a_proxy_that_never_answers_is_given_up_and_left(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with connect_proxy() as proxy:
        monkeypatch.setattr(proxy, "serve", lambda reader, writer: asyncio.Event().wait())
        uplink, limits = Uplink(Network(proxy=by(proxy))), Limits(connect_seconds=0.2)
        async with proxy_with(directory, NAME, resolver=ScriptedResolver(), uplink=uplink, limits=limits) as running:
            assert (await running.said(connect(NAME, 443))).startswith(b"HTTP/1.1 504 ")
    async with target(silent) as server:
        uplink = Uplink(Network(proxy=UpstreamProxy(host="127.0.0.1", port=server.port)))
        async with proxy_with(directory, NAME, resolver=ScriptedResolver(), uplink=uplink) as running:
            reader, _ = await running.ask(connect(NAME, 443))
            await eventually(lambda: server.connections == 1)
            await running.proxy.aclose()
            assert await to_end(reader) == b"", "the end of a run cuts what waits for the proxy"


# --- the process -----------------------------------------------------------------------------------------------------


async def tunnel(path: Path, port: int) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(connect("pypi.example", port))
    writer.write_eof()
    try:
        return await to_end(reader)
    finally:
        writer.close()


async def test_the_settings_reach_a_relay_however_it_came_to_be_and_the_password_stays_in_its_memory(
    directory: Path,
) -> None:
    (directory / "hosts").write_text("")

    def service(network: Network | None) -> RelayProcess:
        options = ("--resolve-file", str(directory / "hosts"))
        return RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", network=network, options=options)

    async with target() as server, connect_proxy(ConnectProxy(credentials=f"pm:{PASSWORD}")) as proxy:
        proxy.names["pypi.example"] = server.port
        first = service(Network(proxy=by(proxy)))
        grant = egress_grant(directory, "pypi.example:22")
        await first.grant_egress(grant)
        assert first.pid is not None
        arguments = Path(f"/proc/{first.pid}/cmdline").read_bytes()
        os.kill(first.pid, signal.SIGKILL)
        assert await first.granted() == {"run-1"}
        assert b"hello" in await tunnel(grant.socket_path, 22), "a relay that replaced a crashed one has them"
        await first.aclose(keep=True)
        other = service(None)
        await other.start()
        await other.aclose(keep=True)
        assert b"hello" in await tunnel(grant.socket_path, 22), "a client without settings leaves them as they are"
        second = service(Network(proxy=by(proxy, password="wrong-password")))
        await second.start()
        assert b"502" in await tunnel(grant.socket_path, 22), "the next service has other ones"
        with pytest.raises(SandboxError, match=r"egress\.ca_file: .*missing\.pem cannot be used: No such file"):
            await service(Network(ca_file=directory / "missing.pem")).start()
        await second.aclose(keep=False)
    log = (directory / "relay.log").read_text()
    encoded = base64.b64encode(f"pm:{PASSWORD}".encode()).decode()
    for secret in (PASSWORD, encoded):
        assert secret not in log
        assert secret.encode() not in arguments


def test_a_file_without_certificates_changes_nothing(directory: Path) -> None:
    (directory / "empty.pem").write_text("nothing")
    uplink = Uplink()
    before = uplink.tls
    with pytest.raises(InvalidRequestError, match="there is no certificate in it"):
        uplink.configure(Network(ca_file=directory / "empty.pem"))
    assert uplink.tls is before


def test_the_password_is_hidden_in_logs_and_representations() -> None:
    uplink = Uplink(Network(proxy=UpstreamProxy(host="p.example", port=1, username="pm", password=PASSWORD)))
    assert uplink.secrets() == [PASSWORD, base64.b64encode(f"pm:{PASSWORD}".encode()).decode()]
    assert PASSWORD not in repr(uplink.proxy_for("a.example"))
