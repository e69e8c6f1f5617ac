"""What a guest needs from this machine: the service user's container images, and Python packages in locked versions.

Both are fetched as that user: root runs nothing that the user could have changed.
"""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PASSED = ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
"""Of the environment, beside PIP_*: how this machine reaches the package index."""


@dataclass(frozen=True, slots=True)
class ServiceUser:
    """The user whose Podman has the images, and the virtual environment with the tests' libraries and pip."""

    name: str
    venv: Path

    def command(self, *argv: str) -> str:
        """What it prints.  Raises CalledProcessError; its stderr is ours."""
        entry = pwd.getpwnam(self.name)
        passed = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name in PASSED or name in {word.upper() for word in PASSED}
        }
        return subprocess.run(
            argv,
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            cwd=entry.pw_dir,
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=os.getgrouplist(self.name, entry.pw_gid),
            env=passed
            | {
                "HOME": entry.pw_dir,
                "USER": self.name,
                "LANG": "C.UTF-8",
                "PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                "XDG_RUNTIME_DIR": f"/run/user/{entry.pw_uid}",
            },
        ).stdout

    def image_id(self, name: str) -> str:
        """The ID of one of the user's container images."""
        return self.command("podman", "image", "inspect", "--format={{.Id}}", name).strip()

    def save_image(self, name: str, archive: Path) -> None:
        """Write an image into an archive; its directory must be writable for the user."""
        self.command("podman", "save", "--quiet", "--format=oci-archive", f"--output={archive}", name)

    def download(self, locks: Sequence[Path], python: str, into: Path) -> None:
        """Everything that lock files name, as it is installed with this version of Python (``3.13``)."""
        for lock in locks:
            self.command(
                *(str(self.venv / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-input", "-q"),
                *("download", "--no-deps", "--require-hashes", "--no-build-isolation", f"--python-version={python}"),
                *("--dest", str(into), "-r", str(lock)),
            )

    def give(self, directory: Path) -> None:
        """Make a directory the user's."""
        entry = pwd.getpwnam(self.name)
        os.chown(directory, entry.pw_uid, entry.pw_gid)
