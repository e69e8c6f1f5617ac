"""The newest message, kept for the final text of a run whose CLI does not repeat it at the end."""

from __future__ import annotations


class KeptText:
    """At most ``keep`` characters of the newest message."""

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._parts: list[str] = []
        self._size = 0
        self.message_id = ""
        """Of the message that is kept; empty before the first."""

    def add(self, message_id: str, text: str) -> None:
        """A piece of a message; one of another message begins anew."""
        if message_id != self.message_id:
            self.message_id, self._parts, self._size = message_id, [], 0
        room = self._keep - self._size
        if room > 0:
            self._parts.append(text[:room])
        self._size += len(text)

    def join(self) -> str:
        """The text, cut and marked when it was longer than ``keep``."""
        cut = self._size - self._keep
        return "".join(self._parts) + (f" …[cut: {cut} characters, the whole is in the run's log]" if cut > 0 else "")
