import json

from tests.fakes.api_server import ThreadedApi
from tests.orchestrator.cli.conftest import Invoke


def test_backends(invoke: Invoke, served: ThreadedApi) -> None:
    lines = invoke("backends").output.splitlines()
    assert lines[1].split() == ["claude-code", "2.1.0", "2.1.0-abc", "technical_user", "streaming,", "deltas"]
    assert "not built" in lines[2]
    assert "none (no key)" in lines[2]
    assert json.loads(invoke("backends", "--json").output)["backends"][0]["name"] == "claude-code"
