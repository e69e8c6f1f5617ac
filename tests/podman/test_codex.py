"""What only the Codex CLI has, in its real container; the scenes of all backends are in test_backends."""

from __future__ import annotations

import json

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, processes_with
from tests.podman.shared import MARKS
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import module_service as module_service  # noqa: PLC0414
from tests.podman.shared import provider as provider  # noqa: PLC0414
from tests.podman.shared import service as service  # noqa: PLC0414

pytestmark = MARKS
BACKEND = "codex"


SEARCH = """scenario: dump
RUN:
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
find /home/agent /tmp /run/podmentor /workspace -type f -exec cat {} + 2>/dev/null | tr -cd '[:print:]\\n' | head -c 900000
curl -sS -m 10 -o /dev/null -w 'models=%{http_code}\\n' -H "Authorization: Bearer $OPENAI_API_KEY" http://127.0.0.1:8080/v1/models
curl -sS -m 10 -o /dev/null -w 'files=%{http_code}\\n' -H "Authorization: Bearer $OPENAI_API_KEY" http://127.0.0.1:8080/v1/files
"""


async def test_the_key_is_nowhere_in_the_container(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit(SEARCH)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    events = await service.all_events(run["run_id"])
    printed = "".join(e["data"]["content"] for e in events if e["kind"] == "tool_result")
    assert "CODEX_API_KEY=" in printed, "the search itself must have worked"
    assert "session_meta" in printed, "and have read the CLI's own files"
    assert "models=200" in printed
    assert "files=404" in printed
    assert {request.key for request in provider.requests} == {REAL_KEY}, "and the provider must have seen the key"
    assert REAL_KEY not in json.dumps(events)
    assert processes_with(REAL_KEY) == []
    for path in [p for root in (service.state, service.runtime) for p in root.rglob("*") if p.is_file()]:
        assert REAL_KEY.encode() not in path.read_bytes(), path
    assert REAL_KEY not in service.output.read_text()


async def test_tier_0_answers_as_well(service: LiveService) -> None:
    run = await service.submit("scenario: shell", tier=0)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert record["final_text"] == "The command printed hi."
