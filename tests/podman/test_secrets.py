"""The real key stays outside: not in the container, not in events, logs, journal, inspect or process lists."""

from __future__ import annotations

import json
from pathlib import Path

from orchestrator.scripted import ScriptedProvider
from tests.podman.live import REAL_KEY, LiveService, podman, processes_with
from tests.podman.shared import MARKS
from tests.podman.shared import module_provider as module_provider  # noqa: PLC0414 -- fixtures
from tests.podman.shared import module_service as module_service  # noqa: PLC0414
from tests.podman.shared import provider as provider  # noqa: PLC0414
from tests.podman.shared import service as service  # noqa: PLC0414

pytestmark = MARKS

SEARCH = """scenario: dump
RUN:
env
cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n'
find /home/agent /tmp /run/podmentor /workspace -type f -exec cat {} + 2>/dev/null | head -c 200000
for path in /v1/messages /v1/models /v1/../secret / /metrics '/v1/messages?beta=true'; do
  curl -sS -m 10 -i -H "x-api-key: $ANTHROPIC_API_KEY" "http://127.0.0.1:8080$path"
done
curl -sS -m 10 -i -X POST -H "x-api-key: $ANTHROPIC_API_KEY" -d '{}' http://127.0.0.1:8080/v1/messages
ls -la /run/podmentor
"""


async def test_the_key_is_nowhere_to_be_found(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit(SEARCH)
    record = await service.finished(run["run_id"])
    assert record["outcome"] == "completed", record["error"]
    assert "ANTHROPIC_API_KEY=" in record["final_text"], "the search itself must have worked"
    assert {request.key for request in provider.requests} == {REAL_KEY}, "and the provider must have seen the key"
    events = json.dumps(await service.all_events(run["run_id"]))
    assert REAL_KEY not in events
    assert processes_with(REAL_KEY) == []
    for path in [p for root in (service.state, service.runtime) for p in root.rglob("*") if p.is_file()]:
        assert REAL_KEY.encode() not in path.read_bytes(), path
    assert REAL_KEY not in service.output.read_text()


async def test_inspect_shows_the_runs_own_token_only(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit("scenario: hang")
    await provider.reached("hang", timeout=60)
    [container] = [
        line.split()[0]
        for line in (await podman("ps", "--no-trunc", "--format", "{{.ID}} {{.Labels}}")).splitlines()
        if run["run_id"] in line
    ]
    assert REAL_KEY not in await podman("inspect", container)
    await service.call("POST", f"/v1/runs/{run['run_id']}/cancel")
    await service.finished(run["run_id"])


ATTACK = """scenario: dump
RUN:
ask() { curl -sS -m 10 -o /dev/null -w "$1=%{http_code}\\n" "${@:2}"; }
U=http://127.0.0.1:8080
ask good -H "x-api-key: $ANTHROPIC_API_KEY" $U/v1/models
ask none $U/v1/models
ask wrong -H "x-api-key: wrong" $U/v1/models
ask path -H "x-api-key: $ANTHROPIC_API_KEY" $U/v1/organizations
ask dots --path-as-is -H "x-api-key: $ANTHROPIC_API_KEY" $U/v1/models/../organizations
ask host -H "x-api-key: $ANTHROPIC_API_KEY" --request-target http://192.0.2.1/v1/models $U
curl -sS -m 5 http://192.0.2.1/ 2>&1 | head -n 1
"""


async def test_the_gateway_refuses_what_is_not_granted(service: LiveService, provider: ScriptedProvider) -> None:
    run = await service.submit(ATTACK)
    text = (await service.finished(run["run_id"]))["final_text"]
    answers = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert answers["good"] == "200"
    assert answers["none"] == "401"
    assert answers["wrong"] == "401"
    for refused in ("path", "dots", "host"):
        assert answers[refused] in {"400", "403", "404"}, refused
    assert "192.0.2.1" in text
    assert "organizations" not in {request.path for request in provider.requests}


async def test_a_token_of_another_run_is_refused(
    service: LiveService, provider: ScriptedProvider, tmp_path: Path
) -> None:
    first = await service.submit("scenario: dump\nRUN: echo token=$ANTHROPIC_API_KEY")
    text = (await service.finished(first["run_id"]))["final_text"]
    token = next(line for line in text.splitlines() if line.startswith("token=")).removeprefix("token=")
    ask = f'curl -sS -o /dev/null -w "%{{http_code}}" -H "x-api-key: {token}" http://127.0.0.1:8080/v1/models'
    second = await service.submit(f"scenario: dump\nRUN: {ask}")
    assert (await service.finished(second["run_id"]))["final_text"].strip().endswith("401")
