"""POST /v1/runs in its three forms, and looking at runs."""

import asyncio
import gzip
import logging
from typing import Any

import aiohttp
import pytest

from orchestrator.api.routes import runs as run_routes
from orchestrator.contract.runs import LimitsRequest, RunRecord
from orchestrator.errors import QueueFullError, ShuttingDownError
from orchestrator.events import Error, MessageDelta
from tests.fakes.run_service import done
from tests.orchestrator.api.harness import Api, frames

RUN = {"backend": "claude-code", "query": "fix the test"}


async def test_a_run_is_accepted_at_once_and_says_where_it_is(api: Api) -> None:
    answer = await api.post("/v1/runs", RUN)
    assert answer.status == 202
    assert answer.headers["Location"] == "/v1/runs/run-1"
    assert answer.json["run_id"] == "run-1"
    assert answer.json["subagent_id"] == "sub-1"
    assert answer.json["limits"]["memory_max_bytes"] == 2 * 1024**3
    assert answer.json["links"] == {
        "self": "/v1/runs/run-1",
        "events": "/v1/runs/run-1/events",
        "cancel": "/v1/runs/run-1/cancel",
    }
    assert (await api.get("/v1/runs/run-1")).json == answer.json


async def test_every_member_of_the_body_reaches_the_service(api: Api) -> None:
    first = (await api.post("/v1/runs", RUN)).json
    body = {
        **RUN,
        "subagent_id": first["subagent_id"],
        "repo": "site",
        "tier": 1,
        "workspace": "readonly",
        "limits": {
            "wall_clock_seconds": 20,
            "cpus": 0.5,
            "pids_max": 64,
            "memory_max_bytes": 1024**2,
            "idle_seconds": 5.5,
            "output_max_bytes": 4096,
        },
        "metadata": {"ticket": [1, {"a": None}]},
    }
    assert (await api.post("/v1/runs", body, headers={"Idempotency-Key": "k 1"})).status == 202
    request = api.runs.requests[-1]
    assert (request.backend, request.query, request.user_id) == ("claude-code", "fix the test", "alice")
    assert (request.subagent_id, request.repo, request.repo_path) == ("sub-1", "site", None)
    assert (request.tier, request.workspace, request.idempotency_key) == (1, "readonly", "k 1")
    assert request.metadata == {"ticket": [1, {"a": None}]}
    assert request.limits == LimitsRequest(
        memory_max_bytes=1024**2, wall_clock_seconds=20, idle_seconds=5.5, output_max_bytes=4096, pids_max=64, cpus=0.5
    )


async def test_what_is_not_given_is_left_to_the_configuration(api: Api) -> None:
    await api.post("/v1/runs", RUN)
    request = api.runs.requests[-1]
    assert (request.tier, request.workspace, request.repo, request.limits) == (None, None, None, LimitsRequest())
    assert request.idempotency_key is None


async def test_accept_event_stream_streams_at_once(api: Api) -> None:
    def play(record: RunRecord) -> None:
        api.runs.emit(record.run_id, MessageDelta(text="hi", message_id="m"), done())

    api.runs.on_submit = play
    headers = api.headers("alice", {"Accept": "text/event-stream"})
    async with api.session.post(f"{api.url}/v1/runs", json=RUN, headers=headers) as response:
        assert response.status == 200
        assert response.content_type == "text/event-stream"
        assert response.headers["Location"] == "/v1/runs/run-1"
        seen = [(frame.id, frame.event) async for frame in frames(response)]
    assert seen == [("1", "message_delta"), ("2", "completed")]


async def test_wait_answers_with_the_envelope(api: Api) -> None:
    """C12"""
    api.runs.on_submit = lambda record: api.runs.emit(record.run_id, done("line 1\nline 2  "))
    answer = await api.post("/v1/runs?wait=1", RUN)
    assert answer.status == 200
    assert answer.headers["Location"] == "/v1/runs/run-1"
    prefix = "[Subagent ID: sub-1 - Use this ID to continue this conversation] "
    assert answer.json["envelope"] == prefix + "line 1\nline 2  "
    assert answer.json["run"]["state"] == "finished"
    assert answer.json["result"] == {
        "final_text": "line 1\nline 2  ",
        "is_error": False,
        "error": None,
        "cost_usd": 0.01,
        "turns": 2,
        "tokens": {"input": 10, "output": 5, "cache_read": 3},
    }


async def test_wait_comes_back_when_the_run_ends(api: Api) -> None:
    call = asyncio.create_task(api.post("/v1/runs?wait=true", RUN))
    await api.runs.until(lambda: api.runs.waiters == 1)
    api.runs.emit("run-1", Error(reason="timeout", message="too slow"))
    answer = await call
    assert answer.status == 200
    assert answer.json["result"]["is_error"] is True
    assert answer.json["result"]["error"] == {"reason": "timeout", "message": "too slow", "details": {}}
    assert answer.json["envelope"].endswith("Error (timeout): too slow")


async def test_wait_with_a_timeout_answers_202_while_the_run_goes_on(api: Api) -> None:
    answer = await api.post("/v1/runs?wait=1&timeout=0.05", RUN)
    assert answer.status == 202
    assert answer.json["state"] == "queued"


async def test_a_run_can_be_waited_for_later(api: Api) -> None:
    api.runs.add_run()
    early = await api.get("/v1/runs/run-1?wait=1&timeout=0.05")
    assert (early.status, early.json["state"]) == (200, "queued")
    call = asyncio.create_task(api.get("/v1/runs/run-1?wait=1"))
    await api.runs.until(lambda: api.runs.waiters == 1)
    api.runs.emit("run-1", done("at last"))
    answer = await call
    assert (answer.status, answer.json["state"], answer.json["final_text"]) == (200, "finished", "at last")
    assert (await api.get("/v1/runs/run-1?wait=1&timeout=3601")).status == 400
    assert (await api.get("/v1/runs/none?wait=1")).status == 404
    assert (await api.get("/v1/runs/run-1?wait=1", who="bob")).status == 404


async def test_a_client_that_goes_away_does_not_end_the_run(api: Api) -> None:
    headers = api.headers("alice", {"Accept": "text/event-stream"})
    async with api.session.post(f"{api.url}/v1/runs", json=RUN, headers=headers) as response:
        await api.runs.until(lambda: api.runs.readers == 1)
        response.close()
    api.runs.emit("run-1", MessageDelta(text="still here", message_id="m"), done())
    await api.runs.until(lambda: api.runs.readers == 0)
    assert (await api.get("/v1/runs/run-1")).json["outcome"] == "completed"


async def test_the_same_idempotency_key_gives_the_same_run(api: Api) -> None:
    key = {"Idempotency-Key": "abc"}
    first = await api.post("/v1/runs", RUN, headers=key)
    again = await api.post("/v1/runs", RUN, headers=key)
    other = await api.post("/v1/runs", {**RUN, "query": "else"}, headers=key)
    assert again.json["run_id"] == first.json["run_id"]
    assert len(api.runs.requests) == 1
    assert (other.status, other.json["code"]) == (409, "conflict")


@pytest.mark.parametrize("key", ["", "x" * 201, "tab\tin", "ümlaut"])
async def test_a_key_that_is_not_printable_is_refused(api: Api, key: str) -> None:
    answer = await api.post("/v1/runs", RUN, headers={"Idempotency-Key": key})
    assert (answer.status, api.runs.requests) == (400, [])


async def test_the_longest_key_is_taken(api: Api) -> None:
    assert (await api.post("/v1/runs", RUN, headers={"Idempotency-Key": "x" * 200})).status == 202


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"query": ""}, "query"),
        ({"query": " \n"}, "query: must not be empty"),
        ({"query": "a\0b"}, "NUL"),
        ({"query": None}, "query"),
        ({"query": 5}, "query"),
        ({"backend": "../etc"}, "backend: must be a plain name"),
        ({"subagent_id": "a/b"}, "subagent_id: must be a plain name"),
        ({"subagent_id": "abc\n"}, "subagent_id: must be a plain name"),
        ({"tier": 2}, "tier"),
        ({"tier": True}, "tier: must be 0 or 1"),
        ({"tier": 1.0}, "tier: must be 0 or 1"),
        ({"tier": "1"}, "tier"),
        ({"workspace": "rw"}, "workspace"),
        ({"repo": ""}, "repo"),
        ({"repo": "../x"}, "repo: must be the name"),
        ({"repo": "a b"}, "repo: must be the name"),
        ({"limits": {"pids_max": 0}}, "limits.pids_max"),
        ({"limits": {"pids_max": "9"}}, "limits.pids_max"),
        ({"limits": {"memory_max_bytes": 2**60}}, "limits.memory_max_bytes"),
        ({"limits": {"wall_clock_seconds": -1}}, "limits.wall_clock_seconds"),
        ({"limits": {"memory_max": 5}}, "limits.memory_max: unknown; did you mean 'memory_max_bytes'?"),
        ({"limits": []}, "limits"),
        ({"metadata": {"x": "y" * 16 * 1024}}, "metadata: must not be longer than 16384 bytes"),
        ({"metadata": []}, "metadata"),
        ({"subagentid": "x"}, "subagentid: unknown; did you mean 'subagent_id'?"),
        ({"zzz": 1}, "zzz: unknown; known are backend, query"),
    ],
)
async def test_a_wrong_body_is_refused_with_the_member_that_is_wrong(api: Api, change: Any, says: str) -> None:
    answer = await api.post("/v1/runs", {**RUN, **change})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert says in answer.json["detail"]
    assert api.runs.requests == []


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        (b"", "not JSON"),
        (b"{", "line 1, column 2"),
        (b'{"backend": "claude-code",}', "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b"null", "must be a JSON object"),
        (b'{"query": "\xff"}', "not Unicode"),
        (b'{"backend": "claude-code", "query": "\\ud800"}', "not Unicode"),
        (b'{"backend": "claude-code", "query": "x", "metadata": {"a": "\\uDfff"}}', "not Unicode"),
        (b'{"metadata": {"a": NaN}}', "NaN is not JSON"),
        (b'{"metadata": {"a": ' + b"9" * 5000 + b"}}", "not JSON"),
        (b"[" * 200_000, "nested too deeply"),
    ],
)
async def test_what_is_not_json_is_refused(api: Api, raw: bytes, says: str) -> None:
    answer = await api.call("POST", "/v1/runs", raw=raw)
    assert answer.status == 400
    assert says in answer.json["detail"]


async def test_a_pair_of_surrogate_escapes_is_text(api: Api) -> None:
    raw = b'{"backend": "claude-code", "query": "\\ud83d\\ude00"}'
    assert (await api.call("POST", "/v1/runs", raw=raw)).status == 202
    assert api.runs.requests[-1].query == "\N{GRINNING FACE}"


async def test_all_wrong_members_are_told_at_once(api: Api) -> None:
    answer = await api.post("/v1/runs", {"query": "", "tier": 7, "limits": {"cpus": 0}})
    assert {item["field"] for item in answer.json["errors"]} == {"backend", "query", "tier", "limits.cpus"}


async def test_the_value_of_a_wrong_member_is_never_repeated(api: Api) -> None:
    answer = await api.post("/v1/runs", {**RUN, "api_key": "sk-secret", "tier": "sk-secret"})
    assert answer.status == 400
    assert b"sk-secret" not in answer.body


async def test_a_body_or_query_over_the_limit_is_413(start: Any) -> None:
    api = await start(server={"max_body_bytes": 2000, "max_query_chars": 100})
    long = await api.post("/v1/runs", {**RUN, "query": "x" * 101})
    assert (long.status, long.json["code"]) == (413, "payload_too_large")
    assert (await api.post("/v1/runs", {**RUN, "query": "x" * 100})).status == 202
    huge = await api.post("/v1/runs", {**RUN, "query": "x" * 3000})
    assert (huge.status, huge.json["code"]) == (413, "payload_too_large")
    assert len(api.runs.requests) == 1


async def test_a_packed_body_is_measured_unpacked(start: Any) -> None:
    api = await start(server={"max_body_bytes": 100_000})
    packed = gzip.compress(b'{"query": "' + b"x" * 10_000_000 + b'"}')
    answer = await api.call("POST", "/v1/runs", raw=packed, headers={"Content-Encoding": "gzip"})
    assert answer.status == 413


async def test_a_body_that_is_not_what_it_claims_is_400(api: Api) -> None:
    answer = await api.call("POST", "/v1/runs", raw=b"not packed", headers={"Content-Encoding": "gzip"})
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")


@pytest.mark.parametrize(
    "query", ["wait=perhaps", "timeout=0", "timeout=-1", "timeout=inf", "timeout=1e9", "wate=1", "wait=1&wait=0"]
)
async def test_wrong_query_parameters_are_refused(api: Api, query: str) -> None:
    answer = await api.post(f"/v1/runs?{query}", RUN)
    assert (answer.status, api.runs.requests) == (400, [])


async def test_only_the_local_owner_may_name_a_path(api: Api) -> None:
    body = {**RUN, "repo": "/srv/site"}
    for who in ("alice", "svc", "root"):
        answer = await api.post("/v1/runs", body, who=who)
        assert (answer.status, answer.json["code"]) == (403, "forbidden")
    assert (await api.post("/v1/runs", body, who="local")).status == 202
    request = api.runs.requests[-1]
    assert (str(request.repo_path), request.repo, request.user_id) == ("/srv/site", None, "local")
    assert (await api.post("/v1/runs", {**RUN, "repo": "/a\0b"}, who="local")).status == 400


async def test_an_unknown_backend_is_404(api: Api) -> None:
    answer = await api.post("/v1/runs", {**RUN, "backend": "clippy"})
    assert (answer.status, answer.json["code"]) == (404, "unknown_backend")


async def test_a_full_queue_tells_when_to_come_back(api: Api) -> None:
    api.runs.failure = QueueFullError("the queue is full", retry_after=7)
    answer = await api.post("/v1/runs", RUN)
    assert (answer.status, answer.json["code"], answer.json["retry_after"]) == (429, "queue_full", 7)
    assert answer.headers["Retry-After"] == "7"


async def test_a_service_that_stops_takes_no_runs(api: Api) -> None:
    api.runs.failure = ShuttingDownError("stopping")
    assert (await api.post("/v1/runs", RUN)).json["code"] == "shutting_down"


async def test_cancel_is_idempotent(api: Api) -> None:
    await api.post("/v1/runs", RUN)
    first = await api.post("/v1/runs/run-1/cancel")
    again = await api.post("/v1/runs/run-1/cancel")
    assert (first.status, again.status) == (200, 200)
    assert first.json["outcome"] == again.json["outcome"] == "cancelled"
    assert again.json["last_seq"] == 1


async def test_a_host_is_allowed_for_the_rest_of_a_run(api: Api) -> None:
    api.runs.add_run(egress=("a.example",))
    answer = await api.post("/v1/runs/run-1/egress", {"host": "pypi.org"})
    assert (answer.status, answer.json["egress"]) == (200, ["a.example", "pypi.org"])
    await api.post("/v1/runs/run-1/egress", {"host": "10.0.0.1", "port": 8080}, who="root")
    assert api.runs.allowed == [
        ("run-1", "pypi.org", None, False, "user:alice"),
        ("run-1", "10.0.0.1", 8080, True, "admin:root"),
    ]
    api.runs.add_run()
    assert (await api.post("/v1/runs/run-2/egress", {"host": "pypi.org"})).status == 409
    assert (await api.post("/v1/runs/run-1/egress", {"host": "pypi.org"}, who="bob")).status == 404


@pytest.mark.parametrize(
    "body", [{}, {"host": ""}, {"host": 5}, {"host": "a.example", "port": 0}, {"host": "a.example", "more": 1}]
)
async def test_what_is_no_host_is_not_allowed(api: Api, body: dict[str, Any]) -> None:
    api.runs.add_run(egress=("a.example",))
    assert (await api.post("/v1/runs/run-1/egress", body)).json["code"] == "invalid_request"
    assert api.runs.allowed == []


async def test_a_run_may_narrow_what_it_reaches(api: Api) -> None:
    await api.post("/v1/runs", {**RUN, "egress": ["API.example.com", "*.example.org:8443"]})
    await api.post("/v1/runs", {**RUN, "egress": []})
    await api.post("/v1/runs", RUN)
    asked = [request.egress for request in api.runs.requests]
    assert asked == [("api.example.com", "*.example.org:8443"), (), None]
    answer = await api.post("/v1/runs", {**RUN, "egress": ["*"]})
    assert answer.json["code"] == "invalid_request"
    assert "too broad" in answer.json["detail"]


async def test_runs_are_listed_newest_first_in_pages(api: Api) -> None:
    for _ in range(5):
        api.runs.add_run()
    first = (await api.get("/v1/runs?limit=2")).json
    assert [run["run_id"] for run in first["runs"]] == ["run-5", "run-4"]
    second = (await api.get(f"/v1/runs?limit=2&before={first['next_before']}")).json
    assert [run["run_id"] for run in second["runs"]] == ["run-3", "run-2"]
    last = (await api.get(f"/v1/runs?limit=2&before={second['next_before']}")).json
    assert ([run["run_id"] for run in last["runs"]], last["next_before"]) == (["run-1"], None)
    assert (await api.get("/v1/runs?limit=5")).json["next_before"] is None


async def test_runs_are_found_by_the_beginning_of_their_id(api: Api) -> None:
    for _ in range(12):
        api.runs.add_run()
    api.runs.add_run(user_id="bob")
    first = (await api.get("/v1/runs?prefix=run-1&limit=3")).json
    assert [run["run_id"] for run in first["runs"]] == ["run-12", "run-11", "run-10"]
    last = (await api.get(f"/v1/runs?prefix=run-1&before={first['next_before']}")).json
    assert ([run["run_id"] for run in last["runs"]], last["next_before"]) == (["run-1"], None)
    assert (await api.get("/v1/runs?prefix=none")).json["runs"] == []
    assert [run["run_id"] for run in (await api.get("/v1/runs?prefix=run-13", who="root")).json["runs"]] == ["run-13"]


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/subagents"])
@pytest.mark.parametrize("prefix", ["", "%25", "../x", "a" * 65, "a%00"])
async def test_the_beginning_of_an_id_is_a_plain_name(api: Api, path: str, prefix: str) -> None:
    answer = await api.get(f"{path}?prefix={prefix}")
    assert (answer.status, [error["field"] for error in answer.json["errors"]]) == (400, ["prefix"])


async def test_runs_are_filtered(api: Api) -> None:
    api.runs.add_run(backend="codex")
    api.runs.add_run(state="running")
    api.runs.add_run(subagent_id="chat")
    api.runs.add_run(created_at="2026-03-04T05:06:07.000008Z")
    api.runs.emit(api.runs.add_run().run_id, done())
    for query, found in (
        ("backend=codex", "run-1"),
        ("state=running", "run-2"),
        ("subagent_id=chat", "run-3"),
        ("since=2026-03-04T05:06:07Z", "run-4"),
        ("since=2026-03-04T05:06:07.000008Z", "run-4"),
        ("since=2026-03-04T07:00:00%2B02:00&until=2026-03-04T05:06:07.000009Z", "run-4"),
        ("outcome=completed", "run-5"),
    ):
        listed = (await api.get(f"/v1/runs?{query}")).json["runs"]
        assert [run["run_id"] for run in listed] == [found]


async def test_a_time_that_ends_the_list_is_not_in_it(api: Api) -> None:
    api.runs.add_run(created_at="2026-03-04T05:06:07.000008Z")
    assert (await api.get("/v1/runs?until=2026-03-04T05:06:07.000008Z")).json["runs"] == []


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=201",
        "limit=x",
        "state=done",
        "backend=a/b",
        "stat=running",
        "outcome=queued",
        "since=yesterday",
        "since=2026-03-04T05:06:07",
        "until=0001-01-01T00:00:00%2B14:00",
    ],
)
async def test_a_wrong_filter_is_refused(api: Api, query: str) -> None:
    assert (await api.get(f"/v1/runs?{query}")).status == 400


async def test_long_texts_are_cut_in_lists_only(api: Api) -> None:
    api.runs.add_run(query="q" * 5000, final_text="t" * 1000)
    listed = (await api.get("/v1/runs")).json["runs"][0]
    assert listed["query"] == "q" * 1000 + "…"
    assert listed["final_text"] == "t" * 1000
    assert (await api.get("/v1/runs/run-1")).json["query"] == "q" * 5000


async def test_text_that_is_not_unicode_and_numbers_that_are_not_json_survive(api: Api) -> None:
    api.runs.add_run(final_text="\udcff", usage={"cost_usd": float("nan"), "tokens": {"input": 1}})
    run = (await api.get("/v1/runs/run-1")).json
    assert run["final_text"] == "\udcff"
    assert run["usage"] == {"cost_usd": None, "tokens": {"input": 1}}
    assert run["limits"]["pids_max"] == 512


async def test_the_log_is_sent_byte_for_byte(api: Api) -> None:
    api.runs.add_run()
    path = api.directory / "ctr.log"
    content = b"2026-01-01T00:00:00Z stdout F \xff\x00\n" * 50_000
    path.write_bytes(content)
    api.runs.logs["run-1"] = path
    answer = await api.get("/v1/runs/run-1/log")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.body == content
    async with api.session.get(
        f"{api.url}/v1/runs/run-1/log", headers=api.headers("alice", {"Range": "bytes=0-3"})
    ) as part:
        assert (part.status, await part.read()) == (206, b"2026")


async def test_a_log_that_is_not_there_is_404(api: Api) -> None:
    api.runs.add_run()
    assert (await api.get("/v1/runs/run-1/log")).json["code"] == "not_found"
    api.runs.logs["run-1"] = api.directory / "gone.log"
    assert (await api.get("/v1/runs/run-1/log")).json["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/runs/{id}"),
        ("GET", "/v1/runs/{id}/events"),
        ("GET", "/ui/plugins/external_agent/runs/{id}/events"),
        ("POST", "/v1/runs/{id}/cancel"),
        ("GET", "/v1/runs/{id}/log"),
    ],
)
async def test_the_runs_of_others_do_not_exist(api: Api, method: str, path: str) -> None:
    api.runs.add_run(user_id="bob")
    foreign = await api.call(method, path.format(id="run-1"))
    missing = await api.call(method, path.format(id="run-9"))
    strange = await api.call(method, path.format(id="%2e%2e%2f"))
    assert foreign.status == missing.status == strange.status == 404
    assert foreign.json["detail"] == missing.json["detail"]
    assert api.runs.runs["run-1"].state == "queued"


async def test_everybody_lists_their_own_and_the_admin_all(api: Api) -> None:
    api.runs.add_run(user_id="alice")
    api.runs.add_run(user_id="bob")
    for who, count in (("alice", 1), ("bob", 1), ("svc", 0), ("root", 2), ("local", 2)):
        assert len((await api.get("/v1/runs", who=who)).json["runs"]) == count


async def test_a_wait_is_ended_by_shutdown_with_the_run_as_it_is(api: Api) -> None:
    call = asyncio.create_task(api.post("/v1/runs?wait=1", RUN))
    await api.runs.until(lambda: api.runs.waiters == 1)
    await asyncio.wait_for(api.servers.aclose(), 10)
    answer = await call
    assert (answer.status, answer.json["state"]) == (202, "queued")


async def test_a_wait_ends_when_its_client_has_gone(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_routes, "STEP_SECONDS", 0.02)
    ended = watch("orchestrator.api.access")
    async with aiohttp.ClientSession() as session:
        asking = asyncio.create_task(session.post(f"{api.url}/v1/runs?wait=1", json=RUN, headers=api.headers("alice")))
        await api.runs.until(lambda: api.runs.waiters == 1)
        asking.cancel()
        await asyncio.wait({asking})
    await asyncio.wait_for(ended.wait(), 10)
    assert api.runs.runs["run-1"].state == "queued"
    api.runs.emit("run-1", done())
    assert (await api.get("/v1/runs/run-1")).json["outcome"] == "completed"


async def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure_of_ours(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", api.servers.port)
    head = f"POST /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token['alice']}\r\n"
    writer.write(f'{head}Content-Length: 500\r\n\r\n{{"backend": "cl'.encode())
    await writer.drain()
    writer.transport.abort()
    await api.servers.aclose()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
    assert api.runs.requests == []


async def test_a_client_that_leaves_in_the_middle_of_a_log_is_no_failure_of_ours(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.runs.add_run()
    path = api.directory / "ctr.log"
    path.write_bytes(b"x" * 20_000_000)
    api.runs.logs["run-1"] = path
    reader, writer = await asyncio.open_connection("127.0.0.1", api.servers.port)
    head = f"GET /v1/runs/run-1/log HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {api.token['alice']}\r\n\r\n"
    writer.write(head.encode())
    assert await reader.readexactly(1000)
    writer.transport.abort()
    await api.servers.aclose()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


def watch(name: str) -> asyncio.Event:
    """Set at the next line of a logger."""
    seen, logger = asyncio.Event(), logging.getLogger(name)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            del record
            logger.removeHandler(self)
            seen.set()

    logger.setLevel(logging.INFO)
    logger.addHandler(Handler())
    return seen


@pytest.mark.parametrize("model", ["-m", "--yolo", "", "two words", "ümlaut", "x" * 201, "a\nb", 3])
async def test_a_model_that_cannot_be_a_name_is_refused(api: Api, model: object) -> None:
    answer = await api.post("/v1/runs", {"backend": "claude-code", "query": "x", "model": model})
    assert (answer.status, api.runs.requests) == (400, [])
    assert answer.json["errors"][0]["field"] == "model"


async def test_a_model_is_passed_on_and_recorded(api: Api) -> None:
    answer = await api.post("/v1/runs", {"backend": "claude-code", "query": "x", "model": "vendor/model-1.5:free"})
    assert (answer.status, answer.json["model"]) == (202, "vendor/model-1.5:free")
    assert api.runs.requests[0].model == "vendor/model-1.5:free"
