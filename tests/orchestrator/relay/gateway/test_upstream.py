import socket
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from orchestrator.contract.egress import Network
from orchestrator.relay.gateway.upstream import NO_NAME, describe, open_session
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import Uplink


@pytest.fixture
def certificate(directory: Path) -> Path:
    """A certificate of its own making for ``localhost``, with its key in the same file."""
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:prime256v1",
            "-nodes",
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            "subjectAltName=DNS:localhost",
            "-keyout",
            directory / "key.pem",
            "-out",
            directory / "cert.pem",
        ],
        check=True,
        capture_output=True,
    )
    (directory / "both.pem").write_text((directory / "key.pem").read_text() + (directory / "cert.pem").read_text())
    return directory / "cert.pem"


async def test_certificates_are_verified_and_further_authorities_can_be_trusted(certificate: Path) -> None:
    async def hello(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hello")

    app = web.Application()
    app.router.add_get("/", hello)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate.with_name("both.pem"))
    server = TestServer(app, host="localhost")
    await server.start_server(ssl=context)
    url = str(server.make_url("/"))
    try:
        async with open_session(Limits()) as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError) as caught:
                await session.get(url, ssl=Uplink().tls)
        sentence = describe(caught.value, url)
        assert sentence.startswith(
            f"the model provider at localhost:{server.port} could not be reached: its certificate was refused (self"
        )
        trusting = Uplink(Network(ca_file=certificate)).tls
        async with open_session(Limits()) as session:
            assert await (await session.get(url, ssl=trusting)).text() == "hello"
            with pytest.raises(aiohttp.ClientConnectorCertificateError) as caught:
                await session.get(url.replace("localhost", "127.0.0.1"), ssl=trusting)  # not the name that it is for
    finally:
        await server.close()


async def test_proxies_of_the_environment_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")

    async def hello(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(dict(request.headers), headers={"Set-Cookie": "a=1"})

    app = web.Application()
    app.router.add_get("/", hello)
    server = TestServer(app)
    await server.start_server()
    async with open_session(Limits()) as session:
        for _ in range(2):
            answer = await session.get(server.make_url("/"))
            assert await answer.json() == {
                "Host": f"127.0.0.1:{server.port}"
            }  # no cookie, and no header of aiohttp's own
    await server.close()


def test_reasons_are_plain_sentences() -> None:
    url = "https://user:secret@api.example.test/v1?key=secret"
    for error, reason in (
        (TimeoutError(), "it did not answer in time"),
        (aiohttp.ConnectionTimeoutError("x"), "connecting took too long"),
        (aiohttp.ServerDisconnectedError(), "it closed the connection without an answer"),
        (socket.gaierror(-2, "secret"), f"its name is not known; {NO_NAME}"),
        (OSError(113, "secret"), "no route to host"),
        (ssl.SSLError("secret"), "TLS failed"),
        (ValueError("secret"), "the connection broke off"),
    ):
        assert describe(error, url) == f"the model provider at api.example.test could not be reached: {reason}"
