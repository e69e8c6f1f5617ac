"""What runs reach when nobody has said anything: with a key the gateway alone, with a subscription its provider's hosts.

No real host is asked: the proxy looks names up in a file, in which they lead to this machine.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from aiohttp import web

from orchestrator.scripted import ScriptedProvider
from tests.podman.hostile import results, script
from tests.podman.live import LiveService, live_service

pytestmark = pytest.mark.podman

HOSTS = (
    "127.0.0.1 api.anthropic.com statsig.anthropic.com platform.claude.com api.openai.com auth.openai.com chatgpt.com\n"
)
SUBSCRIPTION = {"mode": "byo_subscription", "api_key": None}
LONG_AGO, FAR_AWAY = 1_700_000_000, 4_102_444_800


@asynccontextmanager
async def live(root: Path, base_url: str, name: str, backend: dict[str, Any]) -> AsyncIterator[LiveService]:
    hosts = root / "hosts"
    hosts.write_text(f"{HOSTS}127.0.0.1 auth.example provider.example\n")
    async with live_service(
        root, base_url, backend_name=name, backend=backend, egress={"hosts_file": str(hosts)}
    ) as service:
        yield service


def denied(events: list[dict[str, Any]]) -> dict[str, str]:
    """Host and reason."""
    data = [event["data"] for event in events if event["data"].get("phase") == "egress_denied"]
    return {one["host"]: one["reason"] for one in data}


async def test_with_a_key_the_provider_is_no_way_out_for_data(tmp_path: Path, provider: ScriptedProvider) -> None:
    async with live(tmp_path, provider.base_url, "claude-code", {}) as service:
        ask = 'out["reported"] = [connect(f"{host}:443") for host in ("api.anthropic.com", "statsig.anthropic.com")]'
        run = await service.submit(script(ask))
        assert run["egress"] == []
        reported = results(await service.finished(run["run_id"]))["reported"]
        assert all(" 403 " in line and "not on this run's allow-list" in line for line in reported), reported
        assert set(denied(await service.all_events(run["run_id"]))) == {"api.anthropic.com", "statsig.anthropic.com"}


def store_claude(home: Path) -> None:
    login = {
        "accessToken": "sk-ant-oat01-old",
        "refreshToken": "made-up-refresh",
        "expiresAt": LONG_AGO * 1000,
        "scopes": ["user:inference", "user:profile"],
        "subscriptionType": "max",
    }
    (home / ".claude").mkdir(parents=True)
    (home / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))


def token(expires: int) -> str:
    """As OpenAI's login gives them; nobody has signed it."""
    account = {"chatgpt_plan_type": "plus", "chatgpt_account_id": "made-up", "chatgpt_user_id": "made-up"}
    claims = {
        "exp": expires,
        "jti": secrets.token_hex(8),
        "email": "a@b.example",
        "https://api.openai.com/auth": account,
    }
    parts = ({"alg": "none"}, claims)
    return ".".join([*(base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts), "x"])


def store_codex(home: Path) -> None:
    old = token(LONG_AGO)
    tokens = {"id_token": old, "access_token": old, "refresh_token": "made-up-refresh", "account_id": "made-up"}
    (home / ".codex").mkdir(parents=True)
    (home / ".codex" / "auth.json").write_text(
        json.dumps({"auth_mode": "chatgpt", "tokens": tokens, "last_refresh": "2025-01-01T00:00:00Z"})
    )


@pytest.mark.parametrize(
    ("name", "store", "renewed_at"),
    [("claude-code", store_claude, "platform.claude.com"), ("codex", store_codex, "auth.openai.com")],
)
async def test_an_expired_login_is_renewed_at_a_host_that_is_open_to_it(
    tmp_path: Path, provider: ScriptedProvider, name: str, store: Any, renewed_at: str
) -> None:
    backend = SUBSCRIPTION if name == "claude-code" else {**SUBSCRIPTION, "base_url": None}
    async with live(tmp_path, provider.base_url, name, backend) as service:
        store(service.state / "external_agent" / "homes" / "local" / name)
        run = await service.submit("Please greet me.")
        await service.until(run["run_id"], "status", phase="egress_denied", host=renewed_at)
        await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
        record = await service.finished(run["run_id"])
        assert renewed_at in record["egress"]
        # It is on the list; only here does its name lead to a place where nothing may go.
        found = denied(await service.all_events(run["run_id"]))
        assert set(found.values()) == {"its name leads to a loopback address"}, found


@asynccontextmanager
async def auth_server(fresh: str) -> AsyncIterator[tuple[int, list[dict[str, Any]]]]:
    """Renews every login; its port, and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def renew(request: web.Request) -> web.Response:
        asked.append(await request.json())
        return web.json_response({"id_token": fresh, "access_token": fresh, "refresh_token": "the-next-refresh"})

    app = web.Application()
    app.router.add_post("/oauth/token", renew)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1], asked
    finally:
        await runner.cleanup()


async def test_codex_renews_its_login_and_works_through_the_proxy_alone(tmp_path: Path) -> None:
    fresh = token(FAR_AWAY)
    async with auth_server(fresh) as (auth_port, asked), ScriptedProvider(scenario="text", api_key=fresh) as provider:
        port = urlsplit(provider.base_url).port
        hosts = [f"auth.example:{auth_port}", f"provider.example:{port}"]
        backend = {
            **SUBSCRIPTION,
            "base_url": None,
            "allowed_egress": [*hosts, f"127.0.0.1:{auth_port}", f"127.0.0.1:{port}"],
            "extra_env": {"CODEX_REFRESH_TOKEN_URL_OVERRIDE": f"http://auth.example:{auth_port}/oauth/token"},
        }
        async with live(tmp_path, provider.base_url, "codex", backend) as service:
            home = service.state / "external_agent" / "homes" / "local" / "codex"
            store_codex(home)
            (home / ".codex" / "config.toml").write_text(
                f'model_provider = "test"\nchatgpt_base_url = "http://provider.example:{port}/backend-api/"\n'
                f'[model_providers.test]\nname = "test"\nbase_url = "http://provider.example:{port}/v1"\n'
                'wire_api = "responses"\nrequires_openai_auth = true\nsupports_websockets = false\n'
            )
            record = await service.finished((await service.submit("Please greet me."))["run_id"])
            assert record["outcome"] == "completed", record["error"]
            assert (record["tier"], record["credential_source"]) == (1, "byo_subscription")
            assert [one["refresh_token"] for one in asked] == ["made-up-refresh"]
            answered = [request for request in provider.requests if request.path == "/v1/responses"]
            assert [request.headers["authorization"] for request in answered] == [f"Bearer {fresh}"]
            kept = json.loads((home / ".codex" / "auth.json").read_text())["tokens"]
            assert (kept["access_token"], kept["refresh_token"]) == (fresh, "the-next-refresh")
            assert denied(await service.all_events(record["run_id"])) == {}
