"""C18: /v1/keys and the same below /ui: written, never read back; everybody has their own only."""

import asyncio
import json
import logging
import os
import sqlite3
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.orchestrator.api.conftest import Start
from tests.orchestrator.api.harness import Api
from tests.orchestrator.vault.kit import SECRET, raw_bytes

ROOT = Path(__file__).parents[4]
BASES = ["/v1/keys", "/ui/plugins/external_agent/byo-keys"]
AS_ALICE = {"X-Podmentor-User": "alice"}


@pytest.mark.parametrize("base", BASES)
async def test_set_look_replace_remove(api: Api, base: str) -> None:
    assert (await api.get(base)).json == {"keys": []}
    made = await api.call("PUT", f"{base}/codex", body={"api_key": f" {SECRET}\n"})
    assert (made.status, made.json["user_id"], made.json["backend"]) == (200, "alice", "codex")
    assert len(made.json["fingerprint"]) == 8
    assert (await api.get(base)).json == {"keys": [made.json]}
    assert (await api.get(f"{base}/codex")).json == made.json
    other = await api.call("PUT", f"{base}/codex", body={"api_key": SECRET + "2"})
    assert other.json["fingerprint"] != made.json["fingerprint"]
    assert other.json["created_at"] == made.json["created_at"]
    assert (await api.call("DELETE", f"{base}/codex")).status == 204
    assert (await api.call("DELETE", f"{base}/codex")).status == 404
    assert (await api.get(f"{base}/codex")).status == 404


async def test_the_two_bases_show_the_same(api: Api) -> None:
    await api.call("PUT", f"{BASES[0]}/codex", body={"api_key": SECRET})
    assert (await api.get(BASES[1])).json == (await api.get(BASES[0])).json


async def test_nobody_sees_the_value_anywhere(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    answers = [
        await api.call("PUT", "/v1/keys/codex", body={"api_key": SECRET}),
        await api.get("/v1/keys"),
        await api.get("/v1/keys/codex"),
        await api.get("/v1/auth/explain?backend=codex"),
        await api.get("/v1/keys?user=alice", who="root"),
        # the key in a wrong place, and wrong keys: an error must not quote them
        await api.call("PUT", "/v1/keys/codex", body={"key": SECRET}),
        await api.call("PUT", "/v1/keys/codex", body={SECRET: "x"}),
        await api.call("PUT", "/v1/keys/codex", body={"api_key": [SECRET]}),
        await api.call("PUT", "/v1/keys/codex", body={"api_key": f"{SECRET} {SECRET}"}),
        await api.call("PUT", "/v1/keys/codex", body={"api_key": SECRET * 200}),
        await api.call("PUT", "/v1/keys/codex", body={"api_key": SECRET * 400}),
        await api.call("PUT", "/v1/keys/codex", raw=f'{{"api_key": "{SECRET}'.encode()),
        await api.call("PUT", "/v1/keys/nothing", body={"api_key": SECRET}),
        await api.call("PUT", "/v1/keys/codex?user=bob", body={"api_key": SECRET}),
    ]
    assert [answer.status for answer in answers] == [200, 200, 200, 200, 200, *[400] * 7, 404, 400]
    for answer in answers:
        if SECRET.encode() in answer.body:  # a member's *name* is repeated, which is no place for a key
            assert answer.json["errors"][1]["field"] == SECRET
    assert SECRET not in caplog.text
    assert SECRET.encode() not in raw_bytes(api.directory)
    assert SECRET not in json.dumps(api.audit.events)


async def test_users_are_kept_apart(api: Api) -> None:
    await api.call("PUT", "/v1/keys/codex", body={"api_key": SECRET})
    assert (await api.get("/v1/keys", who="bob")).json == {"keys": []}
    assert (await api.get("/v1/keys/codex", who="bob")).status == 404
    assert (await api.call("DELETE", "/v1/keys/codex", who="bob")).status == 404
    for path in ("/v1/keys?user=alice", "/v1/keys/codex?user=alice", "/v1/auth/explain?backend=codex&user=alice"):
        for who in ("bob", "svc"):
            assert (await api.get(path, who=who)).status == 403
    for method, path in (("GET", "/v1/keys"), ("PUT", "/v1/keys/codex"), ("DELETE", "/v1/keys/codex")):
        body = {"api_key": SECRET} if method == "PUT" else None
        for who in ("bob", "root", "local"):
            assert (await api.call(method, path, who=who, body=body, headers=AS_ALICE)).status == 403
        assert (await api.call(method, path, who=None, body=body)).status == 401
    assert api.vault is not None
    assert await api.vault.get("alice", "external_agent/codex/api_key") == SECRET


async def test_a_service_acts_for_the_user_it_names(api: Api) -> None:
    made = await api.call("PUT", "/v1/keys/codex", who="svc", body={"api_key": SECRET}, headers=AS_ALICE)
    assert made.json["user_id"] == "alice"
    assert (await api.get("/v1/keys")).json == {"keys": [made.json]}
    assert (await api.get("/v1/keys", who="svc", headers=AS_ALICE)).json == {"keys": [made.json]}
    assert (await api.get("/v1/keys", who="svc")).json == {"keys": []}
    assert api.audit.events == [{"event": "key.set", "actor": "service:svc", "user_id": "alice", "backend": "codex"}]


async def test_an_admin_looks_and_removes_and_sets_only_its_own(api: Api) -> None:
    made = await api.call("PUT", "/v1/keys/codex", body={"api_key": SECRET})
    assert (await api.get("/v1/keys", who="root")).json == {"keys": []}
    assert (await api.get("/v1/keys?user=alice", who="root")).json == {"keys": [made.json]}
    own = await api.call("PUT", "/v1/keys/codex", who="root", body={"api_key": SECRET})
    assert own.json["user_id"] == "root"
    assert own.json["fingerprint"] != made.json["fingerprint"], "the same key of another user does not look the same"
    assert (await api.call("PUT", "/v1/keys/codex?user=alice", who="root", body={"api_key": SECRET})).status == 400
    assert (await api.call("DELETE", "/v1/keys/codex?user=alice", who="root")).status == 204
    assert (await api.get("/v1/keys")).json == {"keys": []}


@pytest.mark.parametrize(
    "backend", ["..", "%2e%2e", "..%2f..%2fetc", "codex%00", "%5fconfig", "a%2fb", "x" * 65, "codex%0aX", "c%20d", "*"]
)
async def test_a_backend_that_is_no_name_does_not_exist(api: Api, backend: str) -> None:
    for method in ("GET", "PUT", "DELETE"):
        body = {"api_key": SECRET} if method == "PUT" else None
        async with api.session.request(
            method, f"{api.url}/v1/keys/{backend}", json=body, headers=api.headers("alice")
        ) as response:
            assert response.status in {400, 404, 405}
    assert api.vault is not None
    assert await api.vault.list_secrets() == []


@pytest.mark.parametrize("user", ["_config", "..", "a/b", "", "x" * 65])
async def test_nobody_gets_at_the_secrets_of_the_configuration(api: Api, user: str) -> None:
    assert api.vault is not None
    await api.vault.put("_config", "config/x", SECRET)
    for path in (f"/v1/keys?user={user}", f"/v1/keys/codex?user={user}"):
        assert (await api.get(path, who="root")).status == 400
    headers = {"X-Podmentor-User": user}
    assert (await api.get("/v1/keys", who="svc", headers=headers)).status == 400
    assert (await api.get("/v1/keys", who="root")).json == {"keys": []}


async def test_c18_without_a_vault_503_and_the_technical_user_works(start: Start) -> None:
    api = await start(vault=False)
    for base in BASES:
        for answer in (
            await api.get(base),
            await api.get(f"{base}/codex"),
            await api.call("DELETE", f"{base}/codex"),
            await api.call("PUT", f"{base}/codex", body={"api_key": SECRET}),
        ):
            assert (answer.status, answer.json["code"]) == (503, "vault_unavailable")
            assert SECRET.encode() not in answer.body
    explained = (await api.get("/v1/auth/explain?backend=claude-code")).json
    assert {one["source"]: one["chosen"] for one in explained["sources"]} == {"byo_key": False, "technical_user": True}


def chosen(answer: Any) -> str | None:
    return next((one["source"] for one in answer.json["sources"] if one["chosen"]), None)


async def test_c19_explain_says_which_link_and_why(api: Api) -> None:
    before = await api.get("/v1/auth/explain?backend=claude-code")
    assert chosen(before) == "technical_user"
    await api.call("PUT", "/v1/keys/claude-code", body={"api_key": SECRET})
    assert chosen(await api.get("/v1/auth/explain?backend=claude-code")) == "byo_key"
    assert chosen(await api.get("/v1/auth/explain?backend=claude-code", who="bob")) == "technical_user"
    assert chosen(await api.get("/v1/auth/explain?backend=claude-code&user=alice", who="root")) == "byo_key"
    assert chosen(await api.get("/v1/auth/explain?backend=codex")) is None
    assert (await api.get("/v1/auth/explain?backend=nothing")).status == 404
    assert (await api.get("/v1/auth/explain")).status == 400
    assert (await api.get("/v1/auth/explain?backend=codex", who=None)).status == 401


async def test_a_broken_key_is_told_and_can_be_replaced(api: Api) -> None:
    await api.call("PUT", "/v1/keys/claude-code", body={"api_key": SECRET})
    await api.call("PUT", "/v1/keys/claude-code", who="bob", body={"api_key": SECRET})
    connection = sqlite3.connect(api.directory / "state" / "podmentor.db")
    with connection:
        connection.execute("UPDATE secrets SET sealed = substr(sealed, 1, 30) WHERE user_id = 'alice'")
    connection.close()
    explained = await api.get("/v1/auth/explain?backend=claude-code")
    assert chosen(explained) is None
    assert "cannot be read" in explained.json["sources"][0]["reason"]
    assert chosen(await api.get("/v1/auth/explain?backend=claude-code", who="bob")) == "byo_key"
    assert (await api.get("/v1/keys/claude-code")).status == 200
    assert (await api.call("PUT", "/v1/keys/claude-code", body={"api_key": SECRET})).status == 200
    assert chosen(await api.get("/v1/auth/explain?backend=claude-code")) == "byo_key"


async def test_the_command_does_the_same_over_the_network(api: Api) -> None:
    async def podmentor(who: str, *args: str, stdin: str = "", code: int = 0) -> Any:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator",
            "--url",
            api.url,
            *args,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PODMENTOR_TOKEN": api.token[who], "PYTHONPATH": str(ROOT)},
        )
        out, errors = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert process.returncode == code, (out, errors)
        return json.loads(out) if "--json" in args else None

    made = await podmentor("svc", "keys", "set", "codex", "--user", "alice", "--json", stdin=SECRET)
    assert made["user_id"] == "alice"
    assert (await podmentor("alice", "keys", "list", "--json"))["keys"] == [made]
    explained = await podmentor("svc", "auth", "explain", "codex", "--user", "alice", "--json")
    assert explained["sources"][0]["chosen"] is True
    await podmentor("bob", "auth", "explain", "codex", code=4)
    await podmentor("bob", "keys", "list", "--user", "alice", code=4)
    await podmentor("bob", "keys", "delete", "codex", code=5)
    await podmentor("alice", "keys", "delete", "codex")
    assert (await api.get("/v1/keys")).json == {"keys": []}
