import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.seccomp import narrowed, source_of
from orchestrator.podman.runtime import write_profile

ALLOW = "SCMP_ACT_ALLOW"
CLONE = {
    "NEWNS": 0x20000,
    "NEWCGROUP": 0x02000000,
    "NEWUTS": 0x04000000,
    "NEWIPC": 0x08000000,
    "NEWUSER": 0x10000000,
    "NEWPID": 0x20000000,
    "NEWNET": 0x40000000,
}
PROFILE: dict[str, Any] = {
    "defaultAction": "SCMP_ACT_ERRNO",
    "defaultErrnoRet": 38,
    "archMap": [{"architecture": "SCMP_ARCH_X86_64"}],
    "syscalls": [
        {"names": ["bind", "socketcall", "socketpair"], "action": ALLOW, "args": []},
        {"names": ["socket"], "action": "SCMP_ACT_ERRNO", "args": [{"index": 0, "value": 16, "op": "SCMP_CMP_EQ"}]},
        {"names": ["socket"], "action": ALLOW, "args": [{"index": 2, "value": 9, "op": "SCMP_CMP_NE"}]},
        {"names": ["socket"], "action": ALLOW, "args": None, "includes": {"caps": ["CAP_AUDIT_WRITE"]}},
        {"names": ["socket", "other"], "action": ALLOW},
    ],
}


def allowed(profile: dict[str, Any], family: int, protocol: int = 0) -> bool:
    """Whether any rule lets ``socket(family, _, protocol)`` through."""
    values = {0: family, 2: protocol}
    holds = {"SCMP_CMP_EQ": lambda a, b: a == b, "SCMP_CMP_NE": lambda a, b: a != b}
    return any(
        rule["action"] == ALLOW
        and "socket" in rule["names"]
        and all(holds[argument["op"]](values[argument["index"]], argument["value"]) for argument in rule["args"] or ())
        for rule in profile["syscalls"]
    )


def test_only_families_that_namespaces_confine_are_left() -> None:
    assert allowed(PROFILE, 40), "AF_VSOCK is allowed by the profile as it is"
    ours = narrowed(PROFILE)
    assert {family for family in range(64) if allowed(ours, family)} == {1, 2, 10, 16}
    assert not allowed(ours, 16, 9), "the audit subsystem"


def test_everything_else_stays_as_it_was() -> None:
    ours = narrowed(PROFILE)
    assert {key: value for key, value in ours.items() if key != "syscalls"} == {
        key: value for key, value in PROFILE.items() if key != "syscalls"
    }
    assert ours["syscalls"][:2] == [
        {"names": ["bind", "socketpair"], "action": ALLOW, "args": []},
        {"names": ["other"], "action": ALLOW},
    ]


def test_no_namespaces_mounts_and_keys_are_to_be_had() -> None:
    names = ["clone", "clone3", "unshare", "setns", "mount", "umount2", "fsopen", "keyctl", "add_key", "fork"]
    rule = {"names": names, "action": ALLOW, "args": []}
    admin = {"names": ["setns"], "action": ALLOW, "includes": {"caps": ["CAP_SYS_ADMIN"]}}
    ours = narrowed({**PROFILE, "syscalls": [rule, admin]})
    assert ours["syscalls"][0] == {**rule, "names": ["fork"]}
    left = [rule for rule in ours["syscalls"][1:] if rule["names"] != ["socket"]]
    assert [(rule["names"], rule["action"]) for rule in left] == [(["clone"], ALLOW), (["clone"], ALLOW)]
    for rule, index in zip(left, (0, 1), strict=True):
        (argument,) = rule["args"]
        assert (argument["index"], argument["op"]) == (index, "SCMP_CMP_MASKED_EQ")
        for flag, value in CLONE.items():
            assert value & argument["value"], flag
        assert argument["valueTwo"] == 0
        assert 0x003D0F00 & argument["value"] == 0, "what threads are made with"
    assert left[0]["excludes"] == left[1]["includes"] == {"arches": ["s390", "s390x"]}


def test_clone3_is_said_not_to_be_there_so_that_clone_is_used() -> None:
    older = {key: value for key, value in PROFILE.items() if key != "defaultErrnoRet"}
    assert narrowed(older)["syscalls"][-1] == {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38}
    assert "clone3" not in str(narrowed(PROFILE))


def test_the_profile_is_written_in_place_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "default.json").write_text(json.dumps(PROFILE))
    for _ in range(2):
        path = write_profile(str(tmp_path / "default.json"), tmp_path / "run")
        assert path == str(tmp_path / "run" / "seccomp.json")
        assert json.loads(Path(path).read_text()) == narrowed(PROFILE)
    assert [entry.name for entry in (tmp_path / "run").iterdir()] == ["seccomp.json"]


@pytest.mark.parametrize(
    "text",
    [None, "no json", "[]", "{}", json.dumps({**PROFILE, "defaultAction": ALLOW}), json.dumps({"syscalls": [1]})],
)
def test_a_profile_that_cannot_be_used_is_said_to_be_so(
    tmp_path: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "default.json"
    if text is not None:
        source.write_text(text)
    assert write_profile(str(source), tmp_path / "run") is None
    assert "containers get it as it is" in caplog.text


@pytest.mark.parametrize("configured", ["unconfined", "", None])
def test_a_podman_that_is_told_to_go_without_one_gets_ours_all_the_same(configured: str | None) -> None:
    assert source_of(configured) == "/usr/share/containers/seccomp.json"
    assert source_of("/etc/other.json") == "/etc/other.json"
