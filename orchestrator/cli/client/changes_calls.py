"""The client's calls about what an agent has changed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol
from urllib.parse import quote

_LONG = 900.0
"""Seconds that applying or removing many files may take."""


class ChangesCalls(Protocol):
    """Mixed into ``ApiClient``, which sends what is asked here."""

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> bytes:
        """The body of the answer."""
        ...

    async def json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """``call`` for answers that are JSON objects."""
        ...

    async def changes(self, subagent_id: str) -> list[dict[str, Any]]:
        """What its workspace has changed, without the files that git ignores."""
        return list((await self.change_list(subagent_id))["changes"])

    async def change_list(self, subagent_id: str, paths: Sequence[str] = ()) -> dict[str, Any]:
        """{changes, ignored}."""
        return await self.json("GET", f"{_subagent(subagent_id)}/changes", params=_paths(paths))

    async def patch(self, subagent_id: str, paths: Sequence[str] = (), *, ignored: bool = False) -> bytes:
        """The same as a patch."""
        params = _paths(paths) | ({"ignored": "true"} if ignored else {})
        return await self.call("GET", f"{_subagent(subagent_id)}/changes.patch", params=params)

    async def apply(self, subagent_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Bring changes into the repo: {applied, files, branch, commit}.  Raises ConflictError."""
        return await self.json("POST", f"{_subagent(subagent_id)}/apply", body=body, timeout=_LONG)

    async def discard(self, subagent_id: str, paths: Sequence[str]) -> dict[str, Any]:
        """Drop changes: {discarded}."""
        return await self.json("POST", f"{_subagent(subagent_id)}/discard", body={"paths": list(paths)}, timeout=_LONG)

    async def run_changes(self, run_id: str) -> list[dict[str, Any]]:
        """What one run changed in the workspace."""
        return list((await self.json("GET", f"/v1/runs/{quote(run_id, safe='')}/changes"))["changes"])

    async def rollback(self, subagent_id: str, run_id: str) -> None:
        """Take the workspace back to the end of a run."""
        await self.call("POST", f"{_subagent(subagent_id)}/rollback", body={"run_id": run_id}, timeout=_LONG)

    async def gc(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Remove what is old: {removed, kept, bytes, dry_run}."""
        return await self.json("POST", "/v1/gc", body=body, timeout=_LONG)

    async def commits(self, subagent_id: str) -> list[dict[str, Any]]:
        """The commits that the agent made, newest first."""
        return list((await self.json("GET", f"{_subagent(subagent_id)}/commits"))["commits"])

    async def commits_file(self, subagent_id: str, form: str) -> bytes:
        """The same as a file; ``form``: ``bundle`` or ``patch``."""
        return await self.call("GET", f"{_subagent(subagent_id)}/commits.{form}")


def _subagent(subagent_id: str) -> str:
    return f"/v1/subagents/{quote(subagent_id, safe='')}"


def _paths(paths: Sequence[str]) -> dict[str, str]:
    return {"paths": json.dumps(list(paths))} if paths else {}
