"""libpod's answers about containers and images, as our records."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Self

from orchestrator.contract.sandbox import (
    IMAGE_REPOSITORY,
    LABEL_CLI_VERSION,
    LABEL_RECIPE,
    FoundSandbox,
    ImageRef,
)

ENDED: Final = frozenset({"stopped", "exited"})
"""``stopped``: the exit code is known, the clean-up is still to come."""
LIVE: Final = frozenset({"running", "paused", "stopping"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerState:
    """The state of one container."""

    status: str
    pid: int
    """The container's init, seen from the host; 0 when it does not run."""
    conmon_pid: int
    exit_code: int | None
    oom_killed: bool

    @property
    def ended(self) -> bool:
        """It ran, and has ended; its log is complete."""
        return self.status in ENDED

    @property
    def live(self) -> bool:
        """It has processes, or should have."""
        return self.status in LIVE

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> Self:
        """From ``GET /containers/{id}/json``.  Reads conmon's pid file when Podman no longer names the pid."""
        state: Mapping[str, Any] = inspected.get("State") or {}
        code = state.get("ExitCode")
        return cls(
            status=str(state.get("Status", "unknown")),
            pid=_pid(state.get("Pid")),
            conmon_pid=_pid(state.get("ConmonPid")) or _pid_in(inspected.get("ConmonPidFile")),
            exit_code=code if isinstance(code, int) and 0 <= code <= 255 else None,
            oom_killed=bool(state.get("OOMKilled", False)),
        )


def _pid(value: object) -> int:
    return value if isinstance(value, int) and value > 1 else 0


def _pid_in(file: object) -> int:
    """The pid that conmon's parent wrote there.  May be reused by now: whoever uses it checks."""
    try:
        return _pid(int(Path(str(file)).read_text())) if file else 0
    except (OSError, ValueError):
        return 0


def found_sandbox(row: Mapping[str, Any], *, run: str, sandbox: str) -> FoundSandbox:
    """From a row of ``GET /containers/json``; ``run`` and ``sandbox`` are the names of the labels."""
    labels: Mapping[str, str] = row.get("Labels") or {}
    return FoundSandbox(
        container_id=str(row["Id"]),
        run_id=labels.get(run, ""),
        sandbox_id=labels.get(sandbox, ""),
        state=_found_state(str(row.get("State", ""))),
    )


def _found_state(status: str) -> Literal["created", "running", "exited", "unknown"]:
    if status in LIVE:
        return "running"
    if status in ENDED:
        return "exited"
    return "created" if status in {"created", "configured", "initialized"} else "unknown"


def image_ref(inspected: Mapping[str, Any], backend: str) -> ImageRef | None:
    """From ``GET /images/{name}/json``; None when podmentor did not build it (its labels are missing)."""
    labels: Mapping[str, str] = inspected.get("Labels") or (inspected.get("Config") or {}).get("Labels") or {}
    if LABEL_CLI_VERSION not in labels or LABEL_RECIPE not in labels:
        return None
    current = f"{IMAGE_REPOSITORY}/{backend}:current"
    tags = [tag for tag in inspected.get("RepoTags") or [] if tag.startswith(f"{IMAGE_REPOSITORY}/{backend}:")]
    return ImageRef(
        image_id=str(inspected["Id"]).removeprefix("sha256:"),
        tag=next((tag for tag in tags if tag != current), current),
        backend=backend,
        cli_version=labels[LABEL_CLI_VERSION],
        recipe=labels[LABEL_RECIPE],
        size_bytes=int(inspected.get("Size") or 0),
        created=str(inspected.get("Created", "")),
    )
