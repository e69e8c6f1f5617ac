from typing import Any

import pytest

from orchestrator.config.models import Config, Paths
from orchestrator.doctor import examine as examine_now
from orchestrator.doctor.examine import CHECKS
from orchestrator.doctor.model import Finding
from orchestrator.doctor.probe import Output
from tests.fakes.doctor import IMAGE, RUNTIME, STATE, FakeProbe, good_machine


async def examine(probe: FakeProbe, **options: Any) -> list[Finding]:
    paths = Paths(state_dir=STATE, runtime_dir=RUNTIME)
    return await examine_now(config=Config(), paths=paths, images=[IMAGE], probe=probe, **options)


async def test_a_good_machine_has_nothing_to_mend() -> None:
    findings = await examine(good_machine())
    assert [(finding.name, finding.detail) for finding in findings if finding.status != "ok"] == []
    assert all(finding.fix is None for finding in findings)
    names = [finding.name for finding in findings]
    assert names == [*[name for name in CHECKS if name != "images"], "image claude-code"]
    assert len(set(names)) == len(names)


async def test_an_empty_machine_gets_a_report_and_no_exception() -> None:
    findings = await examine(FakeProbe())
    assert {finding.name: finding.status for finding in findings}["podman"] == "failed"
    assert all(finding.fix for finding in findings if finding.status == "failed")


async def test_a_check_that_hangs_is_a_finding_and_the_others_are_told() -> None:
    probe = good_machine()
    probe.hangs.add("unshare")
    findings = {finding.name: finding for finding in await examine(probe, timeout=0.05)}
    assert findings["user namespaces"].status == "failed"
    assert "no result within" in findings["user namespaces"].detail
    assert findings["OCI runtime"].status == "ok"


async def test_a_check_that_crashes_is_a_finding_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(FakeProbe):
        async def ping(self, *args: Any, **kwargs: Any) -> str | None:
            raise ZeroDivisionError

        async def serve(self, *args: Any, **kwargs: Any) -> str | None:
            raise ZeroDivisionError

    good = good_machine()
    probe = Broken(files=good.files, paths=good.paths, commands=good.commands, outputs=good.outputs)
    findings = {finding.name: finding for finding in await examine(probe)}
    assert findings["podman service"].status == "failed"
    assert "ZeroDivisionError" in findings["podman service"].detail
    assert findings["free locks"].status == "ok"
    assert "crashed" in caplog.text


async def test_a_podman_that_does_not_report_is_told_once_as_a_failure() -> None:
    probe = good_machine()
    probe.outputs["podman", "info"] = Output(125, stderr="Error: broken\n")
    findings = await examine(probe)
    assert [finding.name for finding in findings if finding.status == "failed"] == ["podman"]
