"""Runs in the guest as its ordinary user: says what is there, then runs the tests.

Its exit code is pytest's; 1 as well when a test was skipped, since this is the place for those that are skipped elsewhere.
"""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

SHARE = Path("/share")
SOURCE = Path.home() / "podmentor"
INFO = (
    'cgroup {{.Host.CgroupsVersion}}, {{.Host.CgroupManager}}, delegated: {{join .Host.CgroupControllers " "}};'
    " default runtime {{.Host.OCIRuntime.Name}}, storage {{.Store.GraphDriverName}}"
)


def said(*argv: str) -> str:
    """The first line of a command's output."""
    done = subprocess.run(argv, check=False, capture_output=True, text=True)
    return (done.stdout.strip() or done.stderr.strip() or f"exit {done.returncode}").splitlines()[0]


def delegated() -> str:
    """The controllers of the cgroup that this runs in."""
    own = Path("/proc/self/cgroup").read_text().strip().removeprefix("0::/")
    return (Path("/sys/fs/cgroup") / own / "cgroup.controllers").read_text().strip()


def skipped(report: Path) -> list[str]:
    """The tests that a JUnit report has as skipped."""
    cases = ET.parse(report).iter("testcase") if report.exists() else ()
    return [f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None]


def main() -> int:
    order = json.loads((SHARE / "order.json").read_text())
    facts = {
        "system": said("sh", "-c", '. /etc/os-release; echo "$PRETTY_NAME"'),
        "kernel": os.uname().release,
        "systemd": said("systemctl", "--version").removeprefix("systemd "),
        "Podman": said("podman", "version", "--format={{.Client.Version}}"),
        "crun": said("crun", "--version").removeprefix("crun version "),
        "runc": said("runc", "--version").removeprefix("runc version "),
        "conmon": said("conmon", "--version").removeprefix("conmon version "),
        "Python": sys.version.split()[0],
        "session": f"controllers {delegated()}",
        "Podman's view": said("podman", "info", f"--format={INFO}"),
    }
    for name, value in facts.items():
        print(f"    {name}: {value}")
    SOURCE.mkdir()
    subprocess.run(["tar", "-xf", SHARE / "source.tar", "-C", SOURCE], check=True)
    # beside the source: the entry points of the installed project
    env = os.environ | {
        "PYTHONPATH": f"{SOURCE}:/share/site",
        "PATH": f"/opt/venv/bin:{os.environ['PATH']}:/usr/sbin:/sbin",
        "COLUMNS": "120",
    }
    report = SHARE / "junit.xml"
    files = Path.home() / "tests"  # /tmp may be in memory, which is no place for state
    pytest = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--junit-xml={report}", f"--basetemp={files}"]
    pytest += order["pytest"]
    code = subprocess.run(pytest, check=False, cwd=SOURCE, env=env).returncode
    totals = dict.fromkeys(("tests", "failures", "errors", "skipped"), "0")
    if report.exists() and (suite := ET.parse(report).find("testsuite")) is not None:
        totals |= {key: suite.get(key, "?") for key in totals}
    (SHARE / "facts.json").write_text(json.dumps({"facts": facts, "totals": totals}))
    for test in skipped(report):
        print(f"skipped, though everything should run here: {test}")
        code = code or 1
    return code


sys.exit(main())
