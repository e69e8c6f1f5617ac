"""``scripts/test --vm``: the tests that need delegated cgroups, in guests that have them.  README.md says how.

Runs as root (the disk image is made in a chroot) with Debian's own Python and nothing else.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from pathlib import Path

from tests.vm.build import PYTHONS
from tests.vm.host import ServiceUser
from tests.vm.image import image_for
from tests.vm.machine import Ended, accelerator, run, shell

CONTAINER_IMAGES = ["localhost/podmentor/claude-code:current"]
CHECKS = [
    *("tests/podman/test_delegation.py", "tests/podman/test_memory.py", "tests/podman/test_doctor.py"),
    "tests/podman/test_runtime.py::test_processes_are_limited",
    "tests/podman/test_runtime.py::test_the_memory_limit_where_there_is_a_controller",
    # an emulated processor is ten to thirty times slower
    *("--timeout=1800", "-v", "--durations=0", "--durations-min=20"),
]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/test --vm", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("suite", nargs="?", choices=[*PYTHONS, "all"], default="all")
    parser.add_argument(
        "--cache", type=Path, default=Path("/var/cache/podmentor-vm"), help="where disk images are kept"
    )
    parser.add_argument("--timeout", type=float, default=3600, metavar="S", help="end a guest after so many seconds")
    parser.add_argument("--memory", default="3G", help="memory of a guest")
    parser.add_argument("--shell", action="store_true", help="a root shell in the guest in place of the tests")
    parser.add_argument("--user", required=True, help="whose container images are used")
    parser.add_argument("--venv", type=Path, required=True, help="a virtual environment with the project in it")
    parser.add_argument("--source", type=Path, required=True, help="the project's files")
    parser.add_argument("pytest", nargs="*", metavar="PYTEST ARGUMENT", help="in place of the usual selection")
    words = sys.argv[1:]
    split = words.index("--") if "--" in words else len(words)
    wanted = parser.parse_args(words[:split])
    wanted.pytest = words[split + 1 :] or CHECKS
    suites = list(PYTHONS) if wanted.suite == "all" else [wanted.suite]
    wanted.cache.mkdir(parents=True, exist_ok=True)
    results = {suite: one(suite, wanted) for suite in suites}
    if not wanted.shell:
        summary(results, wanted.cache)
    return max(result.status for result in results.values())


def one(suite: str, wanted: argparse.Namespace) -> Ended:
    accel = accelerator()
    user = ServiceUser(wanted.user, wanted.venv)

    def fill(share: Path) -> None:
        pack(wanted.source, share / "source.tar")
        entry_points(wanted.venv, share / "site")
        shutil.copy(Path(__file__).parent / "guest" / "check.py", share)
        (share / "order.json").write_text(json.dumps({"pytest": wanted.pytest}))

    with image_for(suite, cache=wanted.cache, user=user, container_images=CONTAINER_IMAGES) as image:
        if wanted.shell:
            return Ended(shell(image, fill, memory=wanted.memory, accel=accel), 0, "", "")
        print(f"==> {suite}: a guest ({'KVM' if accel == 'kvm' else 'emulation, slow'}), {image.name}", flush=True)
        keep = wanted.cache / f"failed-{suite}"
        return run(image, fill, memory=wanted.memory, accel=accel, timeout=wanted.timeout, keep=keep)


def pack(source: Path, archive: Path) -> None:
    """The project's files, without what tools leave in them."""
    excluded = [f"--exclude={name}" for name in (".git", ".venv", "__pycache__", ".hypothesis", ".*_cache")]
    subprocess.run(["tar", "-C", source, "--owner=0", "--group=0", *excluded, "-cf", archive, "."], check=True)


def entry_points(venv: Path, into: Path) -> None:
    """The project's installation record, by which adapters are found; the code comes from the source itself."""
    into.mkdir()
    for record in venv.glob("lib/python3*/site-packages/podmentor-*.dist-info"):
        shutil.copytree(record, into / record.name)


def summary(results: dict[str, Ended], cache: Path) -> None:
    print("==> all in all")
    for suite, result in results.items():
        known = json.loads(result.facts) if result.facts else {"facts": {}, "totals": {}}
        for name, value in known["facts"].items():
            print(f"    {suite}  {name}: {value}")
        totals = ", ".join(f"{count} {what}" for what, count in known["totals"].items()) or "no result"
        good = "passed" if result.status == 0 else f"FAILED (exit {result.status}); see {cache}/failed-{suite}"
        print(f"    {suite}  {totals}; session after {result.ready or '-'} s, whole run {result.seconds:.0f} s: {good}")


if __name__ == "__main__":
    sys.exit(main())
