"""Bytes to sealed records and back.  Pure, but for the randomness that is handed in.

A record is ``header || nonce || ciphertext and tag``; the header is ``"PMV" || format || key id || salt``.  Each
record has its own AES-256-GCM key, derived with HKDF-SHA256 from the master key and the record's random salt, so that
nonces never have to be counted.  The associated data are the header and, with their lengths, the owner and the name: a
record that is changed, cut, or put in another's place does not open.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from orchestrator.errors import SecretUnreadableError, VaultUnavailableError

FORMAT: Final = 1
KEY_BYTES: Final = 32
_MAGIC: Final = b"PMV"
_ID_BYTES: Final = 8
_SALT_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_HEADER_BYTES: Final = len(_MAGIC) + 1 + _ID_BYTES + _SALT_BYTES
_TEXT_PREFIX: Final = "pmvault1-"


@dataclass(frozen=True, slots=True)
class MasterKey:
    """The key that everything else is derived from; it encrypts nothing itself."""

    raw: bytes = field(repr=False)

    @classmethod
    def new(cls, entropy: Callable[[int], bytes] = os.urandom) -> MasterKey:
        """A random one."""
        return cls(entropy(KEY_BYTES))

    @classmethod
    def from_text(cls, text: str, *, where: str) -> MasterKey:
        """What ``to_text`` gave.  Raises VaultUnavailableError, which names ``where`` and never the text."""
        body = text.strip().removeprefix(_TEXT_PREFIX)
        try:
            raw = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)) if body.isascii() else b""
        except (binascii.Error, ValueError):
            raw = b""
        if len(raw) != KEY_BYTES or not hmac.compare_digest(cls(raw).to_text().encode(), text.strip().encode()):
            raise VaultUnavailableError(f"{where} holds no key of a vault; `podmentor vault init` makes one")
        return cls(raw)

    def to_text(self) -> str:
        """For a file or a variable."""
        return _TEXT_PREFIX + base64.urlsafe_b64encode(self.raw).decode("ascii").rstrip("=")

    @property
    def key_id(self) -> str:
        """Tells keys apart and may be shown: 16 hex digits."""
        return self.derive(b"key id", length=_ID_BYTES).hex()

    def derive(self, purpose: bytes, *, salt: bytes | None = None, length: int = KEY_BYTES) -> bytes:
        """A key for one purpose."""
        return HKDF(algorithm=SHA256(), length=length, salt=salt, info=b"podmentor vault 1: " + purpose).derive(
            self.raw
        )

    def fingerprint(self, user_id: str, value: str) -> str:
        """8 hex digits that are the same for the same value of the same user.

        Keyed, so that without the master key no guess can be checked against it; per user, so that nobody sees that
        two users have the same value; and nothing of the value itself, not even its last characters.
        """
        text = _framed(user_id) + value.encode()
        return hmac.digest(self.derive(b"fingerprint"), text, "sha256")[:4].hex()


def seal(
    master: MasterKey, value: str, *, user_id: str, name: str, entropy: Callable[[int], bytes] = os.urandom
) -> bytes:
    """``value`` as a record that opens only for this owner and name, under this master key."""
    salt, nonce = entropy(_SALT_BYTES), entropy(_NONCE_BYTES)
    header = _MAGIC + bytes([FORMAT]) + bytes.fromhex(master.key_id) + salt
    cipher = AESGCM(master.derive(b"record", salt=salt))
    return header + nonce + cipher.encrypt(nonce, value.encode(), _bound(header, user_id, name))


def key_id_of(record: bytes) -> str:
    """Under which master key a record was sealed; empty for what is no record of a known format."""
    if len(record) < _HEADER_BYTES + _NONCE_BYTES + _TAG_BYTES or not record.startswith(_MAGIC + bytes([FORMAT])):
        return ""
    return record[len(_MAGIC) + 1 :][:_ID_BYTES].hex()


def open_sealed(master: MasterKey, record: bytes, *, user_id: str, name: str) -> str:
    """The value.  Raises SecretUnreadableError, which says nothing of what is inside."""
    if key_id_of(record) != master.key_id:
        raise unreadable(name, "it is damaged or was sealed with another master key")
    header, rest = record[:_HEADER_BYTES], record[_HEADER_BYTES:]
    cipher = AESGCM(master.derive(b"record", salt=header[-_SALT_BYTES:]))
    try:
        plain = cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], _bound(header, user_id, name))
        return plain.decode()
    except (InvalidTag, UnicodeDecodeError):
        raise unreadable(name, "it was changed, cut, or is another secret's") from None


def unreadable(name: str, why: str) -> SecretUnreadableError:
    """The error for one record."""
    return SecretUnreadableError(
        f"the stored secret {name!r} cannot be read: {why}; set it again, or delete it", name=name
    )


def _bound(header: bytes, user_id: str, name: str) -> bytes:
    return header + _framed(user_id) + _framed(name)


def _framed(text: str) -> bytes:
    """With its length in front, so that no two pairs of texts give the same bytes."""
    data = text.encode()
    return len(data).to_bytes(4, "big") + data
