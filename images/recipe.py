"""The recipe hash: what an image is made of, in 64 hex digits.  Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping

FORMAT_VERSION = "1"
"""Raise it when the build itself changes in a way that the recipes' files do not show."""
SHORT = 12
"""Digits of the hash that are part of a tag."""

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.+?-----END CERTIFICATE-----", re.DOTALL)


def recipe_hash(files: Mapping[str, bytes], *inputs: str) -> str:
    """Hash of a recipe's files (by name, in whatever order they come) and of what else the image is made from.

    Every part goes in with its length, so that no two different sets of parts look the same.
    """
    digest = hashlib.sha256()

    def add(part: bytes) -> None:
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)

    for text in (FORMAT_VERSION, str(len(inputs)), *inputs):
        add(text.encode())
    for name in sorted(files):
        add(name.encode())
        add(files[name])
    return digest.hexdigest()


def certificates(pem_files: Iterable[bytes]) -> bytes:
    """The certificates of some PEM files as one file: each once, in an order that does not depend on the files'.

    Comments and private keys that may stand beside them are left out.
    """
    found = {b"\n".join(block.split(b"\r\n")) for pem in pem_files for block in _CERTIFICATE.findall(pem)}
    return b"".join(block + b"\n" for block in sorted(found))
