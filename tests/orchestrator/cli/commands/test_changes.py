import json
from pathlib import Path

import pytest

from orchestrator.cli.client.api import ApiClient
from orchestrator.cli.ui.console import out
from orchestrator.cli.ui.diff import print_diff, shortened
from orchestrator.cli.ui.summary import print_changes
from tests.fakes.api_server import CHANGES, COMMITS, IGNORED, PATCH, FakeApi, ThreadedApi
from tests.orchestrator.cli.commands.test_subagents import subagent
from tests.orchestrator.cli.conftest import Invoke


@pytest.fixture(autouse=True)
def some(api: FakeApi) -> None:
    api.subagents = [subagent("sub_a1")]


def test_list(invoke: Invoke, served: ThreadedApi) -> None:
    shown = "2 files changed, +1 -1\n  M a.txt  +1 -1\n  A b.bin  binary\n"
    assert invoke("changes", "list", "sub_a").output == shown + "1 ignored file not shown (--ignored shows them)\n"
    with_ignored = invoke("changes", "list", "sub_a", "--ignored").output
    assert with_ignored == shown + "1 ignored file:\n1 file changed, +0 -0\n  A out/x.o  binary\n"
    as_json = invoke("changes", "list", "sub_a", "--json").output
    assert json.loads(as_json) == {"changes": CHANGES, "ignored": IGNORED}


def test_paths_are_passed_on_whatever_is_in_them(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    invoke("changes", "list", "sub_a1", "--", "-x", "a b", "\udcff")
    invoke("changes", "diff", "sub_a1", "src", "--ignored")
    first, second = api.chosen
    assert json.loads(first["paths"]) == ["-x", "a b", "\udcff"]
    assert (json.loads(second["paths"]), second["ignored"]) == (["src"], "true")


def test_renamed_files_and_modes_have_their_words(capsys: pytest.CaptureFixture[str]) -> None:
    renamed = {"path": "b", "change": "renamed", "old_path": "a", "insertions": 1, "deletions": 0}
    mode = {"path": "run", "change": "mode", "old_mode": "100644", "mode": "100755"}
    print_changes(out(), [renamed, mode])
    assert capsys.readouterr().out == "2 files changed, +1 -0\n  R a → b  +1 -0\n  m run  100644 → 100755\n"


def test_commits_are_listed_and_written(invoke: Invoke, served: ThreadedApi, place: Path) -> None:
    assert invoke("changes", "commits", "sub_a1").output == "111111111111 Fix it  (HEAD, main)\n"
    assert json.loads(invoke("changes", "commits", "sub_a1", "--json").output) == {"commits": COMMITS}
    assert invoke("changes", "commits", "sub_a1", "--patch").stdout_bytes == b"\xffpatch"
    assert invoke("changes", "commits", "sub_a1", "--bundle", "x.bundle").exit_code == 0
    assert (place / "cwd" / "x.bundle").read_bytes() == b"\xffbundle"
    assert invoke("changes", "commits", "sub_a1", "--patch", "--bundle", "x").exit_code == 2


def test_a_piped_diff_is_exact_so_that_it_applies(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "diff", "sub_a1").stdout_bytes == PATCH


def test_a_shown_diff_is_cleaned(capsys: pytest.CaptureFixture[str]) -> None:
    print_diff(PATCH)
    shown = capsys.readouterr().out
    assert "\x1b" not in shown
    assert "+new �" in shown


def test_a_shown_diff_hides_nothing_and_forges_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    patch = (
        "+ok # \x1b]0;rm -rf ~\x07\n+a\r-forged\n+if admin\u202e {\n+\x9d0;more\x9c\n+dos line\r\n+tab\there\x7f\n"
    ).encode()
    print_diff(patch)
    assert capsys.readouterr().out == (
        "+ok # ^[]0;rm -rf ~^G\n+a^M-forged\n+if admin<U+202E> {\n+<U+009D>0;more<U+009C>\n+dos line\n+tab    here^?\n"
    )


def test_a_shown_diff_leaves_out_binary_content() -> None:
    lines = ["diff --git a/x b/x", "GIT binary patch", "literal 3", "Kc", "", "diff --git a/y b/y", "+y"]
    assert shortened(lines) == ["diff --git a/x b/x", "Binary content", "diff --git a/y b/y", "+y"]


def test_apply_says_what_it_did(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("changes", "apply", "sub_a1").output == "  applied  a.txt\n1 file applied\n"
    everything = {"paths": [], "ignored": False, "on_conflict": "refuse", "dry_run": False}
    assert api.bodies == [everything]
    done = invoke("changes", "apply", "sub_a1", "a", "--merge", "--ignored", "--branch", "b", "-m", "text")
    assert done.output.endswith("1 file on branch b (222222222222)\n")
    wanted = {"paths": ["a"], "ignored": True, "on_conflict": "merge", "branch": "b", "message": "text"}
    assert api.bodies[1] == everything | wanted
    assert invoke("changes", "apply", "sub_a1", "-m", "text").exit_code == 2
    assert json.loads(invoke("changes", "apply", "sub_a1", "--json").output)["applied"] is True


def test_a_branch_with_nothing_to_commit_is_said(
    invoke: Invoke, served: ThreadedApi, api: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*arguments: object) -> dict[str, object]:
        return {"applied": False, "files": [], "branch": None, "commit": None}

    monkeypatch.setattr(ApiClient, "apply", nothing)
    done = invoke("changes", "apply", "sub_a1", "--branch", "b")
    assert (done.exit_code, done.output) == (0, "nothing to commit: no branch was made\n")


def test_conflicts_are_shown_one_by_one(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    api.conflicts = [{"path": "b\x1b[2J", "change": "modified", "outcome": "conflict", "reason": "it was changed"}]
    refused = invoke("changes", "apply", "sub_a1")
    assert refused.exit_code == 1
    assert "  conflict b  (it was changed)\n" in refused.output
    dry = invoke("changes", "apply", "sub_a1", "--dry-run")
    assert dry.exit_code == 1
    assert dry.output.endswith("dry run: 1 file would be applied\n")


def test_discard_asks_first(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("changes", "discard", "sub_a1", stdin="n\n").exit_code == 1
    assert api.bodies == []
    assert invoke("changes", "discard", "sub_a1", "a", "b", "-y").output == "dropped 2 files\n"
    assert json.loads(invoke("changes", "discard", "sub_a1", "-y", "--json").output) == {"discarded": ["a.txt", "b"]}
    assert api.bodies == [{"paths": ["a", "b"]}, {"paths": []}]


def test_what_a_run_changed(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "run", "run_1").output == "  M a\n  D b\n  = c\n"
    assert len(json.loads(invoke("changes", "run", "run_1", "--json").output)["changes"]) == 3


def test_rollback_asks_first(invoke: Invoke, served: ThreadedApi, api: FakeApi) -> None:
    assert invoke("changes", "rollback", "sub_a1", "run_1", stdin="n\n").exit_code == 1
    assert api.bodies == []
    assert "as it was at the end of run run_1" in invoke("changes", "rollback", "sub_a1", "run_1", "-y").output
    assert api.bodies == [{"run_id": "run_1"}]


def test_unknown_subagent(invoke: Invoke, served: ThreadedApi) -> None:
    assert invoke("changes", "diff", "nope").exit_code == 5
