"""Every hardening flag has a row here: take the flag out of spec.py and its row fails."""

import dataclasses
import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.contract.sandbox import SandboxSpec, WorkspaceMount
from orchestrator.errors import InvalidRequestError
from orchestrator.podman.spec import LOG_SIZE, HostFacts, create_payload

IMAGE = "ab" * 32
OVERLAY = WorkspaceMount(
    mode="overlay", source=Path("/srv/repo"), upper=Path("/var/lib/p/upper"), work=Path("/var/lib/p/work")
)
SPEC = SandboxSpec(
    sandbox_id="sb-1",
    run_id="run-1",
    instance="inst-1",
    backend="claude-code",
    image_id=IMAGE,
    argv=["podmentor-entry", "claude", "--print"],
    env={"HOME": "/home/agent"},
    tier=1,
    workspace=OVERLAY,
    home=Path("/var/lib/p/home"),
    control_dir=Path("/run/p/run-1"),
    log_path=Path("/var/lib/p/runs/run-1/ctr.log"),
    memory_max_bytes=1 << 30,
    memory_by_cgroup=False,
    pids_max=256,
    cpus=1.5,
    kill_after_seconds=600,
)
V2 = HostFacts(podman_version=(5, 4, 2), controllers=frozenset({"cpu", "memory", "pids"}), network_helper="pasta")


def payload(spec: SandboxSpec = SPEC, host: HostFacts | None = None, **changes: Any) -> dict[str, Any]:
    return create_payload(dataclasses.replace(spec, **changes), host=host or HostFacts())


def mount(made: dict[str, Any], destination: str) -> dict[str, Any]:
    (found,) = [m for m in made["mounts"] if m["destination"] == destination]
    assert isinstance(found, dict)
    return found


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("cap_drop", ["all"]),
        ("cap_add", []),
        ("privileged", False),
        ("no_new_privileges", True),
        ("seccomp_policy", "default"),
        ("read_only_filesystem", True),
        ("image_volume_mode", "ignore"),
        ("init", True),
        ("systemd", "false"),
        ("terminal", False),
        ("stdin", False),
        ("env_host", False),
        ("httpproxy", False),
        ("user", "1000:1000"),
        ("userns", {"nsmode": "keep-id", "value": "uid=1000,gid=1000"}),
        ("netns", {"nsmode": "none"}),
        ("pidns", {"nsmode": "private"}),
        ("ipcns", {"nsmode": "private"}),
        ("utsns", {"nsmode": "private"}),
        ("cgroupns", {"nsmode": "private"}),
        ("hostname", "podmentor"),
        ("image", IMAGE),
        ("work_dir", "/workspace"),
        ("restart_policy", "no"),
        ("timeout", 600),
        ("stop_timeout", 2),
        ("healthconfig", {"Test": ["NONE"]}),
        ("sdnotifyMode", "ignore"),
        ("name", "podmentor-sb-1"),
    ],
)
def test_every_container_is_made_like_this(key: str, value: object) -> None:
    assert payload()[key] == value


def test_the_command_replaces_what_the_image_would_run() -> None:
    made = payload()
    assert (made["entrypoint"], made["command"]) == (["podmentor-entry"], ["claude", "--print"])


def test_the_log_goes_to_the_run_s_file_and_is_never_cut() -> None:
    assert payload()["log_configuration"] == {
        "driver": "k8s-file",
        "path": "/var/lib/p/runs/run-1/ctr.log",
        "size": LOG_SIZE,
    }
    assert LOG_SIZE > 1 << 60  # 0 would let containers.conf set a limit


def test_labels_name_instance_run_sandbox_and_backend() -> None:
    assert payload()["labels"] == {
        "podmentor.run_id": "run-1",
        "podmentor.instance": "inst-1",
        "podmentor.sandbox_id": "sb-1",
        "podmentor.backend": "claude-code",
    }


def test_no_host_path_but_home_control_dir_and_workspace() -> None:
    made = payload()
    assert {m["source"] for m in made["mounts"] if m["type"] != "tmpfs"} == {"/var/lib/p/home", "/run/p/run-1"}
    assert [v["source"] for v in made["overlay_volumes"]] == ["/srv/repo"]
    assert not {"volumes", "devices", "secrets", "secret_env", "image_volumes"} & made.keys()


@pytest.mark.parametrize("destination", ["/tmp", "/dev/shm"])
def test_scratch_is_tmpfs_without_suid_and_devices_and_bounded(destination: str) -> None:
    found = mount(payload(), destination)
    assert found["type"] == "tmpfs"
    assert {"rw", "nosuid", "nodev", "mode=1777"} <= set(found["options"])
    assert any(option.startswith("size=") for option in found["options"])


@pytest.mark.parametrize(("memory", "size"), [(1 << 30, 1 << 29), (1 << 20, 64 << 20), (64 << 30, 1 << 30)])
def test_tmp_is_half_of_the_memory_within_bounds(memory: int, size: int) -> None:
    assert f"size={size}" in mount(payload(memory_max_bytes=memory), "/tmp")["options"]


def test_home_is_writable_without_suid_and_devices() -> None:
    found = mount(payload(), "/home/agent")
    assert {"rw", "nosuid", "nodev", "rprivate"} <= set(found["options"])


def test_the_control_dir_is_read_only_with_all_that_is_in_it() -> None:
    options = mount(payload(), "/run/podmentor")["options"]
    assert {"bind", "ro", "nosuid", "nodev", "rprivate"} <= set(options)
    assert not {"rbind", "rw"} & set(options)


def test_an_overlay_workspace_keeps_its_changes_in_upper() -> None:
    assert payload()["overlay_volumes"] == [
        {
            "destination": "/workspace",
            "source": "/srv/repo",
            "options": ["upperdir=/var/lib/p/upper", "workdir=/var/lib/p/work"],
        }
    ]


@pytest.mark.parametrize(("mode", "option"), [("direct", "rw"), ("readonly", "ro")])
def test_a_bound_workspace(mode: Literal["direct", "readonly"], option: str) -> None:
    made = payload(workspace=WorkspaceMount(mode=mode, source=Path("/srv/a, b:c")))
    found = mount(made, "/workspace")
    assert found["source"] == "/srv/a, b:c"
    assert option in found["options"]
    assert {"nosuid", "nodev"} <= set(found["options"])
    assert made["overlay_volumes"] == []


def test_a_read_only_workspace_is_not_bound_recursively() -> None:
    """A mount below it would stay writable."""
    options = mount(payload(workspace=WorkspaceMount(mode="readonly", source=Path("/srv/r"))), "/workspace")["options"]
    assert "rbind" not in options


# --- network ---


@pytest.mark.parametrize("helper", ["slirp4netns", "pasta"])
def test_tier_0_names_the_rootless_network(helper: Literal["slirp4netns", "pasta"]) -> None:
    assert payload(tier=0, host=HostFacts(network_helper=helper))["netns"] == {"nsmode": helper}


def test_the_host_s_network_only_for_tier_0() -> None:
    assert payload(tier=0, host_network=True)["netns"] == {"nsmode": "host"}
    with pytest.raises(InvalidRequestError, match="tier 0"):
        payload(tier=1, host_network=True)


# --- limits ---


def test_memory_and_swap_only_where_the_cgroup_enforces_it() -> None:
    assert payload(memory_by_cgroup=True, host=V2)["resource_limits"]["memory"] == {"limit": 1 << 30, "swap": 1 << 30}
    assert "memory" not in payload(host=V2)["resource_limits"]


def test_pids_and_cpus_where_there_is_a_controller() -> None:
    limits = payload(host=V2)["resource_limits"]
    assert limits["pids"] == {"limit": 256}
    assert limits["cpu"] == {"quota": 150_000, "period": 100_000}
    assert payload()["resource_limits"] == {}  # would be refused, or ignored with a warning
    assert "cpu" not in payload(host=V2, cpus=None)["resource_limits"]


def test_processes_are_limited_per_user_namespace_where_the_kernel_counts_so() -> None:
    assert {"type": "nproc", "soft": 256, "hard": 256} in payload(host=HostFacts(nproc_per_userns=True))["r_limits"]
    assert [limit["type"] for limit in payload()["r_limits"]] == ["core"]


@pytest.mark.parametrize(("ours", "files"), [(20_000, 10_000), (1024, 512), (1 << 20, 65_536)])
def test_a_container_may_open_half_as_many_files_as_we(ours: int, files: int) -> None:
    limit = {"type": "nofile", "soft": files, "hard": files}
    assert limit in payload(host=HostFacts(open_files=ours))["r_limits"]


def test_no_core_dumps() -> None:
    assert {"type": "core", "soft": 0, "hard": 0} in payload()["r_limits"]


def test_selinux_labels_are_off_only_where_selinux_is_on() -> None:
    assert payload(host=HostFacts(selinux=True))["selinux_opts"] == ["disable"]
    assert "selinux_opts" not in payload()


def test_a_seccomp_profile_of_ours_is_used_where_there_is_one() -> None:
    assert (
        payload(host=HostFacts(seccomp_profile="/run/x/seccomp.json"))["seccomp_profile_path"] == "/run/x/seccomp.json"
    )
    assert "seccomp_profile_path" not in payload()


def test_the_oci_runtime_is_asked_for_when_it_is_known() -> None:
    assert payload(host=HostFacts(oci_runtime="runc"))["oci_runtime"] == "runc"
    assert "oci_runtime" not in payload()


# --- what is refused ---


@pytest.mark.parametrize(
    "changes",
    [
        {"image_id": "localhost/podmentor/claude-code:current"},
        {"image_id": "sha256:" + IMAGE},
        {"image_id": IMAGE + "\n"},
        {"sandbox_id": "a b"},
        {"sandbox_id": "../x"},
        {"sandbox_id": ""},
        {"argv": []},
        {"argv": [""]},
        {"argv": ["a\0b"]},
        {"argv": ["a\ud800b"]},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"A": "b\0c"}},
        {"home": Path("home")},
        {"home": Path("/")},
        {"home": Path("/var/../etc")},
        {"control_dir": Path("/run/a\nb")},
        {"log_path": Path("/var/a:b/ctr.log")},
        {"workspace": dataclasses.replace(OVERLAY, source=Path("/srv/a:b"))},
        {"workspace": dataclasses.replace(OVERLAY, source=Path("/srv/a,upperdir=/etc"))},
        {"workspace": dataclasses.replace(OVERLAY, source=Path("/srv/a\\b"))},
        {"workspace": dataclasses.replace(OVERLAY, upper=Path("/srv/a,b"))},
        {"workspace": dataclasses.replace(OVERLAY, work=Path("relative"))},
        {"workspace": dataclasses.replace(OVERLAY, upper=None)},
        {"workspace": dataclasses.replace(OVERLAY, work=None)},
        {"memory_max_bytes": 0},
        {"pids_max": 0},
        {"pids_max": -1},
        {"cpus": 0.0},
        {"kill_after_seconds": 0},
    ],
)
def test_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError):
        payload(**changes)


# --- hostile text stays data ---

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))


@given(
    st.lists(TEXT, min_size=1).filter(lambda words: words[0] != ""),
    st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), TEXT),
    TEXT,
)
def test_argv_environment_and_labels_come_back_as_they_were_and_change_nothing_else(
    argv: list[str], env: dict[str, str], label: str
) -> None:
    made = json.loads(json.dumps(payload(argv=argv, env=env, run_id=label)))
    assert made["entrypoint"] + made["command"] == argv
    assert made["env"] == env
    assert made["labels"]["podmentor.run_id"] == label
    rest = {k: v for k, v in made.items() if k not in {"entrypoint", "command", "env", "labels"}}
    assert rest == {k: v for k, v in payload().items() if k in rest}


@given(st.text(max_size=30))
def test_a_source_path_is_mounted_as_it_is_or_refused(name: str) -> None:
    path = Path("/srv") / name
    try:
        made = payload(workspace=dataclasses.replace(OVERLAY, source=path))
    except InvalidRequestError:
        return
    (volume,) = made["overlay_volumes"]
    assert volume["source"] == str(path)
    assert not set(volume["source"]) & set(':,\\"\n\0')
    assert len(volume["options"]) == 2


def test_a_person_at_a_terminal_gets_one_and_is_not_logged() -> None:
    made, usual = payload(interactive=True), payload()
    assert (made["terminal"], made["stdin"]) == (True, True)
    assert made["log_configuration"] == {"driver": "none"}
    differing = {key for key in made if made[key] != usual[key]}
    assert differing == {"terminal", "stdin", "log_configuration"}


def test_shared_memory_without_a_process_goes_where_the_kernel_lets_us_say_so() -> None:
    assert payload(host=HostFacts(ipc_sysctls=True))["sysctl"] == {"kernel.shm_rmid_forced": "1"}
    assert payload(host=HostFacts(ipc_sysctls=False))["sysctl"] == {}
