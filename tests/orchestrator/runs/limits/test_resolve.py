from dataclasses import fields
from typing import Any

import pytest

from orchestrator.config.models import Config
from orchestrator.contract.runs import LimitsRequest
from orchestrator.contract.types import ResourceLimits
from orchestrator.errors import InvalidRequestError, UnknownBackendError
from orchestrator.runs.limits.messages import REASONS, exceeded, size_words
from orchestrator.runs.limits.resolve import MOST, check_kept, enforcement_of, resolve_limits


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


def test_an_admin_may_widen() -> None:
    """C23: the run may narrow; an admin may widen too."""
    asked = LimitsRequest(memory_max_bytes=11, wall_clock_seconds=5000, disk_max_bytes=10 * 1024**3)
    found = resolve_limits(config({"memory_max_bytes": 10}), "codex", asked, privileged=True)
    assert (found.memory_max_bytes, found.wall_clock_seconds) == (11, 5000)
    assert found.disk_max_bytes == 10 * 1024**3


def test_the_disk_limit_comes_from_the_levels_as_the_others_do() -> None:
    """C23."""
    assert resolve_limits(config(), "codex", LimitsRequest()).disk_max_bytes == 4 * 1024**3
    found = resolve_limits(config({"disk_max_bytes": 10}, {"disk_max_bytes": 20}), "codex", LimitsRequest())
    assert found.disk_max_bytes == 20


@pytest.mark.parametrize("privileged", [False, True])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("memory_max_bytes", 0),
        ("memory_max_bytes", -1),
        ("memory_max_bytes", True),
        ("memory_max_bytes", 1.5),
        ("memory_max_bytes", "1"),
        ("wall_clock_seconds", float("nan")),
        ("wall_clock_seconds", float("inf")),
        ("wall_clock_seconds", "60"),
        ("pids_max", float("inf")),
        ("disk_max_bytes", -5),
        ("cpus", False),
    ],
)
def test_nonsense_is_refused_whoever_asks(name: str, value: Any, privileged: bool) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_limits(config(), "codex", LimitsRequest(**{name: value}), privileged=privileged)
    assert caught.value.details["limit"] == name


@pytest.mark.parametrize(("name", "most"), MOST.items())
def test_not_even_an_admin_gets_what_no_kernel_takes(name: str, most: float) -> None:
    kind = float if name.endswith("seconds") or name == "cpus" else int
    largest: dict[str, Any] = {name: kind(most)}
    larger: dict[str, Any] = {name: kind(most * 2)}
    resolve_limits(config(), "codex", LimitsRequest(**largest), privileged=True)
    with pytest.raises(InvalidRequestError, match="at most"):
        resolve_limits(config(), "codex", LimitsRequest(**larger), privileged=True)


def test_every_limit_says_how_it_is_kept() -> None:
    by_runtime = {"memory_max_bytes": "watchdog", "pids_max": "rlimit", "cpus": "none"}
    limits = ResourceLimits(cpus=2, idle_seconds=5)
    kept = enforcement_of(limits, by_runtime)
    assert kept.keys() == {item.name for item in fields(limits)}
    assert kept["cpus"] == "none"
    assert "cpus" not in enforcement_of(ResourceLimits(), by_runtime)


def test_a_limit_on_processors_without_effect_is_refused_where_cgroups_are_required() -> None:
    check_kept(ResourceLimits(), {"cpus": "none"})
    check_kept(ResourceLimits(cpus=1), {"cpus": "cgroup"})
    with pytest.raises(InvalidRequestError, match="cpus"):
        check_kept(ResourceLimits(cpus=1), {"cpus": "none"})


@pytest.mark.parametrize(("reason", "limit"), REASONS.items())
def test_every_excess_has_limit_and_use_in_one_shape(reason: Any, limit: str) -> None:
    error = exceeded(reason, 100, 250)
    unit = "bytes" if limit.endswith("bytes") else "seconds"
    assert error.details == {"limit": limit, f"limit_{unit}": 100, f"used_{unit}": 250}
    assert "100" in error.message
    assert "250" in error.message


def test_sizes_that_read_the_same_are_told_exactly() -> None:
    assert size_words(2 * 1024**3 + 5, 2 * 1024**3) == "2147483653 bytes"
    assert size_words(2 * 1024**3) == "2 GiB"
    assert size_words(1536) == "1.5 KiB"
