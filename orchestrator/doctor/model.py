"""What a check reports, and what it is given to look at."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.config.models import Config, Paths
from orchestrator.doctor.probe import Probe

Status = Literal["ok", "warning", "failed"]


@dataclass(frozen=True)
class Finding:
    """One line of the report.  ``fix`` is the command that mends it, to be typed as it is; None where all is well."""

    name: str
    status: Status
    detail: str
    fix: str | None = None


@dataclass(frozen=True)
class WantedImage:
    """An image that runs will need: ``tag`` is the full reference of today's recipe."""

    backend: str
    tag: str


@dataclass(frozen=True)
class Subject:
    """What is examined: the settings, the places, and Podman's own report (None when it gave none)."""

    config: Config
    paths: Paths
    images: Sequence[WantedImage]
    probe: Probe
    info: Info | None
    info_error: str = ""


class Info:
    """The answer of ``podman info``, read with care: keys come and go between versions of Podman."""

    def __init__(self, raw: Mapping[str, Any]) -> None:
        self._raw = raw

    def get(self, *path: str) -> Any:
        """The value at ``path``, or None when any step of it is missing."""
        value: Any = self._raw
        for key in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(key)
        return value

    def text(self, *path: str) -> str:
        """The same as a string, empty when missing."""
        value = self.get(*path)
        return "" if value is None else str(value)

    @property
    def version(self) -> str:
        """Podman's version, as ``4.3.1``."""
        return self.text("version", "Version")

    @property
    def controllers(self) -> list[str]:
        """The cgroup controllers that this user may use."""
        value = self.get("host", "cgroupControllers")
        return [str(name) for name in value] if isinstance(value, list) else []


def ok(name: str, detail: str) -> Finding:
    """All is well."""
    return Finding(name, "ok", detail)


def warning(name: str, detail: str, fix: str | None) -> Finding:
    """Runs work, but less well than they could."""
    return Finding(name, "warning", detail, fix)


def failed(name: str, detail: str, fix: str | None) -> Finding:
    """Runs do not work."""
    return Finding(name, "failed", detail, fix)


def unknown(name: str) -> Finding:
    """Podman's report was needed and is not there: the check ``podman`` says why, once."""
    return warning(name, "cannot be checked without an answer of `podman info` (see podman)", None)
