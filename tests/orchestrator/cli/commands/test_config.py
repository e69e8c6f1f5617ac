import json
from pathlib import Path

import yaml

from tests.orchestrator.cli.conftest import Invoke


def test_check_without_a_file(invoke: Invoke, place: Path) -> None:
    found = invoke("config", "check")
    assert found.exit_code == 0
    assert "built-in defaults" in found.output
    assert "✓ fine; backends: claude-code" in found.output
    assert not (place / "s").exists()  # looking changes nothing


def test_check_finds_every_problem(invoke: Invoke) -> None:
    Path("podmentor.yaml").write_text("serve: {}\nruns:\n  max_concurent: 1\n")
    found = invoke("config", "check")
    assert found.exit_code == 1
    assert "podmentor.yaml:1: serve: unknown key; did you mean server?" in found.output
    assert "podmentor.yaml:3: runs.max_concurent: unknown key; did you mean max_concurrent?" in found.output
    report = json.loads(invoke("config", "check", "--json").output)
    assert report["ok"] is False
    assert len(report["problems"]) == 2


def test_check_shows_warnings_and_is_fine(invoke: Invoke) -> None:
    Path("podmentor.yaml").write_text("repos: {gone: /no/such/dir}\n")
    found = invoke("config", "check")
    assert found.exit_code == 0
    assert "! " in found.output
    assert "repos.gone" in found.output


def test_check_looks_at_the_directories(invoke: Invoke, place: Path) -> None:
    Path("podmentor.yaml").write_text(f"repos: {{all: {place}}}\n")
    found = invoke("config", "check")
    assert found.exit_code == 1
    assert "inside the repo all" in found.output


def test_show_hides_secrets(invoke: Invoke) -> None:
    shown = invoke("config", "show")
    assert shown.exit_code == 0
    assert "sk-not-real" not in shown.output
    assert yaml.safe_load(shown.output)["external_agent"]["backends"]["claude-code"]["api_key"] == "***"
    as_json = invoke("config", "show", "--json")
    assert json.loads(as_json.output) == yaml.safe_load(shown.output)


def test_a_broken_file_is_one_clear_error_for_other_commands(invoke: Invoke) -> None:
    Path("podmentor.yaml").write_text("serve: {}\n")
    found = invoke("runs", "list")
    assert found.exit_code == 2
    assert "did you mean server? [invalid_config]" in found.output
    assert "hint: podmentor config check" in found.output
