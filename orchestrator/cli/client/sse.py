"""Server-sent events: bytes in, messages out.  Pure, as the HTML standard describes the format."""

from dataclasses import dataclass

MAX_BUFFER = 256 * 1024**2
"""Far above any event that the journal makes (they are cut); a sender beyond it is broken or hostile."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message.  ``event`` is ``message`` when the sender named none."""

    event: str
    data: str
    id: str | None


class SseParser:
    """Any cutting of the bytes gives the same messages; an unfinished one at the end is dropped."""

    def __init__(self) -> None:
        self._pending: list[bytes] = []
        self._size = 0
        self._after_cr = False
        self._first = True
        self._event = ""
        self._data: list[str] = []
        self._id: str | None = None

    def feed(self, data: bytes) -> list[Message]:
        """Take the next bytes.  Raises ValueError when a line or message has no end."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\n" not in data and b"\r" not in data:
            self._keep(data)
            return []
        if data.endswith(b"\r"):
            self._after_cr = True
        joined = b"".join([*self._pending, data])
        self._pending = []
        lines = joined.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        self._size = sum(map(len, self._data))
        self._keep(lines.pop())
        return [message for line in lines if (message := self._line(line)) is not None]

    def _keep(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > MAX_BUFFER:
            raise ValueError("an event without an end")
        if data:
            self._pending.append(data)

    def _line(self, raw: bytes) -> Message | None:
        line = raw.decode("utf-8", errors="replace")
        if self._first:
            line, self._first = line.removeprefix("\ufeff"), False
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> Message | None:
        event, data = self._event or "message", self._data
        self._event, self._data = "", []
        return Message(event, "\n".join(data), self._id) if data else None
