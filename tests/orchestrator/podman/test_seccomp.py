import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.seccomp import narrowed, source_of
from orchestrator.podman.seccomp import write_profile

ALLOW = "SCMP_ACT_ALLOW"
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
        rule["action"] == ALLOW and "socket" in rule["names"]
        and all(holds[argument["op"]](values[argument["index"]], argument["value"]) for argument in rule["args"] or ())
        for rule in profile["syscalls"]
    )  # fmt: skip


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
        {"names": ["bind", "socketpair"], "action": ALLOW, "args": []}, {"names": ["other"], "action": ALLOW},
    ]  # fmt: skip


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
