"""Which seccomp profile is in force, as the doctor tells it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.doctor.probe import Output
from orchestrator.doctor.seccomp import seccomp
from tests.fakes.doctor import SECCOMP, FakeProbe, good_info, good_machine, subject


def info(**security: Any) -> dict[str, Any]:
    found = good_info()
    found["host"]["security"] |= security
    return found


async def test_ours_is_in_force_when_a_container_starts_with_it() -> None:
    probe = good_machine()
    finding = await seccomp(subject(probe))
    assert (finding.status, finding.fix) == ("ok", None)
    assert "podmentor's profile is in force" in finding.detail
    [argv] = [argv for argv in probe.ran if any("seccomp=" in word for word in argv)]
    path = next(word.partition("seccomp=")[2] for word in argv if "seccomp=" in word)
    names = {name for rule in json.loads(probe.files[path])["syscalls"] for name in rule["names"]}
    assert names == {"socket", "clone", "clone3"}
    assert probe.made == []


def unreadable(probe: FakeProbe) -> None:
    del probe.files[SECCOMP]


def broken(probe: FakeProbe) -> None:
    probe.files[SECCOMP] = "no json"


def permissive(probe: FakeProbe) -> None:
    probe.files[SECCOMP] = json.dumps({"defaultAction": "SCMP_ACT_ALLOW", "syscalls": []})


@pytest.mark.parametrize(
    ("change", "why"),
    [(unreadable, "cannot be read"), (broken, "no seccomp profile"), (permissive, "allows what it does not name")],
)
async def test_podmans_own_is_in_force_where_it_cannot_be_narrowed(change: Any, why: str) -> None:
    change(probe := good_machine())
    finding = await seccomp(subject(probe))
    assert finding.status == "warning"
    assert "Podman's own profile is in force" in finding.detail
    assert why in finding.detail
    assert "AF_VSOCK" in finding.detail
    assert "--reinstall" in (finding.fix or "")


async def test_a_profile_that_no_container_starts_with() -> None:
    probe = good_machine()

    class Refusing(FakeProbe):
        async def run(self, *argv: str, timeout: float = 20.0) -> Output:
            if any("seccomp=" in word for word in argv):
                return Output(126, stderr="Error: crun: cannot load the filter")
            return await super().run(*argv, timeout=timeout)

    finding = await seccomp(subject(Refusing(**vars(probe))))
    assert finding.status == "failed"
    assert "cannot load the filter" in finding.detail


async def test_no_seccomp_at_all_no_runtime_and_no_report() -> None:
    finding = await seccomp(subject(good_machine(), info=info(seccompEnabled=False)))
    assert (finding.status, "not in force" in finding.detail) == ("warning", True)
    probe = good_machine()
    probe.outputs["podman", "run"] = Output(126, stderr="no")
    assert "OCI runtime" in (await seccomp(subject(probe))).detail
    probe = good_machine()
    probe.rootfs_trouble = "no space left"
    probe.files["/var/lib/agentsmith/state/oci-runtime.json"] = json.dumps(
        {"key": "podman version 5.4.2|boot-1|", "runtime": "crun"}
    )
    assert "no space left" in (await seccomp(subject(probe))).detail
