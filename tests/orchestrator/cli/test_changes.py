import json

import pytest

from orchestrator.cli.changes import print_diff
from tests.fakes.api_server import CHANGES, PATCH, FakeApi, ThreadedApi
from tests.orchestrator.cli.conftest import Invoke
from tests.orchestrator.cli.test_subagents import subagent


@pytest.fixture(autouse=True)
def some(api: FakeApi) -> None:
    api.subagents = [subagent("sub_a1")]


def test_list(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "list", "sub_a").output == "2 files changed, +1 -1\n  M a.txt  +1 -1\n  A b.bin  binary\n"
    assert json.loads(invoke("changes", "list", "sub_a", "--json").output) == {"changes": CHANGES}


def test_a_piped_diff_is_exact_so_that_it_applies(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "diff", "sub_a1").stdout_bytes == PATCH


def test_a_shown_diff_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    print_diff(PATCH)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "+new �" in shown


def test_unknown_subagent(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "diff", "nope").exit_code == 5
