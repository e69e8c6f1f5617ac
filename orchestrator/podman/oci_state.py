"""What the OCI runtime and conmon keep of a container that Podman has forgotten.

Podman leaves it to conmon's clean-up, or to a stop that works.  After a conmon was killed it removes the container and
never informs the OCI runtime: its record (and the cgroup, where there is one) would stay until the next boot.  So would
the exit file of a conmon that came to write it only after the container had been removed.
"""

import contextlib
import logging
from pathlib import Path
from typing import Final

from orchestrator.system import processes

log = logging.getLogger(__name__)

RUNTIMES: Final = ("runc", "crun")
DELETE_SECONDS: Final = 10.0


async def forget(container_id: str, *, user_dir: Path, env: dict[str, str] | None) -> None:
    """Remove the records of a container that is gone, and whose conmon has ended.

    ``user_dir``: XDG_RUNTIME_DIR, where they are.  A failure is logged: what is left is a directory in memory.
    """
    with contextlib.suppress(OSError):
        (user_dir / "libpod" / "tmp" / "exits" / container_id).unlink()
    for runtime in RUNTIMES:
        record = user_dir / runtime / container_id
        if not record.is_dir():
            continue
        argv = [runtime, "--root", str(record.parent), "delete", "--force", container_id]
        try:
            code, errors = await processes.run(argv, timeout=DELETE_SECONDS, env=env)
        except (TimeoutError, OSError) as error:
            code, errors = 1, str(error)
        if code != 0 and record.is_dir():
            log.warning("%s still has a record of container %s: %s", runtime, container_id[:12], errors)
