"""Egress of tier 1: what is allowed gets through, what is not is reported and can be allowed, and a crash cuts nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from orchestrator.scripted import ScriptedProvider
from tests.fakes.connect_proxy import ConnectProxy, connect_proxy
from tests.orchestrator.relay.proxied import Target
from tests.podman.hostile import audited, results, script, watched
from tests.podman.live import LiveService, live_service

pytestmark = pytest.mark.podman


@dataclass
class Site:
    """A service whose runs may reach one server."""

    service: LiveService
    server: Target
    hosts: Path


@pytest.fixture
async def site(tmp_path: Path, provider: ScriptedProvider) -> AsyncIterator[Site]:
    hosts = tmp_path / "hosts"
    hosts.write_text("127.0.0.1 good.example later.example\n")
    async with watched() as server:
        allowed = [f"good.example:{server.port}", f"127.0.0.1:{server.port}"]
        async with live_service(
            tmp_path, provider.base_url, backend={"allowed_egress": allowed}, egress={"hosts_file": str(hosts)}
        ) as service:
            yield Site(service, server, hosts)


async def test_tools_reach_allowed_hosts_by_their_own_proxy_settings(site: Site) -> None:
    port = site.server.port
    run = await site.service.submit(
        f"scenario: dump\nRUN:\n"
        f"echo plain: $(curl -sS http://good.example:{port}/x)\n"
        f"echo tunnel: $(curl -sS --proxytunnel http://good.example:{port}/y)\n"
        f"echo python: $(python3 -c 'import urllib.request as u; print(u.urlopen(\"http://good.example:{port}/z\").read())')\n"
        f"echo denied: $(curl -sS http://evil.example/ | head -n 1)\n"
        f"curl -sS https://evil.example/ 2>&1; env | grep -i proxy | sort\n"
        f"python3 -m http.server 9999 >/dev/null 2>&1 & sleep 1; echo own: $(curl -sS http://localhost:9999/ | head -n 1)"
    )
    text = (await site.service.finished(run["run_id"]))["final_text"]
    assert "plain: the watched server" in text
    assert "tunnel: the watched server" in text
    assert "python: b'the watched server'" in text
    assert "denied: podmentor: evil.example:80 denied: the host is not on this run's allow-list" in text
    assert "response 403" in text
    assert "own: <!DOCTYPE HTML>" in text, "what is inside the container is reached directly"
    for name in ("HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "https_proxy", "http_proxy", "all_proxy"):
        assert f"{name}=http://127.0.0.1:8118" in text
    head = site.server.received[0].decode()
    assert head.startswith(f"GET /x HTTP/1.1\r\nHost: good.example:{port}\r\n")
    assert "proxy" not in head.lower()
    denied = [
        event["data"]
        for event in await site.service.all_events(run["run_id"])
        if event["data"].get("phase") == "egress_denied"
    ]
    assert [(data["host"], data["port"]) for data in denied] == [("evil.example", 80), ("evil.example", 443)]
    [allowed, *_] = audited(site.service.state, "egress.allowed", run["run_id"])
    assert (allowed["host"], allowed["port"]) == ("good.example", port)
    assert allowed["bytes_down"] > 0
    assert [line["host"] for line in audited(site.service.state, "egress.denied", run["run_id"])] == [
        "evil.example"
    ] * 2


async def test_a_network_with_a_proxy_is_left_through_it_and_its_password_is_nowhere(
    tmp_path: Path, provider: ScriptedProvider
) -> None:
    hosts, password = tmp_path / "hosts", "proxy-password-0123"
    hosts.write_text("")
    async with watched() as server, connect_proxy(ConnectProxy(credentials=f"pm:{password}")) as proxy:
        proxy.names = {"provider.example": urlsplit(provider.base_url).port or 0, "good.example": server.port}
        upstream = {"url": f"http://127.0.0.1:{proxy.port}", "username": "pm", "password": password}
        async with live_service(
            tmp_path,
            provider.base_url.replace("127.0.0.1", "provider.example"),
            backend={"allowed_egress": ["good.example"]},
            egress={"hosts_file": str(hosts), "upstream_proxy": upstream},
        ) as service:
            run = await service.submit(
                "scenario: dump\nRUN:\n"
                "echo plain: $(curl -sS http://good.example/x)\n"
                "echo tunnel: $(curl -sS --proxytunnel http://good.example/y)\n"
                "echo denied: $(curl -sS http://evil.example/ | head -n 1)"
            )
            text = (await service.finished(run["run_id"]))["final_text"]
            assert "plain: the watched server" in text
            assert "tunnel: the watched server" in text
            assert "denied: podmentor: evil.example:80 denied" in text
            shown = repr(await service.all_events(run["run_id"])) + text
            for file in (file for file in service.state.rglob("*") if file.is_file() and file.suffix != ".yaml"):
                assert password.encode() not in file.read_bytes(), file
        assert password not in shown
        assert {line.split("/v1")[0] for line in proxy.asked} == {
            f"POST http://provider.example:{proxy.names['provider.example']}",
            "CONNECT good.example:80 HTTP/1.1",
        }


KNOCK = """
import time
target = f"later.example:{port}"
out["first"] = connect(target)
for _ in range(600):
    answer = connect(target)
    if " 200 " in answer:
        break
    time.sleep(0.1)
out["last"] = answer
"""


async def test_a_host_that_was_refused_can_be_allowed_and_the_next_try_passes(site: Site) -> None:
    port = site.server.port
    run = await site.service.submit(script(KNOCK, port=port))
    event = await site.service.until(run["run_id"], "status", phase="egress_denied")
    assert (event["data"]["host"], event["data"]["port"]) == ("later.example", port)
    record = await site.service.call(
        "POST", f"/v1/runs/{run['run_id']}/egress", json={"host": "later.example", "port": port}
    )
    assert record["egress"][-1] == f"later.example:{port}"
    found = results(await site.service.finished(run["run_id"]))
    assert " 403 " in found["first"]
    assert " 200 " in found["last"]
    assert [line["host"] for line in audited(site.service.state, "egress.host_added", run["run_id"])] == [
        f"later.example:{port}"
    ]


HOLD = """
import time
with socket.create_connection(("127.0.0.1", 8118), 60) as sock:
    sock.sendall(f"CONNECT good.example:{port} HTTP/1.1\\r\\nHost: good.example:{port}\\r\\n\\r\\n".encode())
    out["head"] = sock.recv(4096).decode()
    connect("evil.example:443")
    while not os.path.exists("/home/agent/go-on"):
        time.sleep(0.1)
    sock.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
    sock.shutdown(socket.SHUT_WR)
    out["answer"] = b"".join(iter(lambda: sock.recv(4096), b"")).decode()
out["added"] = connect(f"later.example:{port}")
"""


async def test_killing_the_service_cuts_no_tunnel_and_loses_no_report(site: Site) -> None:
    service, port = site.service, site.server.port
    run = await service.submit(script(HOLD, port=port))
    await service.until(run["run_id"], "status", phase="egress_denied")
    await service.call("POST", f"/v1/runs/{run['run_id']}/egress", json={"host": "later.example", "port": port})
    await service.kill()
    await service.start()
    await asyncio.to_thread((service.state / "subagents" / run["subagent_id"] / "home" / "go-on").touch)
    found = results(await service.finished(run["run_id"]))
    assert found["head"].startswith("HTTP/1.1 200 ")
    assert found["answer"].endswith("the watched server")
    assert found["added"].startswith("HTTP/1.1 200 "), "what was allowed stays so over the restart"
    record = await service.call("GET", f"/v1/runs/{run['run_id']}")
    assert record["egress"][-1] == f"later.example:{port}"
    assert {line["host"] for line in audited(service.state, "egress.allowed", run["run_id"])} == {
        "good.example",
        "later.example",
    }


async def test_a_request_narrows_and_tier_0_has_no_proxy(site: Site) -> None:
    port = site.server.port
    ask = 'out["answer"] = connect(f"good.example:{port}")'
    run = await site.service.submit(script(ask, port=port), egress=[])
    assert run["egress"] == []
    assert " 403 " in results(await site.service.finished(run["run_id"]))["answer"]
    run = await site.service.submit("scenario: dump\nRUN: env | grep -ic proxy; ls /run/podmentor", tier=0)
    assert run["egress"] is None
    text = (await site.service.finished(run["run_id"]))["final_text"]
    assert "egress.sock" not in text
