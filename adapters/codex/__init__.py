"""Codex (``codex exec``), as of version 0.171.0."""

from adapters.codex.adapter import CodexAdapter

__all__ = ["CodexAdapter"]
