"""Reads what a client says to the egress proxy, and what a server answers to a plain request.  Pure.

Strict where leniency lets two readers see two things: every line ends with CR LF, no folded lines, no second word on
how long a body is.  What is not understood is refused, never passed on; and what is passed on was written by us from
what was understood, for one request of one connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.config.hosts import normalise_host, split_port
from orchestrator.egress.bodies import Body, Chunked, Length, NoBody, UntilEnd

MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's head."""
MAX_ANSWER_HEAD: Final = 64 * 1024
MAX_FIELDS: Final = 100

HOP_BY_HOP: Final = frozenset({
    "connection", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade", "http2-settings", "content-length",
})  # fmt: skip
"""Said anew, or meant for the next hop only."""
LOOKALIKES: Final = frozenset({"content_length", "transfer_encoding"})
"""Some servers take these for the names with a dash."""

_REQUEST = re.compile(rb"([A-Z][A-Z-]{0,31}) ([!-~]+) HTTP/([0-9])\.([0-9])")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})( [\t -~\x80-\xff]*)?")
_FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
_LENGTH = re.compile(r"[0-9]{1,15}")

Fields = tuple[tuple[str, str], ...]


class WireError(Exception):
    """What was read is not understood or not allowed.  ``status``: of the answer; the message quotes nothing."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


@dataclass(frozen=True, slots=True)
class Connect:
    """``CONNECT host:port``.  ``host`` is as the client wrote it."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Request:
    """A request for ``http://host:port`` and ``target`` (path and query)."""

    method: str
    host: str
    port: int
    target: str
    minor: int
    """HTTP/1.``minor``."""
    fields: Fields
    """Without those that concern one connection only, and without Host and framing."""
    body: Body

    def render(self) -> bytes:
        """The head for the server: one request, one connection."""
        host = self.host if self.port == 80 else f"{self.host}:{self.port}"
        lines = [f"{self.method} {self.target} HTTP/1.{self.minor}", f"Host: {host}"]
        return _render(lines, self.fields, self.body)


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
            return _render([f"HTTP/1.1 {self.status} "], self.fields, NoBody(), close=False)
        return _render([f"HTTP/1.1 {self.status} "], self.fields, self.body)


Head = Connect | Request


class LineReader:
    """Bytes in, the lines of one head out: complete when an empty line has been seen."""

    def __init__(self, limit: int, status: int) -> None:
        self._limit = limit
        self._status = status
        self._buffer = bytearray()
        self._used = 0
        self.lines: list[bytes] = []
        self.complete = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes.  Raises: WireError."""
        self._buffer += data
        while not self.complete:
            end = self._buffer.find(b"\n")
            size = len(self._buffer) if end < 0 else end + 1
            if self._used + size > self._limit:
                raise WireError(431 if self._status == 400 else self._status, "the head is too large")
            if end < 0:
                return
            line = bytes(self._buffer[:end])
            del self._buffer[: end + 1]
            self._used += end + 1
            if not line.endswith(b"\r"):
                raise WireError(self._status, "a line does not end with CR LF")
            self._take(line[:-1])

    def _take(self, line: bytes) -> None:
        if line:
            self.lines.append(line)
            if len(self.lines) > MAX_FIELDS + 1:
                raise WireError(431 if self._status == 400 else self._status, "there are too many header fields")
        elif self.lines:
            self.complete = True
        else:
            raise WireError(self._status, "the head begins with an empty line")

    @property
    def rest(self) -> bytes:
        """What has been read behind the head."""
        return bytes(self._buffer)


class HeadReader:
    """The head of the one request of a connection."""

    def __init__(self) -> None:
        self._lines = LineReader(MAX_HEAD, 400)

    def feed(self, data: bytes) -> Head | None:
        """Take the next bytes; the head once it is complete.  Raises: WireError."""
        self._lines.feed(data)
        return _head(self._lines.lines) if self._lines.complete else None

    @property
    def rest(self) -> bytes:
        """What came behind the head."""
        return self._lines.rest


def _head(lines: list[bytes]) -> Head:
    found = _REQUEST.fullmatch(lines[0])
    if found is None:
        raise WireError(400, "the first line is not a request")
    method, target = found[1].decode(), found[2].decode()
    if found[3] != b"1" or found[4] not in {b"0", b"1"}:
        raise WireError(505, "only HTTP/1.0 and HTTP/1.1 are spoken here")
    minor = int(found[4])
    fields = _fields(lines[1:], 400)
    if len(hosts := _values(fields, "host")) > 1:
        raise WireError(400, "there is more than one Host")
    body = _request_body(fields, minor)
    if method == "CONNECT":
        host, port = _authority(target, None)
        if not isinstance(body, NoBody):
            raise WireError(400, "CONNECT has no body")
        if hosts and not _same(hosts[0], host, port, any_port=True):
            raise WireError(400, "Host names another host than the request")
        return Connect(host, port)
    if method == "TRACE":
        raise WireError(405, "TRACE is not allowed")
    host, port, path = _split_url(target)
    if minor == 1 and not hosts:
        raise WireError(400, "there is no Host")
    if hosts and not _same(hosts[0], host, port, any_port=False):
        raise WireError(400, "Host names another host than the request")
    return Request(method, host, port, path, minor, _end_to_end(fields, also=("host",)), body)


def _split_url(target: str) -> tuple[str, int, str]:
    scheme, separator, rest = target.partition("://")
    if not separator or "/" in scheme:
        raise WireError(400, "this is a proxy: ask for a whole URL, such as http://api.example.com/")
    if scheme.lower() != "http":
        raise WireError(400, "only http:// can be asked for like this; use CONNECT for everything else")
    if "#" in target:
        raise WireError(400, "a URL that is asked for has no fragment")
    authority = re.split(r"[/?]", rest, maxsplit=1)[0]
    path = rest[len(authority) :]
    host, port = _authority(authority, 80)
    return host, port, path if path.startswith("/") else f"/{path}"


def _authority(text: str, default: int | None) -> tuple[str, int]:
    if "@" in text:
        raise WireError(400, "a URL with a user name is not passed on")
    try:
        host, port = split_port(text)
    except ValueError:
        raise WireError(400, "host and port cannot be read") from None
    if port is None:
        port = default
    if not host or port is None:
        raise WireError(400, "host or port is missing")
    return host, port


def _same(field: str, host: str, port: int, *, any_port: bool) -> bool:
    """Whether a Host field names what the request names."""
    try:
        named, number = split_port(field)
        if number is None:
            number = port if any_port else 80
        return number == port and normalise_host(named) == normalise_host(host)
    except ValueError:
        return field.lower() in {host.lower(), f"{host}:{port}".lower()}  # the policy will refuse it by its name


def _fields(lines: Iterable[bytes], status: int) -> Fields:
    fields = []
    for line in lines:
        found = _FIELD.fullmatch(line)
        if found is None:
            raise WireError(status, "a header field cannot be read")
        name = found[1].decode()
        if name.lower() in LOOKALIKES:
            raise WireError(status, "a header field looks like one that tells a body's length")
        fields.append((name, found[2].decode("latin-1")))
    return tuple(fields)


def _values(fields: Fields, wanted: str) -> list[str]:
    return [value for name, value in fields if name.lower() == wanted]


def _end_to_end(fields: Fields, *, also: tuple[str, ...] = ()) -> Fields:
    """Without what concerns one connection only, by its name or because ``Connection`` says so."""
    named = {part.strip().lower() for value in _values(fields, "connection") for part in value.split(",")}
    dropped = HOP_BY_HOP | named | set(also)
    return tuple(
        (name, value)
        for name, value in fields
        if (lower := name.lower()) not in dropped and not lower.startswith("proxy-")
    )


def _framing(fields: Fields, status: int) -> Body | None:
    """The length that the fields tell; None: they tell nothing."""
    codings, lengths = _values(fields, "transfer-encoding"), _values(fields, "content-length")
    if codings:
        if lengths:
            raise WireError(status, "there are both Transfer-Encoding and Content-Length")
        if [coding.lower() for coding in codings] != ["chunked"]:
            raise WireError(status, "the only Transfer-Encoding that is passed on is chunked, once")
        return Chunked()
    if not lengths:
        return None
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise WireError(status, "Content-Length must be one number, once")
    return Length(int(lengths[0]))


def _request_body(fields: Fields, minor: int) -> Body:
    body = _framing(fields, 400)
    if isinstance(body, Chunked) and minor == 0:
        raise WireError(400, "HTTP/1.0 has no chunked bodies")
    return NoBody() if body is None else body


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
    fields = _fields(lines[1:], 502)
    framing = _framing(fields, 502)
    body: Body
    if method == "HEAD" or status in {204, 304} or status < 200:
        # The length is that of a body which does not come: told on, and not waited for.
        body = Length(0, told=framing.size) if isinstance(framing, Length) and status >= 200 else NoBody()
    else:
        body = UntilEnd() if framing is None else framing
    return Answer(status, _end_to_end(fields), body)


def _render(lines: list[str], fields: Fields, body: Body, *, close: bool = True) -> bytes:
    lines = [*lines, *(f"{name}: {value}" for name, value in fields), *body.fields()]
    if close:
        lines.append("Connection: close")
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode("latin-1")
