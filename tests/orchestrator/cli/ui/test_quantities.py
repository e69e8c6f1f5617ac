from typing import Any

import pytest

from orchestrator.cli.ui.quantities import limit_lines, quantity, size, warning_words


def test_each_limit_with_how_it_is_kept_and_what_was_used() -> None:
    run = {
        "limits": {"memory_max_bytes": 2 * 1024**3, "disk_max_bytes": 1024**2, "cpus": 2.0, "idle_seconds": None},
        "enforcement": {"memory_max_bytes": "watchdog", "cpus": "none"},
        "usage": {"peak_memory_bytes": 1536 * 1024**2, "cpu_seconds": 3.25},
    }
    assert limit_lines(run) == [
        "memory 2 GiB, by watchdog, used 1.5 GiB",
        "disk 1 MiB",
        "processors 2, not kept on this machine, used 3.2 s",
    ]
    assert limit_lines({}) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("memory_max_bytes", 100, "100 bytes"),
        ("output_bytes", 2048, "2 KiB"),
        ("duration_seconds", 90.0, "90 s"),
        ("pids_max", 512, "512"),
    ],
)
def test_quantities(name: str, value: float, words: str) -> None:
    assert quantity(name, value) == words


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            {"limit": "disk_max_bytes", "limit_bytes": 4 * 1024**3, "used_bytes": 3.5 * 1024**3},
            "3.5 GiB of 4 GiB disk are used",
        ),
        (
            {"limit": "wall_clock_seconds", "limit_seconds": 300, "used_seconds": 240.1},
            "240.1 s of 300 s time are used",
        ),
        ({"limit": "five_hour", "state": "allowed_warning"}, None),
        ({"state": "rejected"}, None),
        ({"limit": "disk_max_bytes"}, None),
    ],
)
def test_warnings(data: dict[str, Any], words: str | None) -> None:
    """A provider's own limits have warnings of another shape."""
    assert warning_words(data) == words


def test_sizes_have_units() -> None:
    assert [size(n) for n in (0, 1023, 1024, 5 * 1024**2, 3 * 1024**3)] == [
        "0 B",
        "1023 B",
        "1.0 KiB",
        "5.0 MiB",
        "3.0 GiB",
    ]
