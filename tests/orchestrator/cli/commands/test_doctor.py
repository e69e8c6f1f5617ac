import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from orchestrator.cli.commands import doctor
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

    monkeypatch.setattr(doctor, "run_doctor", run_doctor)
    state = tmp_path / "not" / "there"
    table = CliRunner().invoke(doctor.command, [], obj=CliContext(state_dir=state))
    assert table.exit_code == code
    assert "loginctl" in table.output
    report = CliRunner().invoke(doctor.command, ["--json"], obj=CliContext(state_dir=state))
    assert report.exit_code == code
    assert json.loads(report.output)["ok"] is (code == 0)
    assert asked[0].state_dir == state
    assert not state.exists()  # looking changes nothing
