"""The record of who did what: with secrets, with runs, with what runs reach and change."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

Fact: TypeAlias = str | int | bool | None

SERVICE: Final = "service"
"""The actor of what the service does by itself."""
ENVELOPE: Final = ("ts", "event", "actor", "user_id", "run_id", "backend")
"""The first members of every line, in this order; the last three where they apply."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One kind of line: its further members, whether it comes before what it tells of, and what that is."""

    facts: tuple[str, ...]
    before: bool
    """Written first: what cannot be written down does not happen."""
    meaning: str


def _before(facts: str, meaning: str) -> AuditEvent:
    return AuditEvent(tuple(facts.split()), before=True, meaning=meaning)


def _after(facts: str, meaning: str) -> AuditEvent:
    return AuditEvent(tuple(facts.split()), before=False, meaning=meaning)


EVENTS: Final[dict[str, AuditEvent]] = {
    "service.started": _after("version instance", "the service has the state directory and will take runs"),
    "service.stopped": _after("left_running", "it takes no more; so many runs were left to the next one"),
    "run.submitted": _after("user_id run_id backend subagent_id tier workspace repo", "a run was accepted"),
    "run.started": _before(
        "user_id run_id backend subagent_id tier credential_source cli_version image_id",
        "its container is about to be made",
    ),
    "run.cancel": _after("user_id run_id backend", "somebody wants the run to end"),
    "run.ended": _after(
        "user_id run_id backend subagent_id tier credential_source outcome reason exit_code duration_ms",
        "nothing of it is left",
    ),
    "limit.hit": _after("user_id run_id backend limit allowed used", "the run was ended by a limit"),
    "credential.used": _before(
        "user_id run_id backend credential_source", "a run starts, or is taken over after a restart"
    ),
    "egress.allowed": _after(
        "user_id run_id backend host port count bytes_up bytes_down", "connections that have ended"
    ),
    "egress.denied": _after("user_id run_id backend host port count reason", "attempts that were refused"),
    "egress.host_added": _before("user_id run_id backend host", "one more host for the rest of a run"),
    "changes.apply": _before("user_id subagent_id repo on_conflict paths", "changes are about to go into the repo"),
    "changes.applied": _after("user_id subagent_id branch commit paths", "they are there"),
    "changes.completed": _after("subagent_id reason", "an interrupted apply turned out to be whole"),
    "changes.rolled_back": _after("subagent_id reason", "an interrupted apply was undone"),
    "changes.discard": _before("user_id subagent_id paths", "changes are about to be dropped"),
    "changes.rollback": _before("user_id run_id subagent_id", "a workspace goes back to the end of this run"),
    "subagent.deleted": _before("user_id backend subagent_id", "a subagent is removed, with all that belongs to it"),
    "gc": _before("older_than_days unapplied", "what is old goes"),
    "key.set": _before("user_id backend", "a user's own key is stored"),
    "key.deleted": _before("user_id backend", "a user's own key goes"),
    "account.connect": _before("user_id backend", "a HOME for a subscription is made"),
    "account.login": _before("user_id backend", "a CLI's own login gets a terminal"),
    "account.disconnect": _before("user_id backend mode", "somebody wants the HOME to go"),
    "account.removed": _after("user_id backend", "it is gone"),
    "secret.set": _before("user_id name", "a secret of the configuration is stored"),
    "secret.deleted": _before("user_id name", "it goes"),
    "secret.used": _before("user_id name", "it is put into the configuration"),
    "vault.initialised": _before("key_id", "a master key is made"),
    "vault.rotating": _before("key_id", "everything is about to be encrypted under this key"),
    "vault.rotated": _after("key_id secrets", "it is"),
    "vault.discarded": _before("key_id secrets", "secrets of a lost master key are given up"),
    "token.created": _before("token_id name role expires_at", "a token for the API is made"),
    "token.revoked": _before("token_id", "it is refused from now on"),
    "image.adopted": _before("backend version from_version", "new runs start from this version of the CLI"),
    "image.refused": _after("backend version from_version", "the version was tried and is not used"),
}
"""Every event there is (docs/audit.md has the same table)."""


class Audit(Protocol):
    """Append-only.  An event is one of ``EVENTS`` and plain facts; the value of a secret is no fact, nor is anything
    that was said to an agent or by it."""

    async def record(self, event: str, **facts: Fact) -> None:
        """Write one event, on disk when this returns.  Without ``actor`` it is the service itself.

        Raises StorageError: what cannot be recorded must not happen.
        """
        ...

    async def note(self, event: str, **facts: Fact) -> None:
        """The same for what has happened already: when it cannot be written, the service's own log gets the line."""
        ...


@dataclass(frozen=True, slots=True)
class Damaged:
    """A line that is none: cut by a crash or a full disk, or changed by somebody."""

    file: str
    number: int
    """From 1, in its file."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which lines.  None: all."""

    event: str | None = None
    """A pattern such as ``egress.*``."""
    user: str | None = None
    """By whom or for whom: the user, or the name of the token."""
    run_id: str | None = None
    """A run's id or its beginning."""


class AuditLines(Protocol):
    """The log, for reading.  Lines come as their members, in the order in which they were written."""

    async def last(self, wanted: AuditFilter, count: int | None) -> list[Mapping[str, Any] | Damaged]:
        """The last ``count`` that are wanted (None: all), with what is damaged between them.  Raises StorageError."""
        ...

    def follow(self, wanted: AuditFilter) -> AsyncIterator[Mapping[str, Any] | Damaged]:
        """Those that are written from ``last`` (or from now) on, over every rotation, without an end."""
        ...
