"""What a workspace costs, by the size of the repo: the first start of an overlay, the list of three changes, a copy.

    python benchmarks/workspace.py [FILES...]        default: 1000 100000

Prints one line per size: milliseconds, the best of three.
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from orchestrator.config.models import Paths
from orchestrator.contract.sandbox import WorkspaceMount
from orchestrator.workspace import DirectoryWorkspaces


async def no_delete(path: Path) -> None:
    """Nothing here needs help to be removed."""
    raise AssertionError(path)


def make_repo(repo: Path, files: int) -> None:
    """So many files of one line in a hundred directories."""
    for number in range(100):
        (repo / f"d{number}").mkdir(parents=True)
    for number in range(files):
        (repo / f"d{number % 100}" / str(number)).write_text(f"{number}\n")


async def best(work: Callable[[int], Awaitable[object]]) -> float:
    """Milliseconds of the fastest of three."""
    times = []
    for number in range(3):
        began = time.perf_counter()
        await work(number)
        times.append(time.perf_counter() - began)
    return min(times) * 1000


async def measure(files: int) -> str:
    """One line of figures."""
    with tempfile.TemporaryDirectory() as top:
        repo = Path(top, "repo")
        make_repo(repo, files)
        paths = Paths(state_dir=Path(top, "state"), runtime_dir=Path(top, "run"))
        workspaces = DirectoryWorkspaces(paths, no_delete)
        mounts: list[WorkspaceMount] = []

        async def start(number: int) -> None:
            made = await workspaces.prepare(subagent_id=f"{number:032x}", source=repo, mode="overlay")
            mounts.append(made.mount)

        async def changes(_: int) -> None:
            found = await workspaces.list_changes(mounts[-1])
            assert len(found) == 3, found

        async def copy(number: int) -> None:
            await workspaces.prepare(subagent_id=f"{number + 16:032x}", source=repo, mode="copy")

        started = await best(start)
        upper = mounts[-1].upper
        assert upper is not None
        (upper / "d1").mkdir()
        for name in ("1", "101", "new"):
            (upper / "d1" / name).write_text("changed\n")
        listed = await best(changes)
        copied = await best(copy)
        return f"{files:>7} files: start {started:7.1f} ms   3 changes {listed:7.1f} ms   copy {copied:8.1f} ms"


if __name__ == "__main__":
    for count in [int(word) for word in sys.argv[1:]] or [1000, 100_000]:
        print(asyncio.run(measure(count)))
