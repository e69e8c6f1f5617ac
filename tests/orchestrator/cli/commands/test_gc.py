import json

from tests.fakes.api_server import FakeApi, ThreadedApi
from tests.orchestrator.cli.conftest import Invoke


def test_it_says_what_goes_and_what_stays(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("gc").output == (
        "  log          run_1  2.0 KiB\n  kept         sub_1  5 B  (it has changes)\n2.0 KiB freed\n"
    )
    assert invoke("gc", "--older-than", "7", "--unapplied", "--dry-run").output.endswith("would be freed\n")
    assert json.loads(invoke("gc", "--json").output)["bytes"] == 2048
    assert api.bodies[:2] == [
        {"unapplied": False, "dry_run": False},
        {"unapplied": True, "dry_run": True, "older_than_days": 7.0},
    ]
    assert invoke("gc", "--older-than", "-1").exit_code == 2
