from __future__ import annotations

import json
from typing import Any

import pytest

from orchestrator.config.models import Config, Paths, PodmanConfig
from orchestrator.doctor import runtime
from orchestrator.doctor.probe import Output
from orchestrator.doctor.runtime import seccomp
from tests.fakes.doctor import RUNTIME, SECCOMP, STATE, FakeProbe, good_info, good_machine, subject

PATHS = Paths(state_dir=STATE, runtime_dir=RUNTIME)
HYBRID = Output(126, stderr="warning\nError: OCI runtime error: crun: cgroups in hybrid mode not supported\n")
RUNC = Config(podman=PodmanConfig(runtime="runc"))
CRUN = Config(podman=PodmanConfig(runtime="crun"))


def hybrid_machine() -> FakeProbe:
    """crun refuses, runc works."""
    probe = good_machine()
    probe.outputs["podman", "crun", "run"] = HYBRID
    return probe


def tried(probe: FakeProbe) -> list[str]:
    return [argv[argv.index("--runtime") + 1] for argv in probe.ran if "--runtime" in argv]


async def test_the_first_that_runs_a_container_is_taken() -> None:
    probe = good_machine()
    assert await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe) == "crun"
    assert tried(probe) == ["crun"]


async def test_the_next_is_tried_and_the_leftover_of_the_first_removed() -> None:
    probe = hybrid_machine()
    assert await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe) == "runc"
    assert tried(probe) == ["crun", "runc"]
    [failed_run] = [argv for argv in probe.ran if "crun" in argv]
    name = failed_run[failed_run.index("--name") + 1]
    assert ("podman", "rm", "--force", name) in probe.ran
    assert probe.made == []  # the root file system is removed


async def test_the_try_is_as_hardened_as_a_run() -> None:
    probe = good_machine()
    await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe)
    [argv] = [argv for argv in probe.ran if "run" in argv]
    assert {
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--network=none",
        "--init",
        "--userns=keep-id:uid=1000,gid=1000",
    } <= set(argv)


async def test_nothing_works() -> None:
    probe = good_machine()
    probe.outputs["podman", "run"] = HYBRID
    assert await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe) is None
    assert str(STATE / "oci-runtime.json") not in probe.files


async def test_configured_runtime_is_the_only_candidate() -> None:
    assert await runtime.working_runtime(config=RUNC, paths=PATHS, probe=good_machine()) == "runc"
    assert await runtime.working_runtime(config=CRUN, paths=PATHS, probe=hybrid_machine()) is None


async def test_the_answer_is_remembered() -> None:
    probe = hybrid_machine()
    await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe)
    probe.ran.clear()
    assert await runtime.working_runtime(config=Config(), paths=PATHS, probe=probe) == "runc"
    assert tried(probe) == []


@pytest.mark.parametrize("change", ["boot", "podman", "config", "gone", "garbage", "shape", "no boot id"])
async def test_the_memory_does_not_outlive_what_it_was_made_on(change: str) -> None:
    probe, config = good_machine(), Config()
    await runtime.working_runtime(config=config, paths=PATHS, probe=probe)
    probe.ran.clear()
    memory = str(STATE / "oci-runtime.json")
    if change == "boot":
        probe.files["/proc/sys/kernel/random/boot_id"] = "boot-2\n"
    elif change == "podman":
        probe.outputs["podman", "--version"] = Output(0, "podman version 5.5.0\n")
    elif change == "config":
        config = RUNC
    elif change == "gone":
        probe.commands.discard("crun")
    elif change == "garbage":
        probe.files[memory] = "{"
    elif change == "shape":
        probe.files[memory] = json.dumps({"runtime": "crun"})
    else:
        del probe.files["/proc/sys/kernel/random/boot_id"]
    assert await runtime.working_runtime(config=config, paths=PATHS, probe=probe) is not None
    assert len(tried(probe)) == 1


async def test_finding_names_the_working_one_and_what_the_other_said() -> None:
    probe = hybrid_machine()
    probe.files[str(STATE / "oci-runtime.json")] = "stale"
    finding = await runtime.oci_runtime(subject(probe))
    assert finding.status == "ok"
    assert finding.detail.startswith(
        "runc runs a container (crun fails: Error: OCI runtime error: crun: cgroups in hybrid"
    )
    assert json.loads(probe.files[str(STATE / "oci-runtime.json")])["runtime"] == "runc"


async def test_finding_when_nothing_is_installed_or_only_the_wrong_one() -> None:
    probe = hybrid_machine()
    probe.commands -= {"runc", "crun"}
    finding = await runtime.oci_runtime(subject(probe))
    assert (finding.status, finding.fix) == ("failed", "sudo apt-get install -y runc")
    probe.commands.add("crun")
    finding = await runtime.oci_runtime(subject(probe))
    assert (finding.status, finding.fix) == ("failed", "sudo apt-get install -y runc")
    assert "hybrid" in finding.detail


async def test_finding_when_the_configured_one_fails() -> None:
    finding = await runtime.oci_runtime(subject(hybrid_machine(), config=CRUN))
    assert finding.status == "failed"
    assert finding.detail.startswith("podman.runtime is set, but crun fails")


async def test_finding_when_there_is_no_place_for_a_root_file_system() -> None:
    probe = good_machine()
    probe.rootfs_trouble = "/var: Permission denied"
    finding = await runtime.oci_runtime(subject(probe))
    assert finding.status == "failed"
    assert "Permission denied" in finding.detail


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
