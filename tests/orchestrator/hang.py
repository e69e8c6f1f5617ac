"""A guard against code that a hostile input keeps busy for hours."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def not_for_ever(seconds: int = 30) -> Iterator[None]:
    """Raises AssertionError in the middle of the work, regular expressions included, if it has not ended by then."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise AssertionError(f"this takes more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
