"""Reads what a client says to the egress proxy.  Pure.

Strict where leniency lets two readers see two things: every line ends with CR LF, no folded lines, no second
statement of how long a body is.  What is not understood is refused, never passed on; and what is passed on was written
by us from what was understood, for one request of one connection.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from orchestrator.config.hosts import normalise_host, split_port
from orchestrator.relay.proxy.http1.body import Body, Chunked, NoBody
from orchestrator.relay.proxy.http1.message import (
    Fields,
    LineReader,
    WireError,
    end_to_end,
    framing,
    read_fields,
    render,
    values,
)

MAX_HEAD: Final = 16 * 1024
"""Bytes of a request's head."""

_REQUEST = re.compile(rb"([A-Z][A-Z-]{0,31}) ([!-~]+) HTTP/([0-9])\.([0-9])")


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
        return render(lines, self.fields, self.body)


Head = Connect | Request


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
    fields = read_fields(lines[1:], 400)
    if len(hosts := values(fields, "host")) > 1:
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
    return Request(method, host, port, path, minor, end_to_end(fields, also=("host",)), body)


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


def _request_body(fields: Fields, minor: int) -> Body:
    body = framing(fields, 400)
    if isinstance(body, Chunked) and minor == 0:
        raise WireError(400, "HTTP/1.0 has no chunked bodies")
    return NoBody() if body is None else body
