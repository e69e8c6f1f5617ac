"""GET /metrics, and the role that is good for nothing else."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from orchestrator.api.routes import ROUTES
from tests.orchestrator.api.harness import Api

DOC = (Path(__file__).parents[3] / "docs" / "observability.md").read_text()


@pytest.mark.parametrize("who", ["prometheus", "root", "local"])
async def test_the_page(api: Api, who: str) -> None:
    answer = await api.get("/metrics", who=who)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = {family.name for family in text_string_to_metric_families(answer.body.decode())}
    assert {"podmentor_audit_lines", "podmentor_journal_append_seconds", "process_start_time_seconds"} <= families


@pytest.mark.parametrize(("who", "status"), [(None, 401), ("alice", 403), ("svc", 403)])
async def test_nobody_else_reads_it(api: Api, who: str | None, status: int) -> None:
    answer = await api.get("/metrics", who=who)
    assert answer.status == status
    assert b"podmentor_" not in answer.body


@pytest.mark.parametrize(
    "route", [route for route in ROUTES if not route.public], ids=lambda route: f"{route.method} {route.path}"
)
async def test_a_metrics_token_is_good_for_nothing_else(api: Api, route: object) -> None:
    method, path = route.method, route.path  # type: ignore[attr-defined]
    if path == "/metrics":
        return
    path = path.replace("{", "").replace("}", "")
    async with api.session.request(method, api.url + path, headers=api.headers("prometheus")) as answer:
        assert answer.status == 403
        assert (await answer.json())["code"] == "forbidden"


async def test_prometheus_does_not_act_for_others(api: Api) -> None:
    assert (await api.get("/metrics", who="prometheus", headers={"X-Podmentor-User": "alice"})).status == 403


async def test_the_documents_scrape_configuration_works(api: Api, tmp_path: Path) -> None:
    """As Prometheus reads it: scheme, target, path and the file with the credentials."""
    text = next(part.split("```")[0] for part in DOC.split("```yaml\n")[1:] if "scrape_configs" in part)
    [job] = yaml.safe_load(text)["scrape_configs"]
    assert job["authorization"]["type"] == "Bearer"
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8765"]}]
    credentials = tmp_path / Path(job["authorization"]["credentials_file"]).name
    credentials.write_text(api.token["prometheus"] + "\n")
    headers = {
        "Authorization": f"{job['authorization']['type']} {credentials.read_text().strip()}",
        "Accept": "application/openmetrics-text;version=1.0.0;q=0.8,text/plain;version=0.0.4;q=0.6,*/*;q=0.1",
        "Accept-Encoding": "gzip",
        "X-Prometheus-Scrape-Timeout-Seconds": "10",
    }
    url = f"{job.get('scheme', 'http')}://127.0.0.1:{api.servers.port}{job.get('metrics_path', '/metrics')}"
    async with api.session.get(url, headers=headers) as answer:
        assert answer.status == 200
        assert list(text_string_to_metric_families(await answer.text()))
    basic = base64.b64encode(f"x:{api.token['prometheus']}".encode()).decode()
    async with api.session.get(url, headers={"Authorization": f"Basic {basic}"}) as answer:
        assert answer.status == 401


async def test_the_trace_context_of_a_request_goes_with_the_run(api: Api) -> None:
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    body = {"backend": "claude-code", "query": "q"}
    for header, kept in ((parent, parent), ("rubbish", None)):
        assert (await api.post("/v1/runs", body, headers={"traceparent": header})).status == 202
        assert api.runs.requests[-1].traceparent == kept
    assert api.runs.requests[-1].actor == "user:alice"
    await api.post("/v1/runs", body, who="svc", headers={"X-Podmentor-User": "alice"})
    assert (api.runs.requests[-1].actor, api.runs.requests[-1].user_id) == ("service:svc", "alice")
