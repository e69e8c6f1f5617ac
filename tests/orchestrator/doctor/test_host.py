from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.config.models import Config, Paths
from orchestrator.config.paths import LONGEST_SOCKET
from orchestrator.doctor import host
from orchestrator.doctor.probe import Output
from orchestrator.system.socket_paths import SOCKET_PATH_MAX
from tests.fakes.doctor import OURS, RUNTIME, STATE, USER, good_info, good_machine, subject


async def test_user_namespaces() -> None:
    assert (await host.user_namespaces(subject(good_machine()))).status == "ok"


async def test_root_is_refused() -> None:
    probe = good_machine()
    probe.uid = 0
    finding = await host.user_namespaces(subject(probe))
    assert finding.status == "failed"
    assert "scripts/podmentor" in str(finding.fix)


@pytest.mark.parametrize(
    ("file", "fix"),
    [
        ("/proc/sys/user/max_user_namespaces", "user.max_user_namespaces=65536"),
        ("/proc/sys/kernel/unprivileged_userns_clone", "kernel.unprivileged_userns_clone=1"),
    ],
)
async def test_user_namespaces_switched_off(file: str, fix: str) -> None:
    probe = good_machine()
    probe.files[file] = "0\n"
    finding = await host.user_namespaces(subject(probe))
    assert finding.status == "failed"
    assert fix in str(finding.fix)


@pytest.mark.parametrize(("restricted", "status"), [("1\n", "warning"), ("0\n", "failed"), (None, "failed")])
async def test_user_namespaces_refused(restricted: str | None, status: str) -> None:
    probe = good_machine()
    probe.outputs["unshare", "--user"] = Output(1, stderr="unshare: unshare failed: Operation not permitted\n")
    if restricted:
        probe.files["/proc/sys/kernel/apparmor_restrict_unprivileged_userns"] = restricted
    finding = await host.user_namespaces(subject(probe))
    assert finding.status == status
    assert finding.fix


async def test_subordinate_ids() -> None:
    finding = await host.subordinate_ids(subject(good_machine()))
    assert (finding.status, finding.detail) == ("ok", f"65536 for {USER}")


async def test_subordinate_ids_by_number_in_two_ranges() -> None:
    probe = good_machine()
    probe.files["/etc/subuid"] = f"other:1:65536\n999:200000:30000\n{USER}:300000:35536\n"
    assert (await host.subordinate_ids(subject(probe))).status == "ok"


async def test_subordinate_ids_from_a_directory_service() -> None:
    probe = good_machine()
    probe.files["/etc/subuid"] = probe.files["/etc/subgid"] = ""
    probe.outputs["getsubids",] = Output(0, f"0: {USER} 200000 65536\n")
    assert (await host.subordinate_ids(subject(probe))).status == "ok"


async def test_too_few_subordinate_ids_gives_a_free_range() -> None:
    probe = good_machine()
    probe.files["/etc/subuid"] = "other:100000:65536\n"
    probe.files["/etc/subgid"] = f"{USER}:165536:100\n"
    finding = await host.subordinate_ids(subject(probe))
    assert finding.status == "failed"
    assert "0 in subuid, 100 in subgid" in finding.detail
    assert str(finding.fix).startswith(
        f"sudo usermod --add-subuids 231072-296607 --add-subgids 231072-296607 {USER} && podman"
    )


async def test_only_what_is_missing_is_added() -> None:
    probe = good_machine()
    probe.files["/etc/subgid"] = ""
    fix = str((await host.subordinate_ids(subject(probe))).fix)
    assert "--add-subgids" in fix
    assert "--add-subuids" not in fix


async def test_missing_and_powerless_id_mapper() -> None:
    probe = good_machine()
    probe.commands.discard("newgidmap")
    finding = await host.subordinate_ids(subject(probe))
    assert (finding.status, finding.fix) == ("failed", "sudo apt-get install -y uidmap")
    probe = good_machine()
    probe.paths["/usr/bin/newuidmap"] = replace(probe.paths["/usr/bin/newuidmap"], privileged=False)
    finding = await host.subordinate_ids(subject(probe))
    assert (finding.status, finding.fix) == ("failed", "sudo chmod u+s /usr/bin/newuidmap")


@pytest.mark.parametrize("answer", [Output(0, "0 999 1\n"), Output(125, stderr="cannot set up namespace\n")])
async def test_ids_that_podman_does_not_use_yet(answer: Output) -> None:
    probe = good_machine()
    probe.outputs["podman", "unshare"] = answer
    finding = await host.subordinate_ids(subject(probe))
    assert (finding.status, finding.fix) == ("failed", "podman system migrate")


@pytest.mark.parametrize(
    ("path", "change", "fix"),
    [
        ("/run/user/999", None, f"sudo install -d -m 0700 -o {USER} /run/user/999"),
        ("/run/user/999", {"uid": 0}, f"sudo install -d -m 0700 -o {USER} /run/user/999"),
        ("/run/user/999", {"mode": 0o755}, "chmod 0700 /run/user/999"),
        (str(RUNTIME), {"mode": 0o770}, f"chmod 0700 {RUNTIME}"),
        (str(RUNTIME), {"is_dir": False}, f"mv {RUNTIME} {RUNTIME}.old"),
    ],
)
async def test_runtime_directory_failed(path: str, change: dict[str, int] | None, fix: str) -> None:
    probe = good_machine()
    if change is None:
        del probe.paths[path]
    else:
        probe.paths[path] = replace(OURS, **change)  # type: ignore[arg-type]  # a table of any field
    finding = await host.runtime_directory(subject(probe))
    assert (finding.status, finding.fix) == ("failed", fix)


async def test_runtime_directory_is_good_before_and_after_its_first_use() -> None:
    probe = good_machine()
    assert (await host.runtime_directory(subject(probe))).status == "ok"
    probe.paths[str(RUNTIME)] = OURS
    assert (await host.runtime_directory(subject(probe))).status == "ok"


async def test_podman_without_a_runtime_directory() -> None:
    info = good_info()
    info["store"]["runRoot"] = "/tmp/containers-user-999/containers"
    finding = await host.runtime_directory(subject(good_machine(), info=info))
    assert (finding.status, finding.fix) == ("warning", "export XDG_RUNTIME_DIR=/run/user/999")


@pytest.mark.parametrize(("extra", "status"), [(0, "ok"), (1, "failed")])
async def test_socket_path_limit(extra: int, status: str) -> None:
    longest = SOCKET_PATH_MAX - len(LONGEST_SOCKET) - len("/")
    directory = Path("/" + "d" * (longest - 1 + extra))
    finding = await host.socket_paths(
        subject(good_machine(), paths=Paths(state_dir=STATE, runtime_dir=directory)),
    )
    assert finding.status == status


async def test_init_program() -> None:
    probe = good_machine()
    assert (await host.init_program(subject(probe))).status == "ok"
    del probe.paths["/usr/libexec/podman/catatonit"]
    assert (await host.init_program(subject(probe))).fix == "sudo apt-get install -y catatonit"
    probe.commands.add("catatonit")
    assert (await host.init_program(subject(probe))).detail == "/usr/bin/catatonit"


@pytest.mark.parametrize(
    ("enforce", "labels", "status"),
    [(None, True, "ok"), ("0", True, "ok"), ("1", False, "ok"), ("1", True, "warning")],
)
async def test_selinux(enforce: str | None, labels: bool, status: str) -> None:
    probe, info = good_machine(), good_info()
    if enforce:
        probe.files["/sys/fs/selinux/enforce"] = enforce
    info["host"]["security"]["selinuxEnabled"] = labels
    finding = await host.selinux(subject(probe, info=info))
    assert finding.status == status
    assert (finding.fix is not None) == (status != "ok")


async def test_linger() -> None:
    probe = good_machine()
    assert (await host.linger(subject(probe))).status == "ok"
    del probe.paths[f"/var/lib/systemd/linger/{USER}"]
    finding = await host.linger(subject(probe))
    assert (finding.status, finding.fix) == ("warning", f"sudo loginctl enable-linger {USER}")
    del probe.paths["/run/systemd/system"]
    assert (await host.linger(subject(probe))).status == "ok"


async def test_inotify_limits() -> None:
    finding = await host.inotify(subject(good_machine()))
    assert (finding.status, finding.detail) == ("ok", "instances 128, watches 65536")


@pytest.mark.parametrize(
    ("file", "value", "runs", "fix"),
    [
        ("max_user_instances", "64", 8, "fs.inotify.max_user_instances=320"),
        ("max_user_instances", "128", 32, "fs.inotify.max_user_instances=1088"),
        ("max_user_watches", "4096", 1, "fs.inotify.max_user_watches=32768"),
    ],
)
async def test_inotify_limits_that_are_low_for_the_runs(file: str, value: str, runs: int, fix: str) -> None:
    probe = good_machine()
    probe.files[f"/proc/sys/fs/inotify/{file}"] = f"{value}\n"
    config = Config.model_validate({"runs": {"max_concurrent": runs}})
    finding = await host.inotify(subject(probe, config=config))
    assert finding.status == "warning"
    assert f"fs.inotify.{file} is {value}" in finding.detail
    assert str(finding.fix).startswith(f"printf '{fix}\\n' | sudo tee /etc/sysctl.d/")


async def test_inotify_limits_that_the_kernel_does_not_show() -> None:
    probe = good_machine()
    for file in ("max_user_instances", "max_user_watches"):
        del probe.files[f"/proc/sys/fs/inotify/{file}"]
    assert (await host.inotify(subject(probe))).status == "ok"
