"""Podman's default seccomp profile, made narrower: only such sockets as are bound by the container's own namespaces.

A network namespace does not confine every family: through AF_VSOCK a container without any network can talk to the
hypervisor of the machine, and AF_ALG, AF_BLUETOOTH and others lead straight into the kernel.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

log = logging.getLogger(__name__)

FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
NETLINK: Final = 16
NETLINK_AUDIT: Final = 9
FILE: Final = "seccomp.json"


def narrowed(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with rules of ours for ``socket``.  Pure.

    ``socketcall``, the older way of 32-bit programs to make sockets, hides the family from a filter: it goes.
    """
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in {"socket", "socketcall"}]
        if names:
            rules.append({**rule, "names": names})
    rules += [_allow(_argument(0, family)) for family in FAMILIES.values()]
    rules.append(_allow(_argument(0, NETLINK), _argument(2, NETLINK_AUDIT, "SCMP_CMP_NE")))
    return {**profile, "syscalls": rules}


def _allow(*arguments: dict[str, Any]) -> dict[str, Any]:
    return {"names": ["socket"], "action": "SCMP_ACT_ALLOW", "args": list(arguments), "includes": {}, "excludes": {}}


def _argument(index: int, value: int, op: str = "SCMP_CMP_EQ") -> dict[str, Any]:
    return {"index": index, "value": value, "valueTwo": 0, "op": op}


def write_profile(source: str, directory: Path) -> str | None:
    """Write the narrowed form of the profile at ``source`` into ``directory``; its path.

    None, and a word in the log: there is no such profile that can be read, and containers get Podman's own.
    """
    path = directory / FILE
    try:
        profile = json.loads(Path(source).read_text(encoding="utf-8"))
        text = json.dumps(narrowed(profile))
        if profile["defaultAction"] != "SCMP_ACT_ERRNO":
            log.warning("the seccomp profile %s allows what it does not name: containers get it as it is", source)
            return None
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = directory / f".{FILE}.{os.getpid()}"  # somebody may be reading the one in place
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("the seccomp profile %s cannot be narrowed (%s): containers get it as it is", source, error)
        return None
    return str(path)
