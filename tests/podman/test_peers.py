"""The API behind a real nginx and under a real Prometheus, both configured as docs/ say."""

from __future__ import annotations

import asyncio
import json
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from aiohttp.test_utils import unused_port

from orchestrator.scripted import ScriptedProvider
from tests.orchestrator.relay.private_ca import private_ca
from tests.podman import peers
from tests.podman.live import REAL_KEY, LiveService, live_service
from tests.podman.test_watching import command

pytestmark = pytest.mark.podman

IMPATIENCE = 4
"""Seconds of silence after which an impatient nginx gives up."""
NAME = "agents.example.org"
Event = dict[str, Any]


@asynccontextmanager
async def nginx(root: Path, *, upstream: int) -> AsyncIterator[tuple[str, str]]:
    """Addresses of an nginx with the documented configuration, but for the ports; the second one is impatient."""
    text = peers.snippet("operators.md", "nginx", having="proxy_pass")
    ports = unused_port(), unused_port()
    patient, impatient = (
        peers.changed(text, {"listen 443 ": f"listen 127.0.0.1:{port} ", "127.0.0.1:8765": f"127.0.0.1:{upstream}"})
        for port in ports
    )
    site = root / "site"
    site.write_text(
        patient + peers.changed(impatient, {"proxy_read_timeout 3660s": f"proxy_read_timeout {IMPATIENCE}s"})
    )
    certificates = {
        inside: root / Path(inside).name for inside in re.findall(r"ssl_certificate(?:_key)? +(\S+);", text)
    }
    for file in certificates.values():
        file.write_bytes((root / "server.pem").read_bytes())  # it has the key as well
    argv = ["nginx", "-g", "daemon off; error_log /dev/stderr notice;"]
    files = {"/etc/nginx/sites-available/default": site, **certificates}
    async with peers.server(argv, ready="start worker process", files=files):
        yield f"https://127.0.0.1:{ports[0]}", f"https://127.0.0.1:{ports[1]}"


async def read(response: aiohttp.ClientResponse, into: list[Event], *, until: Callable[[Event], bool]) -> None:
    """Append the events of a stream of either form, to the first one that ``until`` holds for."""
    assert response.status == 200
    async for line in response.content:
        if (data := line.removeprefix(b"data: ")).startswith(b"{"):
            into.append(json.loads(data))
            if until(into[-1]):
                return
    raise AssertionError(f"the stream ended behind {into[-1:]}")


def is_text(event: Event) -> bool:
    return bool(event["kind"] == "message_delta")


def is_last(event: Event) -> bool:
    return event["kind"] in {"completed", "error"}


def outlasts(event: Event) -> Callable[[Event], bool]:
    """Whether an event was sent so long after this one that an impatient nginx would have given up."""

    def seconds(one: Event) -> float:
        return datetime.fromisoformat(one["ts"]).timestamp()

    return lambda later: seconds(later) - seconds(event) > IMPATIENCE + 1


def journalled(events: list[Event]) -> list[Event]:
    """The events without the heartbeats."""
    return [event for event in events if event["seq"] is not None]


async def heartbeats(service: LiveService, seconds: float) -> None:
    """Start the service anew with a heartbeat that often."""
    config = yaml.safe_load(service.config.read_text())
    config["server"]["heartbeat_seconds"] = seconds
    service.config.write_text(yaml.safe_dump(config))
    await service.terminate()
    await service.start()


async def test_event_streams_pass_nginx_as_they_come(tmp_path: Path) -> None:
    port, ca = unused_port(), private_ca(tmp_path, NAME)
    async with (
        ScriptedProvider(api_key=REAL_KEY, scenario="gate") as provider,
        live_service(tmp_path, provider.base_url, server={"port": port, "heartbeat_seconds": 600}) as service,
        nginx(tmp_path, upstream=port) as (patient, impatient),
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=str(ca.file))),
            headers={"Authorization": f"Bearer {(service.state / 'local-token').read_text().strip()}"},
            timeout=aiohttp.ClientTimeout(total=100),
        ) as client,
    ):
        body = {"backend": "claude-code", "query": "Go."}
        async with client.post(f"{patient}/v1/runs", json=body, server_hostname=NAME) as response:
            assert (response.status, response.headers["Server"].partition("/")[0]) == (202, "nginx")
            run_id = (await response.json())["run_id"]

        def stream(proxy: str, form: str, after: int = 0) -> Any:
            path = f"{proxy}/v1/runs/{run_id}/events?format={form}"
            return client.get(path, headers={"Last-Event-ID": str(after)}, server_hostname=NAME)

        sse: list[Event] = []
        ndjson: list[Event] = []
        async with stream(patient, "sse") as records, stream(patient, "ndjson") as lines:
            # the gate is closed and there are no heartbeats: nothing follows that would push it out of a buffer
            await asyncio.gather(read(records, sse, until=is_text), read(lines, ndjson, until=is_text))
        assert sse == ndjson

        async with stream(impatient, "sse", after=sse[-1]["seq"]) as records:
            with pytest.raises(aiohttp.ClientPayloadError):  # cut in the middle
                await read(records, sse, until=is_last)
        await heartbeats(service, 0.5)
        async with (
            stream(impatient, "sse", sse[-1]["seq"]) as records,
            stream(impatient, "ndjson", ndjson[-1]["seq"]) as lines,
        ):
            last = sse[-1]
            await asyncio.gather(read(records, sse, until=outlasts(last)), read(lines, ndjson, until=outlasts(last)))
            await provider.release("gate")
            await asyncio.gather(read(records, sse, until=is_last), read(lines, ndjson, until=is_last))
            assert await lines.content.read() == b"", "the end of the run is the end of the stream"
        assert journalled(sse) == journalled(ndjson) == await service.all_events(run_id)
        assert [event["seq"] for event in journalled(sse)] == list(range(1, len(journalled(sse)) + 1))
        assert sse[-1]["kind"] == "completed"


async def test_prometheus_scrapes_the_metrics(tmp_path: Path) -> None:
    port, own = unused_port(), unused_port()
    token, config, exposition = tmp_path / "token", tmp_path / "prometheus.yml", tmp_path / "metrics"
    text = peers.snippet("observability.md", "yaml", having="scrape_configs")
    documented = peers.changed(text, {"127.0.0.1:8765": f"127.0.0.1:{port}"})
    [credentials] = re.findall(r"credentials_file: (\S+)", text)
    stranger = f'  - job_name: stranger\n    static_configs:\n      - targets: ["127.0.0.1:{port}"]\n'
    config.write_text(f"global: {{scrape_interval: 1s}}\n{documented}{stranger}")
    async with (
        ScriptedProvider(api_key=REAL_KEY) as provider,
        live_service(tmp_path, provider.base_url, server={"port": port}) as service,
    ):
        token.write_text(await command(service, "token", "create", "prometheus", "--role", "metrics"))
        run = await service.submit("Say hello.")
        assert (await service.finished(run["run_id"]))["outcome"] == "completed"
        argv = [
            "prometheus",
            "--config.file=/etc/prometheus/prometheus.yml",
            "--storage.tsdb.path=/tmp/prometheus",
            f"--web.listen-address=127.0.0.1:{own}",
        ]
        headers = {"Authorization": f"Bearer {token.read_text().strip()}"}
        async with (
            aiohttp.ClientSession() as client,
            client.get(f"http://127.0.0.1:{port}/metrics", headers=headers) as response,
        ):
            exposition.write_text(await response.text())
        files = {"/etc/prometheus/prometheus.yml": config, credentials: token, "/srv/metrics": exposition}
        async with (
            peers.server(argv, ready="Server is ready to receive web requests", files=files) as server,
            aiohttp.ClientSession(f"http://127.0.0.1:{own}", timeout=aiohttp.ClientTimeout(total=100)) as client,
        ):
            targets = await scraped(client)
            assert targets["podmentor"]["health"] == "up", targets
            assert targets["stranger"]["health"] == "down"
            assert "401" in targets["stranger"]["lastError"], "without a token there are no numbers"
            ended = 'podmentor_runs_ended_total{job="podmentor", outcome="completed"}'
            assert [row["value"][1] for row in await query(client, ended)] == ["1"]
            for expression in alerts():
                assert await query(client, expression) == [], f"nothing is wrong, but {expression}"
            checked = "promtool check config /etc/prometheus/prometheus.yml && promtool check metrics </srv/metrics"
            await asyncio.to_thread(peers.output, server, checked)


async def scraped(client: aiohttp.ClientSession) -> dict[str, Any]:
    """The targets by job, when each has been scraped."""
    async with asyncio.timeout(60):
        while True:
            async with client.get("/api/v1/targets?state=active") as response:
                targets = (await response.json())["data"]["activeTargets"]
            if targets and all(target["health"] != "unknown" for target in targets):
                return {target["labels"]["job"]: target for target in targets}
            await asyncio.sleep(0.1)


async def query(client: aiohttp.ClientSession, expression: str) -> list[dict[str, Any]]:
    """The rows that an expression gives now."""
    async with client.get("/api/v1/query", params={"query": expression}) as response:
        answer = await response.json()
    assert answer["status"] == "success", answer
    rows: list[dict[str, Any]] = answer["data"]["result"]
    return rows


def alerts() -> list[str]:
    """The documented expressions to be woken for."""
    page = (peers.DOCS / "observability.md").read_text()
    found = re.findall(r"^\| `([^`|]+)` \|", page.partition("| expression |")[2].partition("\n\n")[0], re.MULTILINE)
    assert found
    return found
