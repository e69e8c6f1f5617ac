"""Claude Code (``claude``), as of version 2.1.197."""

from adapters.claude_code.adapter import ClaudeCodeAdapter

__all__ = ["ClaudeCodeAdapter"]
