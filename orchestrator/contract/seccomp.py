"""The seccomp profile of every container: Podman's own, made narrower.  Pure.

*Sockets*: a network namespace does not confine every family.  Through AF_VSOCK a container without any network can talk
to the hypervisor of the machine, and AF_ALG, AF_BLUETOOTH and others lead straight into the kernel.

*Namespaces and mounts*: Podman lets containers make further namespaces, to run containers in containers.  In a user
namespace of its own an agent is root, and all of the kernel's code for root is open to it.

*Keys*: the kernel counts them per user, all containers together: at 200 no other container of this user can start.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

DEFAULT_SECCOMP: Final = "/usr/share/containers/seccomp.json"
FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
NETLINK: Final = 16
NETLINK_AUDIT: Final = 9
NAMESPACES: Final = 0x7E020000
"""The flags of ``clone`` that make namespaces."""
ENOSYS: Final = 38
DROPPED: Final = frozenset(
    {
        "socket",
        "socketcall",  # the latter hides the family from a filter
        "clone",
        "clone3",  # the latter hides its flags; libraries that get ENOSYS take the former
        "unshare",
        "setns",
        "mount",
        "umount",
        "umount2",
        "pivot_root",
        "mount_setattr",
        "move_mount",
        "open_tree",
        "fsopen",
        "fsconfig",
        "fsmount",
        "fspick",
        "keyctl",
        "add_key",
        "request_key",
    }
)
"""System calls whose rules go; for some of them come rules of ours."""


def source_of(configured: object) -> str:
    """Where the profile is that Podman's ``info`` names; a word such as ``unconfined`` is no reason to go without."""
    path = str(configured or "")
    return path if path.startswith("/") else DEFAULT_SECCOMP


def narrowed_text(text: str) -> str:
    """The narrowed form of a profile's text.  Raises: ValueError, with the reason why it cannot be narrowed."""
    try:
        profile = json.loads(text)
        found = json.dumps(narrowed(profile))
        default = profile["defaultAction"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"it is no seccomp profile: {type(error).__name__}: {error}") from error
    if default != "SCMP_ACT_ERRNO":
        raise ValueError("it allows what it does not name")
    return found


def narrowed(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with rules of ours in place of those for ``DROPPED``."""
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
