"""The repos of the configuration over HTTP."""

from __future__ import annotations

from pathlib import Path

from tests.orchestrator.api.harness import Api


async def test_everybody_sees_the_names_and_admins_the_paths(api: Api) -> None:
    assert (await api.get("/v1/repos")).json == {"repos": []}
    api.config.repos.update(web=Path("/srv/web"), app=Path("/srv/app"))
    for who in ("alice", "svc"):
        answer = await api.get("/v1/repos", who=who)
        assert answer.json == {"repos": [{"name": "app", "path": None}, {"name": "web", "path": None}]}
        assert b"/srv" not in answer.body
    for who in ("root", "local"):
        answer = await api.get("/v1/repos", who=who)
        assert answer.json["repos"][0] == {"name": "app", "path": "/srv/app"}
    assert (await api.get("/v1/repos", who=None)).status == 401
    assert (await api.get("/v1/repos?x=1")).status == 400
