import os
import subprocess
import sys

from orchestrator.relay.control.spawn import ROOT

SCRIPT = """
import os, resource, subprocess, sys
from orchestrator.relay.process.hardening import dumpable, harden
before = dumpable()
harden()
look = "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read()"
seen = subprocess.run([sys.executable, "-c", look, str(os.getpid())], capture_output=True, text=True)
print(before, dumpable(), resource.getrlimit(resource.RLIMIT_CORE), oct(os.umask(0)), "PermissionError" in seen.stderr)
"""


def test_a_process_of_the_same_user_cannot_read_a_hardened_one() -> None:
    user = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60, **user
    )  # type: ignore[call-overload]
    assert done.stderr == ""
    assert done.stdout.split(" ", 2)[1:] == ["False", "(0, 0) 0o77 True\n"]
