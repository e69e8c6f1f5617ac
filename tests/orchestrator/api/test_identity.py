"""Who may do what, for whom."""

from urllib.parse import quote

import pytest

from orchestrator.api.identity import Identity, acting_for, is_plain_name, is_user_id
from orchestrator.errors import ForbiddenError, InvalidRequestError
from tests.fakes.run_service import done
from tests.orchestrator.api.harness import SPEC, Api

RUN = {"backend": "claude-code", "query": "x"}
HEADER = "X-Podmentor-User"


def test_only_plain_names_are_names() -> None:
    assert all(map(is_plain_name, ["a", "Alice-1", "a.b_c", "9", "x" * 64]))
    assert not any(map(is_plain_name, ["", ".", "..", "-a", "a/b", "a\n", "a b", "ä", "x" * 65, "a\0"]))


def test_users_may_also_have_the_names_of_their_mailboxes() -> None:
    assert all(map(is_user_id, ["alice", "alice@example.org", "Alice.B+tag@sub.example.org", "9", "x" * 64]))
    for bad in (
        "",
        ".",
        "..",
        "@",
        "+a",
        "-a",
        "a/b@c",
        "../a@b",
        "a@b\n",
        "a b@c",
        "\u00e4@b",
        "x" * 65,
        "a\0@b",
        "a:b",
    ):
        assert not is_user_id(bad), bad


async def test_a_service_acts_for_an_email_address(api: Api) -> None:
    user = "alice.b+tag@example.org"
    headers = {HEADER: user}
    run = (await api.post("/v1/runs", RUN, who="svc", headers=headers)).json
    assert run["user_id"] == user
    stored = await api.call("PUT", "/v1/keys/codex", who="svc", body={"api_key": "sk-of-alice-12345"}, headers=headers)
    assert (stored.status, stored.json["user_id"]) == (200, user)
    listed = await api.get(f"/v1/keys?user={quote(user)}", who="root")
    assert [key["user_id"] for key in listed.json["keys"]] == [user]
    assert (await api.get(f"/v1/accounts?user={quote(user)}", who="root")).status == 200
    refused = await api.get("/v1/keys?user=a%2Fb", who="root")
    assert (refused.status, refused.json["errors"][0]["field"]) == (400, "user")
    assert "e-mail" in refused.json["detail"]


def test_a_service_acts_for_the_user_it_names() -> None:
    service = Identity(user_id="svc", role="service")
    assert acting_for(service, None).scope == "svc"
    assert acting_for(service, "carol").scope == "carol"
    for name in ("", "a/b", "..", "local"):
        with pytest.raises(InvalidRequestError):
            acting_for(service, name)


@pytest.mark.parametrize("role", ["user", "admin"])
def test_nobody_else_does(role: str) -> None:
    with pytest.raises(ForbiddenError):
        acting_for(Identity(user_id="alice", role=role), "alice")  # type: ignore[arg-type]


async def test_each_run_belongs_to_who_asked(api: Api) -> None:
    for who, owner in (("alice", "alice"), ("svc", "svc"), ("root", "root"), ("local", "local")):
        assert (await api.post("/v1/runs", RUN, who=who)).json["user_id"] == owner
    assert (await api.post("/v1/runs", RUN, who="svc", headers={HEADER: "alice"})).json["user_id"] == "alice"
    seen = (await api.get("/v1/runs", who="svc", headers={HEADER: "alice"})).json["runs"]
    assert {run["user_id"] for run in seen} == {"alice"}
    assert len(seen) == 2


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/tools/claude_code"])
async def test_only_admins_and_the_local_owner_may_widen_what_is_configured(api: Api, path: str) -> None:
    api.runs.on_submit = lambda record: api.runs.emit(record.run_id, done())
    body = RUN if path == "/v1/runs" else {"query": "x"}
    for who, privileged in (("alice", False), ("svc", False), ("root", True), ("local", True)):
        await api.post(path, body, who=who)
        assert api.runs.requests[-1].privileged is privileged
    await api.post(path, body, who="svc", headers={HEADER: "root"})
    assert api.runs.requests[-1].privileged is False


@pytest.mark.parametrize("who", ["alice", "root", "local"])
async def test_a_forged_header_is_403(api: Api, who: str) -> None:
    for name in ("bob", who):
        answer = await api.post("/v1/runs", RUN, who=who, headers={HEADER: name})
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert api.runs.requests == []


@pytest.mark.parametrize("name", ["a/b", "..", "a b", "local", "x" * 65])
async def test_a_service_must_name_a_plain_user(api: Api, name: str) -> None:
    answer = await api.post("/v1/runs", RUN, who="svc", headers={HEADER: name})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "Basic YTpi",
        "Bearer x",
        "Bearer pmt_000000000000_" + "A" * 43,
        "Bearer pml_" + "A" * 43,
        "Bearer " + "x" * 600,
        "Bearer pmt_\u00e4",
        "Bearer pml_\u00e4",
    ],
)
async def test_without_a_good_token_every_private_route_is_401(api: Api, header: str | None) -> None:
    extra = {} if header is None else {"Authorization": header}
    for path, operations in SPEC["paths"].items():
        for method, operation in operations.items():
            if operation.get("security") == []:
                continue
            answer = await api.call(method.upper(), path.replace("{", "").replace("}", ""), who=None, headers=extra)
            assert (answer.status, answer.json["code"]) == (401, "unauthorized")
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")


async def test_the_scheme_is_not_case_sensitive(api: Api) -> None:
    answer = await api.get("/v1/runs", who=None, headers={"Authorization": f"bearer  {api.token['alice']}"})
    assert answer.status == 200


async def test_a_revoked_token_is_refused_at_once(api: Api) -> None:
    assert (await api.get("/v1/runs")).status == 200
    await api.tokens.revoke(api.token["alice"].split("_")[1])
    assert (await api.get("/v1/runs")).status == 401
    assert (await api.get("/v1/runs", who="bob")).status == 200
