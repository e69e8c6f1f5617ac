"""GET /ui/plugins/external_agent/auth/probe."""

from orchestrator.contract.types import AuthStatus
from tests.orchestrator.api.harness import Api

URL = "/ui/plugins/external_agent/auth/probe"


async def test_c15_the_documented_answer(api: Api) -> None:
    api.runs.probes["claude-code"] = AuthStatus(installed=True, authenticated=True)
    api.runs.probes["codex"] = AuthStatus(installed=True, authenticated=False, error="not logged in")
    assert (await api.get(f"{URL}?backend=claude-code")).json == {"installed": True, "authenticated": True}
    assert (await api.get(f"{URL}?backend=codex")).json == {
        "installed": True,
        "authenticated": False,
        "error": "not logged in",
    }


async def test_the_probe_is_the_asking_users(api: Api) -> None:
    api.runs.probes["codex"] = AuthStatus(installed=True, authenticated=True)
    await api.get(f"{URL}?backend=codex", who="bob")
    await api.call("GET", f"{URL}?backend=codex", who="svc", headers={"X-Podmentor-User": "carol"})
    assert api.runs.probed == [("codex", "bob"), ("codex", "carol")]


async def test_what_is_refused(api: Api) -> None:
    assert (await api.call("GET", f"{URL}?backend=codex", who=None)).status == 401
    assert (await api.get(URL)).status == 400
    assert (await api.get(f"{URL}?backend=../etc")).status == 400
    assert (await api.get(f"{URL}?backend=none")).status == 404
    assert api.runs.probed == [("none", "alice")]
