import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SCRIPT = """
import os, resource, subprocess, sys
from orchestrator.system.own_memory import close_own_memory, is_dumpable
before = is_dumpable()
close_own_memory()
look = "import sys; open(f'/proc/{sys.argv[1]}/environ', 'rb').read()"
other = subprocess.run([sys.executable, "-c", look, str(os.getpid())], capture_output=True, text=True)
fds = len(os.listdir("/proc/self/fd")) > 0 and os.path.exists("/proc/self/fd/0")
print(before, is_dumpable(), resource.getrlimit(resource.RLIMIT_CORE)[0], "PermissionError" in other.stderr, fds)
"""


def as_nobody() -> dict[str, object]:
    """For root, who may read everything."""
    return {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}


def test_a_process_of_the_same_user_cannot_read_it_and_it_can_use_its_own_descriptors() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60, **as_nobody()
    )  # type: ignore[call-overload]
    assert done.stderr == ""
    assert done.stdout.split(" ", 1)[1] == "False 0 True True\n"


def test_the_command_closes_its_memory() -> None:
    script = (
        "import orchestrator.cli.main as command\n"
        "from orchestrator.system.own_memory import is_dumpable\n"
        "command.cli.main = lambda **_: print(is_dumpable())\n"
        "command.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, done.stderr) == ("False\n", "")
