"""The process's environment, for those who hand a part of it on."""

from __future__ import annotations

import os


def process_environment() -> dict[str, str]:
    """A copy of it.  It may hold secrets: pick what is needed, pass nothing on whole."""
    return dict(os.environ)
