"""The seccomp profile that containers are given, on disk; ``orchestrator.contract.seccomp`` says what is in it."""

import logging
from pathlib import Path
from typing import Final

from orchestrator.contract.seccomp import narrowed_text
from orchestrator.system.files import write_atomic

log = logging.getLogger(__name__)

FILE: Final = "seccomp.json"


def write_profile(source: str, directory: Path) -> str | None:
    """Write the narrowed form of the profile at ``source`` into ``directory``; its path.

    None, and a word in the log: there is no such profile that can be read, and containers get Podman's own.
    """
    path = directory / FILE
    try:
        text = narrowed_text(Path(source).read_text(encoding="utf-8"))
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_atomic(path, text.encode(), durable=False)  # somebody may be reading the one in place
    except (OSError, ValueError) as error:
        log.warning("the seccomp profile %s cannot be narrowed (%s): containers get it as it is", source, error)
        return None
    return str(path)
