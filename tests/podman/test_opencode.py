"""What only the OpenCode CLI has, in its real container; the scenes of all backends are in test_backends."""

from __future__ import annotations

from pathlib import Path

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, live_service
from tests.podman.shared import MARKS
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import module_service as module_service  # noqa: PLC0414
from tests.podman.shared import provider as provider  # noqa: PLC0414
from tests.podman.shared import service as service  # noqa: PLC0414

pytestmark = MARKS
BACKEND = "opencode"

SETTINGS = {"model": "scripted"}
"""OpenCode offers other tools for models of the GPT family."""


async def test_a_model_of_another_family_gets_other_tools(
    service: LiveService, provider: ScriptedProvider, repo: Path
) -> None:
    before = {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()}
    run = await service.submit("scenario: edit", repo=str(repo))
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    assert [e["data"]["name"] for e in events if e["kind"] == "tool_use"] == ["write", "edit"]
    assert [e["data"]["is_error"] for e in events if e["kind"] == "tool_result"] == [False, False]
    [started] = [e["data"] for e in events if e["kind"] == "session_started"]
    assert (started["model"], started["cli_version"]) == ("scripted", record["cli_version"])
    assert (events[-1]["kind"], events[-1]["data"]["stop_reason"]) == ("completed", "stop")
    for request in provider.requests:
        assert request.body["model"] == "scripted"
        # A limit that some models refuse.
        assert not {"max_tokens", "max_completion_tokens"} & request.body.keys()
    listing = await service.call("GET", f"/v1/subagents/{run['subagent_id']}/changes")
    assert [(c["path"], c["change"]) for c in listing["changes"]] == [("note.txt", "added")]
    assert {path: path.read_bytes() for path in repo.rglob("*") if path.is_file()} == before


async def test_a_wait_that_is_too_long_is_not_waited_for(tmp_path: Path, provider: ScriptedProvider) -> None:
    backend = {"model": "scripted", "extra_env": {"OPENCODE_MAX_RETRY_SECONDS": "0"}}
    async with live_service(tmp_path, provider.base_url, backend_name="opencode", backend=backend) as service:
        run = await service.submit("scenario: busy")
        record = await service.finished(run["run_id"])
    assert record["error"]["reason"] == "rate_limited"
    assert record["error"]["details"]["retries"] == 0
    assert len(provider.requests) == 1


async def test_no_other_host_is_asked_for_and_the_real_key_is_nowhere(
    service: LiveService, provider: ScriptedProvider
) -> None:
    look = "env; cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'; cat /run/podmentor/prompt"
    run = await service.submit(f"scenario: dump\nRUN: {look}")
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "OPENCODE_CONFIG_CONTENT" in record["final_text"]
    reported = str(await service.all_events(run["run_id"]))
    assert REAL_KEY not in reported
    assert {request.key for request in provider.requests} == {REAL_KEY}
    for path in [*service.state.rglob("*"), *service.runtime.rglob("*")]:
        if path.is_file():
            assert REAL_KEY.encode() not in path.read_bytes(), path
    home = service.state / "subagents" / run["subagent_id"] / "home"
    left = {path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file()}
    # No package is fetched, no settings are written: only the CLI's own data.
    assert all(name.startswith((".local/share/opencode/", ".local/state/opencode/")) for name in left), left
