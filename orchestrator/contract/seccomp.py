"""The seccomp profile of every container: Podman's own, made narrower.  Pure.

Only such sockets are left as are bound by the container's own namespaces.  A network namespace does not confine every
family: through AF_VSOCK a container without any network can talk to the hypervisor of the machine, and AF_ALG,
AF_BLUETOOTH and others lead straight into the kernel.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

DEFAULT_SECCOMP: Final = "/usr/share/containers/seccomp.json"
FAMILIES: Final = {"AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10}
NETLINK: Final = 16
NETLINK_AUDIT: Final = 9


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
    """The profile with rules of ours for ``socket``.

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
