"""What of our environment Podman gets to see.  Pure."""

from collections.abc import Mapping
from typing import Final

UNSET: Final = (
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
)
"""Variables that are about this process, or that would make podman talk to another service."""
_PASSED: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
)
_PASSED_PREFIXES: Final = ("CONTAINERS_", "STORAGE_", "PODMAN_", "REGISTRY_AUTH_FILE")


def podman_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that Podman needs; no key or token that happens to be in it goes along."""
    return {k: v for k, v in environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}
