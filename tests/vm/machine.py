"""One guest from its start to its end."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

COMMAND_LINE = (
    "console=ttyS0 panic=-1 mitigations=off random.trust_cpu=on net.ifnames=0 root=/dev/vda rw "
    "systemd.unified_cgroup_hierarchy=1 systemd.show_status=0"
)
CPUINFO = Path("/proc/cpuinfo")
NO_END, OUT_OF_TIME = 125, 124
"""Exit codes for a guest that ended without saying how its tests did, and for one that had to be ended."""
CONSOLE_SHOWN = 6000
KEPT = ("console", "share/output", "share/journal", "share/facts.json", "share/junit.xml")


@dataclass(frozen=True, slots=True)
class Ended:
    """How a guest did.  ``ready``: seconds of its own time until the user's session was there."""

    status: int
    seconds: float
    ready: str
    facts: str


def accelerator() -> str:
    """KVM where the processor's own virtualisation is there to be used, else emulation.

    A /dev/kvm alone says little: in some nested machines it runs specially made kernels only.
    """
    flags = re.search(r"\b(vmx|svm)\b", CPUINFO.read_text())
    return "kvm" if flags and os.access("/dev/kvm", os.R_OK | os.W_OK) else "tcg"


def qemu(image: Path, share: Path, *, memory: str, accel: str, words: str = "") -> list[str]:
    """The command that runs a guest, but for its console: no network beyond itself, no write to the image."""
    return [
        "qemu-system-x86_64",
        "-M",
        "q35",
        "-accel",
        "kvm" if accel == "kvm" else "tcg,thread=multi",
        "-cpu",
        "max",
        "-smp",
        "2",
        "-m",
        memory,
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-device",
        "virtio-rng-pci",
        "-kernel",
        str(image / "vmlinuz"),
        "-initrd",
        str(image / "initrd"),
        "-append",
        f"{COMMAND_LINE} {words}",
        "-drive",
        f"file={image}/root.img,format=raw,if=virtio,snapshot=on,cache=unsafe",
        "-nic",
        "user,model=virtio-net-pci,restrict=on",
        "-virtfs",
        f"local,path={share},mount_tag=share,security_model=none",
    ]


def shell(image: Path, fill: Callable[[Path], None], *, memory: str, accel: str) -> int:
    """A root shell in a guest, on this terminal (Ctrl-A X ends it)."""
    with tempfile.TemporaryDirectory(prefix="podmentor-vm-") as name:
        share = _share(Path(name), fill)
        command = [*qemu(image, share, memory=memory, accel=accel, words="podmentor.shell"), "-serial", "mon:stdio"]
        return subprocess.run(command, check=False, env={**os.environ, "TMPDIR": name}).returncode


def run(image: Path, fill: Callable[[Path], None], *, memory: str, accel: str, timeout: float, keep: Path) -> Ended:
    """Boot, run what ``fill`` has put into the share as ``check.py``, show its output as it comes.

    Not longer than ``timeout`` seconds.  What a guest that fails has left is kept in ``keep``.
    """
    with tempfile.TemporaryDirectory(prefix="podmentor-vm-") as name:
        place = Path(name)
        share, console = _share(place, fill), place / "console"
        command = [*qemu(image, share, memory=memory, accel=accel), "-serial", f"file:{console}"]
        with (share / "output").open("xb+") as output:
            started = time.monotonic()
            guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": name})
            late = False
            try:
                ended = False
                while not (ended or late):
                    time.sleep(0.2)
                    ended, late = guest.poll() is not None, time.monotonic() - started > timeout
                    sys.stdout.buffer.write(output.read())
                    sys.stdout.flush()
            finally:
                guest.kill()
                guest.wait()
        status, ready, facts = (_text(share / part) for part in ("status", "ready", "facts.json"))
        code = int(status) if status else OUT_OF_TIME if late else NO_END
        if not status:
            print(f"--- the guest's console, last {CONSOLE_SHOWN} characters", flush=True)
            print(_text(console)[-CONSOLE_SHOWN:], flush=True)
        shutil.rmtree(keep, ignore_errors=True)
        if code:
            keep.mkdir(parents=True)
            for part in KEPT:
                if (place / part).exists():
                    shutil.copy(place / part, keep)
        return Ended(code, time.monotonic() - started, ready, facts)


def _share(place: Path, fill: Callable[[Path], None]) -> Path:
    """The directory that the guest sees as /share: its user may write there, here nobody else gets to it."""
    place.chmod(0o700)
    share = place / "share"
    share.mkdir()
    share.chmod(0o777)
    fill(share)
    return share


def _text(path: Path) -> str:
    return path.read_text(errors="replace").strip() if path.exists() else ""
