"""Podman's default seccomp profile, made narrower.

*Sockets*: a network namespace does not confine every family.  Through AF_VSOCK a container without any network can talk
to the hypervisor of the machine, and AF_ALG, AF_BLUETOOTH and others lead straight into the kernel.

*Namespaces and mounts*: Podman lets containers make further namespaces, to run containers in containers.  In a user
namespace of its own an agent is root, and all of the kernel's code for root is open to it.

*Keys*: the kernel counts them per user, all containers together: at 200 no other container of this user can start.
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
NAMESPACES: Final = 0x7E020000
"""The flags of ``clone`` that make namespaces."""
ENOSYS: Final = 38
DROPPED: Final = frozenset({
    "socket", "socketcall",  # the latter hides the family from a filter
    "clone", "clone3",       # the latter hides its flags; libraries that get ENOSYS take the former
    "unshare", "setns",
    "mount", "umount", "umount2", "pivot_root", "mount_setattr", "move_mount", "open_tree",
    "fsopen", "fsconfig", "fsmount", "fspick",
    "keyctl", "add_key", "request_key",
})  # fmt: skip
"""System calls whose rules go; for some of them come rules of ours."""
FILE: Final = "seccomp.json"


def narrowed(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with rules of ours in place of those for ``DROPPED``.  Pure."""
    rules = []
    for rule in profile["syscalls"]:
        names = [name for name in rule["names"] if name not in DROPPED]
        if names:
            rules.append({**rule, "names": names})
    rules += [_allow("socket", _argument(0, family)) for family in FAMILIES.values()]
    rules.append(_allow("socket", _argument(0, NETLINK), _argument(2, NETLINK_AUDIT, "SCMP_CMP_NE")))
    odd = {"arches": ["s390", "s390x"]}  # the flags are the second argument there
    rules.append({**_allow("clone", _argument(0, NAMESPACES, "SCMP_CMP_MASKED_EQ")), "excludes": odd})
    rules.append({**_allow("clone", _argument(1, NAMESPACES, "SCMP_CMP_MASKED_EQ")), "includes": odd})
    if profile.get("defaultErrnoRet") != ENOSYS:
        rules.append({"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": ENOSYS})
    return {**profile, "syscalls": rules}


def _allow(name: str, *arguments: dict[str, Any]) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": list(arguments), "includes": {}, "excludes": {}}


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
