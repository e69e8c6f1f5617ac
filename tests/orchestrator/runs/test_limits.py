from typing import Any

import pytest

from orchestrator.config.models import Config
from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import InvalidRequestError, UnknownBackendError
from orchestrator.runs.limits import resolve_limits


def config(default: dict[str, Any] | None = None, backend: dict[str, Any] | None = None, **more: Any) -> Config:
    block = {"default_limits": default or {}, "backends": {"codex": {"limits": backend or {}, **more}}}
    return Config.model_validate({"external_agent": block})


def test_built_in_limits() -> None:
    """C22, C23: 2 GiB and 300 s when nothing is configured."""
    limits = resolve_limits(config(), "codex", LimitsRequest())
    assert limits == ResourceLimits()
    assert (limits.memory_max_bytes, limits.wall_clock_seconds) == (2 * 1024**3, 300.0)


def test_each_level_covers_the_one_before_field_by_field() -> None:
    """C23: built in, then default_limits, then the backend's."""
    found = resolve_limits(
        config({"memory_max_bytes": 10, "wall_clock_seconds": 600}, {"memory_max_bytes": 20, "start_seconds": 5}),
        "codex",
        LimitsRequest(),
    )
    assert (found.memory_max_bytes, found.wall_clock_seconds, found.start_seconds) == (20, 600, 5)
    assert found.pids_max == 512


def test_a_request_narrows() -> None:
    """C23: the run may narrow."""
    asked = LimitsRequest(memory_max_bytes=5, wall_clock_seconds=1.5, idle_seconds=3, cpus=0.5, pids_max=512)
    found = resolve_limits(config({"memory_max_bytes": 10}), "codex", asked)
    assert (found.memory_max_bytes, found.wall_clock_seconds, found.idle_seconds) == (5, 1.5, 3)
    assert (found.cpus, found.pids_max) == (0.5, 512)


def test_a_request_never_widens() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_limits(config({"memory_max_bytes": 10}), "codex", LimitsRequest(memory_max_bytes=11))
    assert caught.value.details == {"limit": "memory_max_bytes", "asked": 11, "allowed": 10}
    assert "11" in caught.value.message
    assert "10" in caught.value.message


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_limit_is_more_than_nothing(value: float) -> None:
    with pytest.raises(InvalidRequestError, match="idle_seconds"):
        resolve_limits(config(), "codex", LimitsRequest(idle_seconds=value))


def test_a_backend_that_is_not_enabled() -> None:
    with pytest.raises(UnknownBackendError):
        resolve_limits(config(), "gemini", LimitsRequest())
    with pytest.raises(UnknownBackendError):
        resolve_limits(config(enabled=False), "codex", LimitsRequest())
