"""OpenCode (``opencode``), as of version 1.18.33."""

from adapters.opencode.adapter import OpenCodeAdapter

__all__ = ["OpenCodeAdapter"]
