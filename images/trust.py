"""The certificates that builds and images trust in addition to Debian's own."""

import re
from collections.abc import Iterable
from pathlib import Path

from orchestrator.errors import ImageBuildError

HOST_ANCHORS = (Path("/usr/local/share/ca-certificates"), Path("/etc/pki/ca-trust/source/anchors"))
"""Where an administrator of Debian's or Fedora's family puts certificates of the house."""
_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----\s.+?-----END CERTIFICATE-----", re.DOTALL)


def extra_certificates(bundle: Path | None, *, anchors: tuple[Path, ...] = HOST_ANCHORS) -> bytes:
    """The certificates of ``bundle``; without one, those that the host's administrator has added; none: empty.

    Raises ImageBuildError when the bundle cannot be read or has no certificate in it.
    """
    if bundle is None:
        return certificates(content for directory in anchors for content in _readable(directory))
    try:
        found = certificates([bundle.read_bytes()])
    except OSError as error:
        raise ImageBuildError(f"the CA bundle {bundle} cannot be read: {error.strerror}") from error
    if not found:
        raise ImageBuildError(f"the CA bundle {bundle} has no PEM certificate in it")
    return found


def _readable(directory: Path) -> list[bytes]:
    found = []
    for path in sorted(directory.rglob("*")) if directory.is_dir() else []:
        if path.suffix in {".crt", ".pem"} and path.is_file():
            try:
                found.append(path.read_bytes())
            except OSError as error:
                raise ImageBuildError(
                    f"{path} cannot be read ({error.strerror}): make it readable, or name a bundle with --ca-bundle"
                ) from error
    return found


def certificates(pem_files: Iterable[bytes]) -> bytes:
    """The certificates of some PEM files as one file: each once, in an order that does not depend on the files'.

    Comments and private keys that may stand beside them are left out.
    """
    found = {b"\n".join(block.split(b"\r\n")) for pem in pem_files for block in _CERTIFICATE.findall(pem)}
    return b"".join(block + b"\n" for block in sorted(found))
