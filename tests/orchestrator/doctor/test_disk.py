from dataclasses import replace

import pytest

from orchestrator.doctor import disk
from tests.fakes.doctor import MOUNTS, OURS, STATE, USER, good_info, good_machine, subject

GIB = disk.GIB


@pytest.mark.parametrize(
    ("free", "inodes", "status"),
    [
        (6 * GIB, None, "ok"),
        (4 * GIB, None, "warning"),
        (6 * GIB, 100, "warning"),
        (GIB // 2, None, "failed"),
    ],
)
@pytest.mark.parametrize("place", [str(STATE), "/var/lib/agentsmith/storage"])
async def test_disk_space(free: int, inodes: int | None, status: str, place: str) -> None:
    probe = good_machine()
    probe.paths[place] = replace(OURS, free_bytes=free, free_inodes=inodes)
    finding = await disk.disk_space(subject(probe))
    assert finding.status == status
    assert (finding.fix is None) == (status == "ok")


async def test_a_warning_does_not_hide_a_failure() -> None:
    probe = good_machine()
    probe.paths[str(STATE)] = replace(OURS, free_bytes=GIB // 2)
    probe.paths["/var/lib/agentsmith/storage"] = replace(OURS, free_bytes=3 * GIB)
    assert (await disk.disk_space(subject(probe))).status == "failed"


async def test_disk_space_before_the_first_use_is_that_of_the_place_above() -> None:
    probe, info = good_machine(), good_info()
    del probe.paths[str(STATE)]
    info["store"]["graphRoot"] = "/var/lib/agentsmith/not/yet"
    probe.paths["/var/lib/agentsmith"] = replace(OURS, free_bytes=2 * GIB)
    finding = await disk.disk_space(subject(probe, info=info))
    assert finding.status == "warning"
    assert finding.detail.startswith("2.0 GiB free for state; 2.0 GiB")


@pytest.mark.parametrize(
    ("change", "fix"),
    [
        ({"mode": 0o755}, f"chmod 0700 {STATE}"),
        ({"uid": 0}, f"sudo chown -R {USER} {STATE}"),
        ({"writable": False}, f"sudo chown -R {USER} {STATE}"),
        ({"is_dir": False}, f"mv {STATE} {STATE}.old"),
    ],
)
async def test_state_directory_failed(change: dict[str, int], fix: str) -> None:
    probe = good_machine()
    probe.paths[str(STATE)] = replace(OURS, **change)  # type: ignore[arg-type]  # a table of any field
    finding = await disk.state_directory(subject(probe))
    assert (finding.status, finding.fix) == ("failed", fix)


async def test_state_directory_is_good_before_and_after_its_first_use() -> None:
    probe = good_machine()
    assert (await disk.state_directory(subject(probe))).status == "ok"
    del probe.paths[str(STATE)]
    assert (await disk.state_directory(subject(probe))).status == "ok"
    probe.paths["/var/lib/agentsmith"] = replace(OURS, writable=False)
    finding = await disk.state_directory(subject(probe))
    assert finding.status == "failed"
    assert f"-o {USER} {STATE}" in str(finding.fix)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("ext4", "ok"),
        ("btrfs", "ok"),
        ("nfs4", "failed"),
        ("fuse.sshfs", "failed"),
        ("overlay", "failed"),
        ("tmpfs", "warning"),
    ],
)
async def test_state_on_a_file_system(kind: str, status: str) -> None:
    probe = good_machine()
    probe.files["/proc/self/mountinfo"] = f"{MOUNTS}30 21 0:40 / {STATE.parent} rw - {kind} thing rw\n"
    finding = await disk.state_directory(subject(probe))
    assert finding.status == status
    assert (finding.fix is None) == (status == "ok")


async def test_conversations_on_a_file_system_of_their_own() -> None:
    probe = good_machine()
    probe.paths[str(STATE / "subagents")] = replace(OURS, device=2)
    finding = await disk.state_directory(subject(probe))
    assert (finding.status, finding.fix) == ("warning", f"findmnt -T {STATE}/subagents")
