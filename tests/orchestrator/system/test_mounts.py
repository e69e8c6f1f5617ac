"""Which file system a path is on, as a mount table tells it."""

import os
from pathlib import Path

import pytest

from orchestrator.system.mounts import Mount, mount_of, parse_mounts, read_mounts
from tests.fakes.doctor import MOUNTS


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/var/lib/x", "ext4"),
        ("/run/user/1", "tmpfs"),
        ("/runner", "ext4"),
        ("/home/a b/c", "nfs4"),
        ("/twice/x", "xfs"),
    ],
)
def test_file_system_of_a_path(path: str, kind: str) -> None:
    mounts = MOUNTS + (
        "24 21 0:22 / /home/a\\040b rw - nfs4 server:/x rw\n"
        "25 21 0:23 / /twice rw - ext4 /dev/a rw\n"
        "26 25 0:24 / /twice rw shared:1 master:2 - xfs /dev/b rw\n"
        "broken line\n"
    )
    found = mount_of(Path(path), parse_mounts(mounts))
    assert found is not None
    assert found.kind == kind


def test_file_system_of_a_path_without_mounts() -> None:
    assert mount_of(Path("/x"), parse_mounts("")) is None


def test_every_field_of_a_line() -> None:
    line = "36 35 98:0 /a\\134b /mnt\\0112 ro,noatime master:1 propagate_from:2 - ext3 /dev/root rw,errors=continue"
    assert parse_mounts(line) == [
        Mount(device="98:0", root="/a\\b", point="/mnt\t2", options=frozenset({"ro", "noatime"}), kind="ext3")
    ]


def test_a_strange_name_does_not_begin_a_new_line() -> None:
    [mount] = parse_mounts("36 35 0:1 / /a\u2028b\x0cc rw - tmpfs tmpfs rw\n")
    assert mount.point == "/a\u2028b\x0cc"


def test_our_own_table_has_the_root() -> None:
    device = Path("/").stat().st_dev
    found = mount_of(Path("/"), read_mounts())
    assert found is not None
    assert (found.point, found.device) == ("/", f"{os.major(device)}:{os.minor(device)}")
