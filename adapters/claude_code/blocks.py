"""The blocks that messages are made of, and what of them has been streamed."""

from __future__ import annotations

import json
from typing import Any

from orchestrator.adapterkit.members import as_text


class Message:
    """One message of the model while it comes in.  Blocks are streamed in their order, so counting them is enough."""

    def __init__(self, message_id: str) -> None:
        self.id = message_id
        self._kinds: dict[int, str] = {}
        self._streamed: dict[int, int] = {}
        """Characters, per block."""
        self._claimed: set[int] = set()

    def begin(self, index: int, kind: str) -> None:
        """A block of this kind is going to be streamed."""
        self._kinds[index] = kind
        self._streamed.setdefault(index, 0)

    def streamed(self, index: int, kind: str, text: str) -> None:
        """``text`` has become an event."""
        self._kinds.setdefault(index, kind)
        self._streamed[index] = self._streamed.get(index, 0) + len(text)

    def rest_of(self, kind: str, text: str) -> str:
        """What of the next whole block of ``kind`` has not been streamed: nothing, its end, or all of it."""
        for index in sorted(self._kinds):
            if self._kinds[index] == kind and index not in self._claimed:
                self._claimed.add(index)
                return text[self._streamed[index] :] if self._streamed[index] else text
        return text


def result_text(content: Any) -> str:
    """A tool's result as text: a string as it is, blocks joined by newlines, what is no text as a marker."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_block_text(block) for block in content)
    return json.dumps(content, ensure_ascii=False)


def _block_text(block: Any) -> str:
    if isinstance(block, str):
        return block
    kind = as_text(block["type"])
    if kind == "text":
        return as_text(block["text"])
    if kind in {"image", "document"}:
        source = block.get("source") or {}
        media, data = source.get("media_type") or source.get("type") or "unknown", source.get("data") or ""
        return f"[{kind} {media}, {len(data) * 3 // 4} bytes]" if data else f"[{kind} {media}]"
    label = block.get("tool_name") or block.get("title") or block.get("url") or ""
    return f"[{kind} {label}]" if label else f"[{kind}]"


def content_blocks(content: Any) -> list[dict[str, Any]]:
    """The blocks of a message; content is a list of them or, in short, the text itself."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise TypeError("content is neither text nor blocks")
    return content
