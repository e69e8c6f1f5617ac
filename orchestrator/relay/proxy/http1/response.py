"""What a server answers to a plain request, on its way to the client; and what the proxy answers itself.  Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.relay.proxy.http1.body import Body, Length, NoBody, UntilEnd
from orchestrator.relay.proxy.http1.message import (
    Fields,
    LineReader,
    WireError,
    end_to_end,
    framing,
    read_fields,
    render,
)

MAX_ANSWER_HEAD: Final = 64 * 1024

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})( [\t -~\x80-\xff]*)?")


@dataclass(frozen=True, slots=True)
class Answer:
    """The head of a server's answer."""

    status: int
    fields: Fields
    body: Body

    @property
    def interim(self) -> bool:
        """Another head follows."""
        return self.status < 200

    def render(self) -> bytes:
        """The head for the client; the connection ends with this answer."""
        if self.interim:
            return render([f"HTTP/1.1 {self.status} "], self.fields, NoBody(), close=False)
        return render([f"HTTP/1.1 {self.status} "], self.fields, self.body)


class ConnectAnswerReader:
    """The head of a proxy's answer to CONNECT.  No body belongs to it when the connection is made (RFC 9110, 9.3.6)."""

    def __init__(self) -> None:
        self._lines = LineReader(MAX_ANSWER_HEAD, 502)

    def feed(self, data: bytes) -> int | None:
        """Take the next bytes; the status once the head is complete.  Raises: WireError."""
        self._lines.feed(data)
        if not self._lines.complete:
            return None
        if (found := _STATUS.fullmatch(self._lines.lines[0])) is None:
            raise WireError(502, "the proxy's answer is not HTTP/1")
        return int(found[1])

    @property
    def rest(self) -> bytes:
        """What came behind the head."""
        return self._lines.rest


class AnswerReader:
    """The heads of the answer to a request with ``method``: interim ones, and the last."""

    def __init__(self, method: str) -> None:
        self._method = method
        self._lines = LineReader(MAX_ANSWER_HEAD, 502)

    def feed(self, data: bytes) -> list[Answer]:
        """Take the next bytes; the heads that are complete now.  Raises: WireError."""
        heads: list[Answer] = []
        while True:
            self._lines.feed(data)
            if not self._lines.complete:
                return heads
            heads.append(_answer(self._lines.lines, self._method))
            if not heads[-1].interim:
                return heads
            data = self._lines.rest
            self._lines = LineReader(MAX_ANSWER_HEAD, 502)

    @property
    def rest(self) -> bytes:
        """What came behind the last head."""
        return self._lines.rest


def _answer(lines: list[bytes], method: str) -> Answer:
    found = _STATUS.fullmatch(lines[0])
    if found is None:
        raise WireError(502, "the server's answer is not HTTP/1")
    status = int(found[1])
    if status == 101:
        raise WireError(502, "the server wants another protocol")
    fields = read_fields(lines[1:], 502)
    announced = framing(fields, 502)
    body: Body
    if method == "HEAD" or status in {204, 304} or status < 200:
        # The length is that of a body which does not come: passed on, and not waited for.
        body = Length(0, announced=announced.size) if isinstance(announced, Length) and status >= 200 else NoBody()
    else:
        body = UntilEnd() if announced is None else announced
    return Answer(status, end_to_end(fields), body)


class AnswerFilter:
    """A server's answer to one request, on its way to the client."""

    def __init__(self, method: str) -> None:
        self._reader = AnswerReader(method)
        self._body: Body | None = None

    @property
    def done(self) -> bool:
        """The whole answer has come."""
        return self._body is not None and self._body.done

    def feed(self, data: bytes) -> bytes:
        """What goes on to the client.  Raises: WireError, BodyError."""
        if self._body is not None:
            return self._body.feed(data)
        heads = self._reader.feed(data)
        out = b"".join(head.render() for head in heads)
        if heads and not heads[-1].interim:
            self._body = heads[-1].body
            out += self._body.feed(self._reader.rest)
        return out

    def clean_end(self) -> bool:
        """Whether the answer may end here."""
        return self._body is not None and self._body.clean_end()


def answer(status: int, reason: str, body: str = "", code: str = "proxy_failed") -> bytes:
    """An answer of the proxy itself.

    ``reason`` goes into the status line as well: of an answer to CONNECT, most clients show nothing else.
    """
    line = "".join(char if " " <= char <= "~" else "?" for char in f"podmentor: {reason}")
    content = f"{line}\n{body}".encode("ascii", "replace")
    fields = (("Content-Type", "text/plain"), ("X-Podmentor-Refusal", code))
    return render([f"HTTP/1.1 {status} {line}"], fields, Length(len(content))) + content
