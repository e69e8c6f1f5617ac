"""The pieces that messages are made of, and what has been told of them."""

from __future__ import annotations

import json
from typing import Any

TEXT_KEEP = 256 * 1024
"""Characters kept of the newest message, for a run whose ``result`` line is missing."""


class Message:
    """One message of the model while it is told.  Blocks are told in their order, so counting them is enough."""

    def __init__(self, message_id: str) -> None:
        self.id = message_id
        self._kinds: dict[int, str] = {}
        self._told: dict[int, int] = {}
        """Characters streamed, per block."""
        self._claimed: set[int] = set()

    def begin(self, index: int, kind: str) -> None:
        """A block of this kind is going to be streamed."""
        self._kinds[index] = kind
        self._told.setdefault(index, 0)

    def streamed(self, index: int, kind: str, text: str) -> None:
        """``text`` has been told."""
        self._kinds.setdefault(index, kind)
        self._told[index] = self._told.get(index, 0) + len(text)

    def untold(self, kind: str, text: str) -> str:
        """What is still to be told of the next whole block of ``kind``: nothing, its end, or all of it."""
        for index in sorted(self._kinds):
            if self._kinds[index] == kind and index not in self._claimed:
                self._claimed.add(index)
                return text[self._told[index] :] if self._told[index] else text
        return text


class KeptText:
    """The text of the newest message, bounded."""

    def __init__(self) -> None:
        self._message_id = ""
        self._parts: list[str] = []
        self._size = 0

    def add(self, message_id: str, text: str) -> None:
        """A piece; one of another message begins anew."""
        if message_id != self._message_id:
            self._message_id, self._parts, self._size = message_id, [], 0
        room = TEXT_KEEP - self._size
        if room > 0:
            self._parts.append(text[:room])
        self._size += len(text)

    def join(self) -> str:
        """The text, cut and marked when it was longer than ``TEXT_KEEP``."""
        cut = self._size - TEXT_KEEP
        return "".join(self._parts) + (f" …[cut: {cut} characters, the whole is in the run's log]" if cut > 0 else "")


def whole(value: Any) -> str:
    """``value`` if it is a string; TypeError otherwise."""
    if not isinstance(value, str):
        raise TypeError(f"expected text, got {type(value).__name__}")
    return value


def text_or_none(value: Any) -> str | None:
    """``value`` if it is a string: for members that may be missing and that nothing else depends on."""
    return value if isinstance(value, str) else None


def number(value: Any) -> int:
    """``value`` as a whole number; TypeError when it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"expected a number, got {type(value).__name__}")
    return round(value)


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
    kind = whole(block["type"])
    if kind == "text":
        return whole(block["text"])
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
