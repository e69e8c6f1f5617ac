"""Where an agent works: the directories of a conversation and of a run, as the supervisor sees them."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from orchestrator.contract.runs import FileChange
from orchestrator.contract.sandbox import WorkspaceMount

ID = re.compile(r"[0-9a-f]{32}")
"""What a run id or a subagent id looks like (use ``fullmatch``).  Ids become paths, so nothing else is let through."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a container of the conversation mounts: the repo as the agent sees it, and the agent's HOME."""

    mount: WorkspaceMount
    home: Path


class WorkspaceStore(Protocol):
    """Makes, reads and removes the directories.  Every call runs off the event loop."""

    async def prepare(
        self, *, subagent_id: str, source: Path | None, mode: Literal["overlay", "direct", "readonly"]
    ) -> Prepared:
        """The conversation's directories, made at its first run and kept for the following ones.

        ``source``: the repo, absolute; None: an empty workspace.  No container of the conversation may be running.
        Raises InvalidRequestError (the repo cannot be used, and why), ConflictError (the conversation works on another
        repo) and StorageError (the state directory cannot hold a workspace).
        """
        ...

    async def discard(self, subagent_id: str) -> None:
        """Remove everything of a conversation; fine when there is nothing.  Raises StorageError."""
        ...

    async def list_changes(self, mount: WorkspaceMount) -> list[FileChange]:
        """What the agent changed.  Raises InvalidRequestError for ``direct``: there only the repo itself can tell."""
        ...

    async def unified_patch(self, mount: WorkspaceMount) -> bytes:
        """The same as a patch in git's format.  Raises InvalidRequestError as above."""
        ...

    async def make_control_dir(self, run_id: str, prompt: str) -> Path:
        """The control directory of a run, with the file ``prompt`` in it.  Raises StorageError."""
        ...

    async def remove_control_dir(self, run_id: str) -> None:
        """Remove it with all that is in it; fine when there is none."""
        ...

    async def stale_control_dirs(self, active: AbstractSet[str]) -> list[str]:
        """Ids of the control directories that belong to none of the ``active`` runs."""
        ...
