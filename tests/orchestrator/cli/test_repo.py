from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.repo import Choice, choose, work_tree
from orchestrator.errors import InvalidRequestError


def pick(asked: str | None, cwd: Path, **more: Any) -> Choice:
    options: dict[str, Any] = {"none": False, "continued": False, "remote": False, "names": {}, "state_dir": None}
    return choose(asked, cwd=cwd, **(options | more))


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/src/deep").mkdir(parents=True)
    return tmp_path / "repo"


def test_the_repo_around_the_current_directory(repo: Path) -> None:
    assert pick(None, repo / "src/deep").value == str(repo)
    assert pick(None, repo).value == str(repo)


def test_a_linked_work_tree_counts(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("gitdir: /elsewhere\n")
    assert work_tree(tmp_path) == tmp_path


def test_outside_a_repo_the_workspace_is_empty(tmp_path: Path) -> None:
    found = pick(None, tmp_path)
    assert found.value is None
    assert "empty workspace" in (found.remark or "")


def test_a_repo_that_cannot_be_read_is_never_none(repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidRequestError, match="/root/x cannot be read by the user"):
        pick(None, tmp_path, closed=Path("/root/x"))
    assert pick(None, tmp_path, closed=Path("/root/x"), none=True) == Choice(None)
    assert pick(str(repo), tmp_path, closed=Path("/root/x")).value == str(repo)

    def denied(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "exists", denied)
    with pytest.raises(InvalidRequestError, match="cannot be read by the user"):
        pick(None, repo)


def test_when_nothing_is_to_be_sent(repo: Path) -> None:
    assert pick(None, repo, none=True) == Choice(None)
    assert pick(None, repo, continued=True) == Choice(None)
    assert pick(None, repo, remote=True) == Choice(None)


def test_names_come_before_directories(repo: Path) -> None:
    assert pick("src", repo, names={"src": Path("/x")}).value == "src"
    assert pick("src", repo).value == str(repo / "src")
    assert pick("./src", repo, names={"src": Path("/x")}).value == str(repo / "src")
    assert pick("any/thing", repo, remote=True).value == "any/thing"


def test_wrong_ones_are_refused(repo: Path) -> None:
    with pytest.raises(InvalidRequestError, match="configured are: main"):
        pick("mian", repo, names={"main": Path("/x")})
    with pytest.raises(InvalidRequestError, match="is not a directory"):
        pick("./nope", repo)
    with pytest.raises(InvalidRequestError, match="whole file system"):
        pick("/", repo)


def test_the_service_s_own_state_is_never_given_to_an_agent(repo: Path) -> None:
    assert pick(None, repo, state_dir=repo / ".local/state").value is None
    with pytest.raises(InvalidRequestError, match="own state"):
        pick(".", repo, state_dir=repo / ".local/state")
