"""Gemini CLI (``gemini``), as of version 0.61.0."""

from adapters.gemini.adapter import GeminiAdapter, GeminiOneshotAdapter

__all__ = ["GeminiAdapter", "GeminiOneshotAdapter"]
