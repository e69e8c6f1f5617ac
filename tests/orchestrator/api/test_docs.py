"""docs/api.md names everything that there is, and nothing else."""

import ast
import re
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import pytest

from orchestrator import errors
from orchestrator.adapterkit.failures import TEXT_IN_DETAILS
from orchestrator.api import app, requests
from orchestrator.api.models import base, runs
from orchestrator.api.models.runs import LimitsBody, RunBody, RunListQuery
from orchestrator.api.routes import ROUTES
from orchestrator.config.models import ServerConfig
from orchestrator.errors import PodmentorError
from orchestrator.events import KINDS, AgentEvent, ErrorReason, Status, Tokens
from orchestrator.system import times as clock

ROOT = Path(__file__).parents[3]
TEXT = (ROOT / "docs" / "api.md").read_text()
OFFLINE = {"invalid_config", "image_build_failed", "remote_error", "service_unavailable"}
"""Codes that only the command meets."""


def test_every_route_is_documented() -> None:
    for route in ROUTES:
        assert f"`{route.method} {route.path}`" in TEXT


def test_every_member_of_a_run_request_is_documented() -> None:
    for name in {*RunBody.model_fields, *LimitsBody.model_fields}:
        assert f"`{name}`" in TEXT


def test_every_kind_and_reason_is_documented() -> None:
    for name in (*KINDS, *get_args(ErrorReason)):
        assert f"`{name}`" in TEXT


def test_every_code_is_documented_with_its_status() -> None:
    lines = TEXT.splitlines()
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, PodmentorError) and error.code not in OFFLINE:
            assert any(line.startswith(f"| {error.status} |") and f"`{error.code}`" in line for line in lines)


def rows(first: str) -> dict[str, str]:
    """The table whose heading begins with ``first``: the second column by the first."""
    lines = TEXT[TEXT.index(f"| {first} |") :].splitlines()[2:]
    table = [line.strip("| ").split(" | ", 1) for line in lines[: lines.index("")]]
    return {row[0].strip("`"): row[1] for row in table}


@pytest.mark.parametrize("event", [event for event in get_args(AgentEvent) if event is not Status])
def test_the_members_of_each_kind_are_documented_with_those_that_may_be_missing(event: type[Any]) -> None:
    text = re.sub(r"\(.*?\)", "", rows("kind")[event.kind])
    inner = re.search(r"tokens \{(.*?)\}", text)
    if inner is not None:
        assert set(inner[1].split(", ")) == members(Tokens)
        text = text.replace(inner[0], "tokens")
    assert {name.strip() for name in text.split(",")} == members(event)


def members(record: type[Any]) -> set[str]:
    """The names of what clients get, ``?`` behind those that are left out when unknown."""
    return {
        f"{field.name}?" if field.default is not MISSING else field.name
        for field in fields(record)
        if field.name != "parent_tool_call_id"
    }


def test_exactly_the_phases_that_are_sent_are_documented() -> None:
    sent = {"heartbeat"}
    for path in (*(ROOT / "orchestrator").rglob("*.py"), *(ROOT / "adapters").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Status":
                sent |= {str(word.value.value) for word in node.keywords if isinstance(word.value, ast.Constant)}
    for text in (rows("kind")["status"].partition("with it: ")[2], (Status.__doc__ or "").partition("one of: ")[2]):
        names = re.sub(r"\{.*?\}|\(.*?\)", "", text.partition("``info``")[0], flags=re.DOTALL)
        assert set(re.findall(r"[a-z_]+", names)) == sent


def test_every_query_parameter_is_in_the_row_or_the_table_of_its_route() -> None:
    routes, of_events, of_run = rows("route"), rows("parameter"), TEXT[TEXT.index("`?wait=1`") :]
    for route in ROUTES:
        row = next(text for names, text in routes.items() if f"{route.method} {route.path}" in names.split("`, `"))
        for name in route.query.model_fields:
            elsewhere = name in of_run if route.path == "/v1/runs" and route.method == "POST" else False
            listed = f"`{name}`" in row or f"{name}=" in row or row == "the same" or "accounts" in route.tag
            events = route.path.endswith("/events") and any(key.startswith(name) for key in of_events)
            assert listed or elsewhere or events, f"{route.method} {route.path}: {name}"


def test_times_are_shown_as_they_are_sent() -> None:
    shown = re.findall(r'"ts": "(.*?)"', TEXT)
    assert shown
    for text in (*shown, clock.now()):
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", text)


def test_the_numbers_are_those_of_the_code() -> None:
    limit = RunListQuery.model_json_schema()["properties"]["limit"]
    assert f"({limit['minimum']} to {limit['maximum']}, default {limit['default']})" in TEXT
    assert f"at most {base.MAX_WAIT_SECONDS:.0f})" in TEXT
    assert f"at most {runs.METADATA_BYTES // 1024} KiB" in TEXT
    assert f"`server.heartbeat_seconds` ({ServerConfig().heartbeat_seconds:.0f})" in TEXT
    assert f"takes no byte for {timedelta(seconds=app.STALL_SECONDS).seconds} seconds" in TEXT
    assert f"up to {TEXT_IN_DETAILS:,} characters" in TEXT
    assert f"http://{ServerConfig().host}:{ServerConfig().port}" in TEXT
    assert requests.KEY_FORM.fullmatch("k" * 200)
    assert not requests.KEY_FORM.fullmatch("k" * 201)
    assert "(1 to 200 printable characters)" in TEXT
    assert f"after {runs.LIST_CHARS} characters" in " ".join(TEXT.split())
