import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from rich.console import Console

from orchestrator.cli.commands import doctor
from orchestrator.cli.commands.doctor import all_good, render, summary, to_json
from orchestrator.cli.context import CliContext
from orchestrator.config.models import Config, Paths
from orchestrator.doctor.model import Finding, failed, ok, warning

GOOD = [ok("podman", "version 5.4.2"), warning("linger", "off", "sudo loginctl enable-linger me")]
BAD = [*GOOD, failed("OCI runtime", "crun fails", "sudo apt-get install -y runc")]


@pytest.mark.parametrize(("findings", "code"), [(GOOD, 0), (BAD, 1)])
def test_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: list[Finding], code: int) -> None:
    asked: list[Paths] = []

    async def run_doctor(config: Config, paths: Paths) -> list[Finding]:
        asked.append(paths)
        return findings

    monkeypatch.setattr("orchestrator.bootstrap.service.run_doctor", run_doctor)
    state = tmp_path / "not" / "there"
    table = CliRunner().invoke(doctor.command, [], obj=CliContext(state_dir=state))
    assert table.exit_code == code
    assert "loginctl" in table.output
    report = CliRunner().invoke(doctor.command, ["--json"], obj=CliContext(state_dir=state))
    assert report.exit_code == code
    assert json.loads(report.output)["ok"] is (code == 0)
    assert asked[0].state_dir == state
    assert not state.exists()  # looking changes nothing


FIX = "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 someone && podman system migrate # long"
FINDINGS = [
    ok("podman", "version 5.4.2"),
    warning("linger", "off: containers end at log-out [see below]", "sudo loginctl enable-linger me"),
    failed("subordinate ids", "too few", FIX),
    warning("free locks", "cannot be told", None),
]


def shown(findings: list[Finding], width: int = 60) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, highlight=False, color_system=None)
    render(console, findings)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_commands_stand_on_unbroken_lines_and_only_where_something_is_wrong() -> None:
    text = shown(FINDINGS)
    assert f"    {FIX}\n" in text
    assert text.index("To mend:") < text.index("sudo loginctl")
    assert "[see below]" in text
    assert "To mend:" not in shown([FINDINGS[0]])


def test_every_finding_is_shown() -> None:
    text = shown(FINDINGS, width=200)
    for finding in FINDINGS:
        assert any(
            line.startswith(finding.status) and finding.name in line and finding.detail in line
            for line in text.splitlines()
        )


def test_only_a_failure_is_bad() -> None:
    assert all_good([FINDINGS[0], FINDINGS[1]])
    assert not all_good(FINDINGS)
    assert "Runs work here" in summary(FINDINGS[:2])
    assert summary(FINDINGS).startswith("4 checks: 1 failed, 2 with a warning. Runs will not work")


def test_json() -> None:
    report = json.loads(to_json(FINDINGS))
    assert report["ok"] is False
    assert report["findings"][2] == {"name": "subordinate ids", "status": "failed", "detail": "too few", "fix": FIX}
