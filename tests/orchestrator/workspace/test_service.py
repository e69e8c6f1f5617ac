"""The workspaces behind their locks."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.config.models import Paths
from orchestrator.workspace import DirectoryWorkspaces


async def _no_tree(_: Path) -> None:
    raise AssertionError("nothing is removed here")


async def test_a_workspace_is_exclusive_for_those_who_waited_too(tmp_path: Path) -> None:
    """The second one gets the lock from the first; a third who comes at that moment does not get another lock."""
    workspaces = DirectoryWorkspaces(Paths(state_dir=tmp_path, runtime_dir=tmp_path), _no_tree)
    inside: list[str] = []
    most = 0

    async def hold(name: str, entered: asyncio.Event, leave: asyncio.Event) -> None:
        nonlocal most
        async with workspaces.exclusive("s"):
            inside.append(name)
            most = max(most, len(inside))
            entered.set()
            await leave.wait()
            inside.remove(name)

    async with asyncio.TaskGroup() as group:
        entered, leave = [asyncio.Event() for _ in range(3)], [asyncio.Event() for _ in range(3)]
        first = group.create_task(hold("first", entered[0], leave[0]))
        group.create_task(hold("second", entered[1], leave[1]))
        await entered[0].wait()
        leave[0].set()
        await first
        group.create_task(hold("third", entered[2], leave[2]))
        await entered[1].wait()
        assert inside == ["second"]
        leave[2].set()  # were it in already, it would be gone again before the second one
        await asyncio.sleep(0)
        leave[1].set()
        await entered[2].wait()
    assert most == 1
