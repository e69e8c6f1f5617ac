"""Subscriptions over HTTP: an authenticated user, the own account only."""

from __future__ import annotations

import pytest

from orchestrator.contract.types import AuthStatus
from tests.orchestrator.api.harness import Api

ONE = "/ui/plugins/external_agent/subscription/claude-code"
CALLS = (
    ("GET", "/v1/accounts"),
    ("GET", ONE),
    ("POST", ONE + "/connect"),
    ("POST", ONE + "/finished"),
    ("DELETE", ONE),
)


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_every_route_needs_an_authenticated_user(api: Api, method: str, path: str) -> None:
    assert (await api.call(method, path, who=None)).status == 401
    wrong = {"Authorization": "Bearer pm_wrong"}
    assert (await api.call(method, path, who=None, headers=wrong)).status == 401


@pytest.mark.parametrize(("method", "path"), CALLS)
async def test_a_user_reaches_the_own_account_only(api: Api, method: str, path: str) -> None:
    for who in ("alice", "svc"):
        answer = await api.call(method, path + "?user=bob", who=who)
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
    forged = await api.call(method, path, who="alice", headers={"X-Podmentor-User": "bob"})
    assert forged.status == 403
    assert not api.accounts.disconnects
    assert not api.accounts.verified
    assert (await api.call(method, path + "?user=alice", who="alice")).status == 200
    assert (await api.call(method, path + "?user=bob", who="root")).status == 200
    assert (await api.call(method, path, who="svc", headers={"X-Podmentor-User": "bob"})).status == 200


@pytest.mark.parametrize("name", ["..", "a%2Fb", ".ssh", "a" * 65, "%00"])
async def test_a_user_or_backend_that_is_no_plain_name_is_refused(api: Api, name: str) -> None:
    assert (await api.get(f"{ONE}?user={name}", who="root")).status == 400
    assert (await api.get(f"/ui/plugins/external_agent/subscription/{name}")).status == 404


async def test_c21_connecting_shows_a_command_and_asks_again_when_the_user_has_finished(api: Api) -> None:
    answer = await api.post(ONE + "/connect")
    assert answer.json["command"] == "podmentor login claude-code --user alice"
    assert answer.json["connected"] is False
    api.accounts.status = AuthStatus(installed=True, authenticated=False, error="not logged in")
    answer = await api.post(ONE + "/finished")
    assert answer.json == {"installed": True, "authenticated": False, "error": "not logged in"}
    assert api.accounts.verified == [("alice", "claude-code")]
    api.accounts.put("alice", connected=True, run_ids=("r1",))
    assert (await api.get("/v1/accounts")).json["accounts"] == [(await api.get(ONE)).json]
    assert (await api.get(ONE)).json["run_ids"] == ["r1"]
    assert (await api.get(ONE, who="bob")).json["connected"] is False


async def test_disconnecting_while_a_run_uses_the_account(api: Api) -> None:
    api.accounts.put("alice", connected=True, run_ids=("r1",))
    answer = await api.call("DELETE", ONE)
    assert (answer.status, answer.json["code"], answer.json["run_ids"]) == (409, "conflict", ["r1"])
    answer = await api.call("DELETE", ONE + "?mode=wait&timeout=0")
    assert (answer.status, answer.json["disconnecting"]) == (202, True)
    assert (await api.post(ONE + "/connect")).status == 409
    api.accounts.put("alice", run_ids=())
    answer = await api.call("DELETE", ONE + "?mode=cancel")
    assert (answer.status, answer.json["disconnecting"]) == (200, False)
    assert api.accounts.disconnects[-1] == ("alice", "claude-code", "cancel", 30.0)
    assert (await api.call("DELETE", ONE + "?mode=later")).status == 400


async def test_what_has_no_subscription_says_so(api: Api) -> None:
    base = "/ui/plugins/external_agent/subscription"
    assert (await api.get(f"{base}/gemini")).status == 400
    assert (await api.get(f"{base}/other")).json["code"] == "unknown_backend"
