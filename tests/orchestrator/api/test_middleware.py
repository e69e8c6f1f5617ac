"""Problems, request ids, headers, and the guard of the Host header."""

import logging
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from orchestrator.api.middleware import host_allowed
from orchestrator.api.problems import headers_of, problem, problem_of
from orchestrator.errors import QueueFullError, SandboxError
from tests.orchestrator.api.harness import Api

NAMES = {"localhost", "127.0.0.1", "[::1]", "container.lan"}


async def test_an_error_of_ours_is_a_problem(api: Api) -> None:
    answer = await api.get("/v1/runs/none", headers={"X-Request-Id": "trace-1"})
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json == {
        "type": "urn:podmentor:problem:not_found",
        "title": "Not found",
        "status": 404,
        "detail": "there is no such run",
        "code": "not_found",
        "request_id": "trace-1",
    }


async def test_a_bug_tells_nothing_but_the_id_under_which_it_is_logged(
    api: Api, caplog: pytest.LogCaptureFixture
) -> None:
    api.runs.failure = ValueError("secret inner text")
    answer = await api.get("/v1/runs")
    assert (answer.status, answer.json["code"]) == (500, "internal")
    assert b"secret" not in answer.body
    record = next(record for record in caplog.records if record.levelno == logging.ERROR)
    assert answer.json["request_id"] in record.getMessage()
    assert "secret inner text" in str(record.exc_info)


async def test_errors_of_the_framework_are_problems_too(api: Api) -> None:
    missing = await api.get("/v1/nothing", who=None)
    assert (missing.status, missing.json["code"]) == (404, "not_found")
    wrong = await api.call("PUT", "/v1/runs")
    assert (wrong.status, wrong.json["code"]) == (405, "method_not_allowed")
    assert set(wrong.headers["Allow"].split(",")) == {"GET", "POST"}


async def test_a_request_id_is_taken_over_only_when_it_is_harmless(api: Api) -> None:
    async def sent(value: str) -> str:
        return str((await api.get("/healthz", headers={"X-Request-Id": value})).headers["X-Request-Id"])

    assert await sent("Abc_1.2-3") == "Abc_1.2-3"
    for bad in ("x" * 65, "a b", "<script>", "ä"):
        assert await sent(bad) != bad
    assert await sent("") != await sent("")


async def test_every_answer_has_the_safe_headers(api: Api) -> None:
    for path in ("/healthz", "/v1/runs", "/v1/runs/none", "/nothing"):
        headers = (await api.get(path)).headers
        assert headers["Content-Security-Policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["Server"] == "podmentor"
        assert "Access-Control-Allow-Origin" not in headers


async def test_other_origins_get_no_leave(api: Api) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = await api.call("OPTIONS", "/v1/runs", who=None, headers=headers)
    assert answer.status == 405
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    ("header", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:8765", True),
        ("localhost.:1", True),
        ("127.0.0.1:9", True),
        ("[::1]", True),
        ("[::1]:80", True),
        ("container.lan:80", True),
        ("", False),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:80:80", False),
        ("localhost:x", False),
        ("192.168.0.1", False),
        ("[::2]", False),
        ("user@localhost", False),
        ("localhost/", False),
        ("localhost\n", False),
    ],
)
def test_which_hosts_are_ours(header: str, allowed: bool) -> None:
    assert host_allowed(header, NAMES, any_address=False) is allowed


@pytest.mark.parametrize(
    ("header", "allowed"),
    [("192.168.0.1:8765", True), ("[fe80::1]:1", True), ("evil.example", False), ("1.2.3", False), ("[x]", False)],
)
def test_addresses_cannot_be_rebound(header: str, allowed: bool) -> None:
    assert host_allowed(header, NAMES, any_address=True) is allowed


async def test_a_rebound_name_is_refused_everywhere(api: Api) -> None:
    for path in ("/healthz", "/openapi.json", "/v1/runs", "/nothing"):
        answer = await api.get(path, headers={"Host": "evil.example"})
        assert (answer.status, answer.json["code"]) == (403, "forbidden")


async def test_a_name_from_the_configuration_is_let_through(start: Any) -> None:
    api: Api = await start(server={"allowed_hosts": ["Agents.example"]})
    assert (await api.get("/healthz", headers={"Host": "agents.example:443"})).status == 200


async def test_the_unix_socket_needs_no_host(api: Api) -> None:
    connector = aiohttp.UnixConnector(path=str(api.servers.unix_socket))
    async with (
        aiohttp.ClientSession(connector=connector) as session,
        session.get("http://anything/v1/runs", headers=api.headers("alice")) as response,
    ):
        assert response.status == 200


async def test_a_log_that_vanishes_while_it_is_opened_is_not_a_crash(api: Api, tmp_path: Path) -> None:
    api.runs.add_run()
    api.runs.logs["run-1"] = tmp_path
    assert (await api.get("/v1/runs/run-1/log")).status == 404


def test_details_never_replace_the_members_of_the_form() -> None:
    body = problem_of(SandboxError("broken", status=200, code="fine", image="x"), "r")
    assert b'"status": 503' in body
    assert b'"code": "sandbox_failed"' in body
    assert b'"image": "x"' in body


def test_details_that_are_not_json_are_written_as_text() -> None:
    assert b'"/x"' in problem(code="c", status=500, detail="d", request_id="r", details={"path": Path("/x")})


def test_retry_after_is_a_whole_number_of_seconds() -> None:
    assert headers_of(QueueFullError("full", retry_after=0.2)) == {"Retry-After": "1"}
    assert headers_of(QueueFullError("full")) == {}
