"""The small file system of the tests that fill a disk, where there can be none.  tests/podman/test_full_disk.py uses it."""

import getpass
import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "small_disk"


def test_a_machine_without_the_tools_gets_the_reason_and_nothing_is_left(tmp_path: Path) -> None:
    argv = ["/usr/bin/python3", "-IB", str(SCRIPT)]
    who = [getpass.getuser(), str(os.getpid())]
    made = subprocess.run(
        [*argv, "make", *who], env={"PATH": str(tmp_path)}, check=False, capture_output=True, text=True, timeout=60
    )
    assert (made.returncode, made.stdout) == (1, "")
    assert made.stderr.endswith("no small file system can be mounted: mkfs.ext4: No such file or directory\n")
    assert not list(Path("/var/tmp").glob(f"podmentor-disk-{who[0]}.{who[1]}-*"))
    removed = subprocess.run([*argv, "remove", *who], check=False, capture_output=True, text=True, timeout=60)
    assert (removed.returncode, removed.stderr) == (0, ""), "what is not there is removed"
