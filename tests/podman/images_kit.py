"""What the tests with real images share."""

import subprocess

from tests.podman import session

IMAGE = "localhost/podmentor/claude-code:current"


def container(*rest: str, network: str = "none") -> list[str]:
    """``podman run`` as the service does it: mapped user, read-only, nothing granted."""
    return [
        "podman",
        "run",
        "--rm",
        f"--label={session.LABEL}={session.SESSION}",
        "--init",
        "--pull=never",
        f"--network={network}",
        "--userns=keep-id:uid=1000,gid=1000",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
        "--read-only",
        "--tmpfs=/tmp",
        *rest,
    ]


def run_to_end(argv: list[str]) -> subprocess.CompletedProcess[str]:
    """Output and exit code of a command, from a directory that every user may be in."""
    return subprocess.run(
        argv, check=False, capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL, cwd="/"
    )
