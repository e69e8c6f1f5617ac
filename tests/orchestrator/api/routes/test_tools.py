"""Backends, and backends as tools."""

import asyncio
import re
from typing import Any

import pytest
from openapi_schema_validator import OAS31Validator

from orchestrator.api.routes.tools import INPUT_SCHEMA, ToolArgs
from orchestrator.contract.runs import RunRecord
from orchestrator.errors import NotFoundError
from orchestrator.events import Error
from tests.fakes.run_service import done
from tests.orchestrator.api.harness import Api

TOOL = "/v1/tools/claude_code"


async def test_backends_are_listed(api: Api) -> None:
    first, second = (await api.get("/v1/backends")).json["backends"]
    assert (first["name"], first["cli_version"], first["capabilities"]["resume"]) == ("claude-code", "2.1.197", True)
    assert first["auth"] == {"source": "technical_user", "authenticated": True}
    assert (second["name"], second["image"]) == ("codex", None)


async def test_every_backend_is_a_tool_with_the_locked_schema(api: Api) -> None:
    """C11"""
    tools = (await api.get("/v1/tools")).json["tools"]
    assert [(tool["name"], tool["backend"]) for tool in tools] == [("claude_code", "claude-code"), ("codex", "codex")]
    for tool in tools:
        schema = tool["input_schema"]
        OAS31Validator.check_schema(schema)
        assert {name: member["type"] for name, member in schema["properties"].items()} == {
            "query": "string",
            "subagent_id": "string",
        }
        assert (schema["required"], schema["additionalProperties"]) == (["query"], False)
    assert set(INPUT_SCHEMA["properties"]) == set(ToolArgs.model_fields)
    assert OAS31Validator(INPUT_SCHEMA).is_valid({"query": "x", "subagent_id": "y"})
    assert not OAS31Validator(INPUT_SCHEMA).is_valid({"query": "x", "repo": "y"})


async def test_a_tool_call_answers_with_envelope_and_metadata(api: Api) -> None:
    """C11, C12"""
    text = "Two\nlines [Subagent ID: not me]"
    api.runs.on_submit = lambda record: api.runs.emit(record.run_id, done(text))
    answer = (await api.post(TOOL, {"query": "do it"})).json
    assert answer["is_error"] is False
    assert answer["content"] == f"[Subagent ID: sub-1 - Use this ID to continue this conversation] {text}"
    assert re.sub(r"\[Subagent ID:.*?\]\s*", "", answer["content"], count=1, flags=re.DOTALL) == text
    assert answer["metadata"] == {
        "run_id": "run-1",
        "subagent_id": "sub-1",
        "backend": "claude-code",
        "state": "finished",
        "outcome": "completed",
        "tokens": {"input": 10, "output": 5, "cache_read": 3},
        "cost_usd": 0.01,
        "turns": 2,
        "cli_version": None,
        "error": None,
        "started_at": None,
        "finished_at": "2026-01-02T03:04:05.678Z",
    }
    request = api.runs.requests[-1]
    assert (request.backend, request.query, request.subagent_id, request.repo) == ("claude-code", "do it", None, None)


async def test_a_tool_call_waits_for_its_run(api: Api) -> None:
    call = asyncio.create_task(api.post(TOOL, {"query": "do it"}))
    await api.runs.until(lambda: api.runs.waiters == 1)
    assert not call.done()
    api.runs.emit("run-1", done())
    assert (await call).json["is_error"] is False


async def test_a_tool_call_continues_a_conversation(api: Api) -> None:
    def play(record: RunRecord) -> None:
        api.runs.emit(record.run_id, done())

    api.runs.on_submit = play
    first = (await api.post(TOOL, {"query": "one"})).json["metadata"]
    second = (await api.post(TOOL, {"query": "two", "subagent_id": first["subagent_id"]})).json["metadata"]
    assert (second["subagent_id"], second["run_id"]) == ("sub-1", "run-2")


async def test_a_run_that_fails_is_an_answer_for_the_model(api: Api) -> None:
    api.runs.on_submit = lambda record: api.runs.emit(
        record.run_id, Error(reason="auth_required", message="no key: add one")
    )
    answer = await api.post(TOOL, {"query": "do it"})
    assert (answer.status, answer.json["is_error"]) == (200, True)
    assert answer.json["content"].endswith("] Error (auth_required): no key: add one")
    assert answer.json["metadata"]["error"]["reason"] == "auth_required"


@pytest.mark.parametrize("subagent_id", ["", "none", "sub-3", "a b", "../x", "a" * 500, "\x00", "\u00e4"])
async def test_a_conversation_that_does_not_exist_is_told_to_the_model(api: Api, subagent_id: str) -> None:
    api.runs.add_run(backend="codex")
    api.runs.add_run()
    api.runs.add_run(user_id="bob")  # sub-3
    answer = await api.post(TOOL, {"query": "x", "subagent_id": subagent_id})
    assert (answer.status, answer.json["is_error"], answer.json["metadata"]) == (200, True, None)
    assert answer.json["content"].startswith("Error (invalid_arguments): subagent_id: there is no")
    assert api.runs.requests == []


async def test_a_conversation_of_another_backend_is_told_to_the_model(api: Api) -> None:
    api.runs.add_run(backend="codex")
    answer = await api.post(TOOL, {"query": "x", "subagent_id": "sub-1"})
    assert (answer.status, answer.json["is_error"]) == (200, True)
    assert "codex" in answer.json["content"]
    assert api.runs.requests == []


async def test_a_repo_that_does_not_exist_is_the_programs_mistake(api: Api) -> None:
    api.runs.failure = NotFoundError("there is no repo 'x'")
    api.runs.add_run()
    headers = {"X-Podmentor-Repo": "a b"}
    assert (await api.post(TOOL, {"query": "x", "subagent_id": None}, headers=headers)).status == 404
    assert (await api.post(TOOL, {"query": "x", "subagent_id": "sub-1"}, headers=headers)).status == 400


@pytest.mark.parametrize("form", ["function", "strict"])
async def test_tools_for_function_calling_have_nothing_beside_their_parameters(api: Api, form: str) -> None:
    tools = (await api.get(f"/v1/tools?form={form}")).json["tools"]
    assert [tool["name"] for tool in tools] == ["claude_code", "codex"]
    for tool in tools:
        assert set(tool) == {"name", "description", "parameters"}
        assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool["name"])
        schema = tool["parameters"]
        OAS31Validator.check_schema(schema)
        assert set(schema) == {"type", "properties", "required", "additionalProperties"}
        for member in schema["properties"].values():
            assert set(member) == {"type", "description"}


async def test_the_strict_form_requires_every_member_and_null_begins_a_conversation(api: Api) -> None:
    api.runs.on_submit = lambda record: api.runs.emit(record.run_id, done())
    schema = (await api.get("/v1/tools?form=strict")).json["tools"][0]["parameters"]
    assert schema["additionalProperties"] is False
    assert set(schema["required"]) == set(schema["properties"]) == set(ToolArgs.model_fields)
    args = {"query": "x", "subagent_id": None}
    assert OAS31Validator(schema).is_valid(args)
    answer = await api.post(TOOL, args)
    assert (answer.status, answer.json["metadata"]["subagent_id"]) == (200, "sub-1")


@pytest.mark.parametrize(
    "args",
    [
        {},
        {"subagent_id": "x"},
        {"query": ""},
        {"query": 1},
        {"query": "x", "repo": "site"},
        {"query": "x", "backend": "codex"},
        {"query": "x", "tier": 1},
        {"query": "x", "subagent_id": 3},
        {"query": "x", "metadata": {}},
    ],
)
async def test_other_arguments_are_refused(api: Api, args: Any) -> None:
    """C11"""
    answer = await api.post(TOOL, args)
    assert (answer.status, answer.json["code"]) == (400, "invalid_request")
    assert api.runs.requests == []


async def test_the_repo_of_a_tool_call_is_the_programs_choice(api: Api) -> None:
    api.runs.on_submit = lambda record: api.runs.emit(record.run_id, done())
    await api.post(TOOL, {"query": "x"}, headers={"X-Podmentor-Repo": "site", "Idempotency-Key": "k"})
    assert (api.runs.requests[-1].repo, api.runs.requests[-1].idempotency_key) == ("site", "k")
    for who in ("alice", "local"):
        bad = await api.post(TOOL, {"query": "x"}, who=who, headers={"X-Podmentor-Repo": "/etc"})
        assert bad.status == 400


@pytest.mark.parametrize("name", ["gemini", "claude-code", "run", "..%2f"])
async def test_an_unknown_tool_is_404(api: Api, name: str) -> None:
    answer = await api.post(f"/v1/tools/{name}", {"query": "x"})
    assert answer.status == 404
    assert api.runs.requests == []


async def test_the_query_limit_holds_for_tools(start: Any) -> None:
    api: Api = await start(server={"max_query_chars": 10})
    assert (await api.post(TOOL, {"query": "x" * 11})).status == 413
