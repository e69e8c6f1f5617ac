"""git's format for binary content in a patch: zlib, then base 85, in both directions.  Pure."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator

_LINE = 52
"""Bytes on one line; its first letter says how many (A to Z for 1 to 26, a to z for 27 to 52)."""
_LEVEL = 6


def binary_hunks(before: bytes, after: bytes) -> bytes:
    """What follows a file's header: how to get ``after``, and how to get ``before`` back (``git apply -R``)."""
    return b"GIT binary patch\n" + _literal(after) + _literal(before)


def _literal(data: bytes) -> bytes:
    packed = zlib.compress(data, _LEVEL)
    return b"literal %d\n" % len(data) + b"".join(_lines(packed)) + b"\n"


def _lines(packed: bytes) -> Iterator[bytes]:
    for at in range(0, len(packed), _LINE):
        piece = packed[at : at + _LINE]
        size = len(piece)
        yield bytes([0x40 + size if size <= 26 else 0x60 + size - 26]) + base64.b85encode(piece, pad=True) + b"\n"
