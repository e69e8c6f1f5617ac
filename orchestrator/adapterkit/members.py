"""Members of a CLI's JSON: each reader gives back a value of its type, or raises TypeError: it is not understood.

Those that end in ``_or_none`` are for members that may be missing and that nothing else depends on.
"""

from __future__ import annotations

from typing import Any, TypeGuard


def as_text(value: Any) -> str:
    """``value`` if it is a string."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def text_or_none(value: Any) -> str | None:
    """``value`` if it is a string."""
    return value if isinstance(value, str) else None


def as_object(value: Any) -> dict[str, Any]:
    """``value`` if it is an object."""
    if not isinstance(value, dict):
        raise TypeError(f"expected an object, got {type(value).__name__}")
    return value


def is_number(value: Any) -> TypeGuard[int | float]:
    """Whether ``value`` is a number; JSON's ``true`` is none, although Python's is."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def as_number(value: Any) -> int:
    """``value`` as a whole number."""
    if not is_number(value):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return round(value)


def number_or_none(value: Any) -> float | None:
    """``value`` if it is a number."""
    return value if is_number(value) else None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether ``value`` is a whole number that is not negative."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def count_or_none(value: Any) -> int | None:
    """``value`` if it is a count."""
    return value if is_count(value) else None
