"""What Podman said, as one of our errors.  Pure, and strict on purpose.

Podman's messages quote paths, image names and the command line, so parts of them can be written by others.  A message
makes a call be tried again only when the known sentence stands where Podman itself puts it: at the very start, or at
the very end after a colon; never when it reports what the OCI runtime said, for that repeats the command.
"""

import re
from typing import Final

from orchestrator.errors import (
    ImageMissingError,
    RuntimeUnavailableError,
    SandboxError,
    SandboxGoneError,
    TransientSandboxError,
)

REFUSED: Final = "connection refused"
RESET: Final = "connection reset"
NO_SOCKET: Final = "no such socket"
TIMED_OUT: Final = "timed out"
"""Messages that the transport gives with status None, when there was no answer at all."""

MESSAGE_CHARS: Final = 600

_UNREACHED: Final = frozenset({REFUSED, RESET, NO_SOCKET})
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_OCI = re.compile(r"(?:runc|crun|youki|kata-runtime|runsc): |.*(?:^|: )OCI (?:runtime|permission denied|not found)\b")

_GONE = re.compile(r"(?:(?:no container with (?:name or )?ID .*|[^:]*): )?no such container")
_IMAGE = re.compile(r"(?:(?:failed to find image|no such image:) )?\S+: (?:\S+: )?image not known")
_TRANSIENT: Final = (
    # Seen in about 2 % of creates at high concurrency although the ids are all there.
    re.compile(r"keep-id requires additional UIDs or GIDs defined in /etc/subuid .*"),
    re.compile(r"(?:.*: )?database is locked(?: \(\d+\))?(?: \(SQLITE_BUSY\))?"),
    re.compile(r"(?:.*: )?container state improper(?:: [a-z]+)?"),
    re.compile(r"(?:.*: )?(?:container [0-9a-f]{12,64} is (?:already )?being removed|removal already in progress)"),
    # 5.x, removing a container whose conmon was killed: the next try finds it ended.
    re.compile(
        r"(?:.*: )?container [0-9a-f]{64} conmon exited prematurely, exit code could not be retrieved: .{0,40}error"
    ),
)
_HELP: Final = (
    (
        re.compile(r".*(?:no free locks|exceeded num_locks|allocation failed; ).*"),
        "remove unused containers and volumes, or raise num_locks in containers.conf and run `podman system renumber`",
    ),
    (
        re.compile(r".*(?:no space left on device|[Dd]isk quota exceeded).*"),
        "free some space where Podman's storage and podmentor's state directory are (`podmentor images prune` helps)",
    ),
    (
        re.compile(r".*too many open files.*"),
        "raise the limit of open files (LimitNOFILE of the unit, or `ulimit -n`)",
    ),
    (
        re.compile(r".*cgroups in hybrid mode not supported.*"),
        "this host needs another OCI runtime: set `podman.runtime: runc`",
    ),
    (
        re.compile(r".*(?:insufficient UIDs or GIDs|not enough IDs|keep-id requires additional).*"),
        "give the user 65536 subordinate ids (`usermod --add-subuids --add-subgids`), then `podman system migrate`",
    ),
)


def classify(status: int | None, message: str) -> SandboxError:
    """The error for an answer of Podman.  ``status`` None: there was none, ``message`` is one of this module's words.

    ``details`` of the error has the status.
    """
    text = _UNPRINTABLE.sub(" ", message).strip()[:MESSAGE_CHARS]
    if status is None:
        if text in _UNREACHED:
            return TransientSandboxError(f"the Podman service cannot be reached: {text}", status=None)
        return RuntimeUnavailableError(f"the Podman service did not answer: {text}", status=None)
    if (status in {404, 500} and _GONE.fullmatch(text)) or (status == 404 and not text):
        return SandboxGoneError("the container does not exist (any more)", status=status)
    if status in {404, 500} and _IMAGE.fullmatch(text):
        return ImageMissingError("Podman does not have the image: `podmentor images build` makes it", status=status)
    if _OCI.match(text):
        return SandboxError(_with_help(f"the OCI runtime failed: {text}", text), status=status)
    if (status >= 500 or status == 409) and any(known.fullmatch(text) for known in _TRANSIENT):
        return TransientSandboxError(_with_help(f"Podman is busy: {text}", text), status=status)
    return SandboxError(_with_help(f"Podman refused (HTTP {status}): {text or 'no message'}", text), status=status)


def _with_help(sentence: str, text: str) -> str:
    for known, what_to_do in _HELP:
        if known.fullmatch(text):
            return f"{sentence}; {what_to_do}"
    return sentence
