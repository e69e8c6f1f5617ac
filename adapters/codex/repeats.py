"""What the agent has said, so that what Codex prints again after a retry does not become events again."""

from __future__ import annotations

from typing import NamedTuple


class _Said(NamedTuple):
    kind: str
    item_id: str
    message_id: str
    text: str


class Texts:
    """Texts since the last act, per attempt: after a retry the provider's new answer begins as the old one did."""

    def __init__(self) -> None:
        self._said: list[_Said] = []
        self._repeats: list[_Said] = []
        """What the previous attempt said and this one has not said again."""

    def add(self, kind: str, item_id: str, text: str) -> tuple[str, str]:
        """Under which id a text goes on, and what of it is new."""
        previous = self._previous(kind, item_id, text)
        message_id = previous.message_id if previous is not None else item_id
        self._said.append(_Said(kind, item_id, message_id, text))
        return message_id, text[len(previous.text) :] if previous is not None else text

    def _previous(self, kind: str, item_id: str, text: str) -> _Said | None:
        """The text that this one continues or repeats."""
        if self._said and self._said[-1].item_id == item_id:  # the same item, longer
            return self._said.pop() if text.startswith(self._said[-1].text) else None
        first = self._repeats.pop(0) if self._repeats else None
        if first is not None and first.kind == kind and text.startswith(first.text):
            return first
        self._repeats.clear()
        return None

    def again(self) -> None:
        """The CLI asks the provider once more."""
        self._repeats = [*self._said, *self._repeats]
        self._said = []

    def acted(self) -> None:
        """A tool was called: what was said before is part of the conversation and does not come again."""
        self._said, self._repeats = [], []
