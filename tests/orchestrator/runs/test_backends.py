"""A backend as clients see it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.orchestrator.runs.harness import USER, World


async def test_what_the_bench_saw_of_this_very_version_is_served(tmp_path: Path) -> None:
    world = World(tmp_path)
    asked: list[tuple[str, str]] = []

    def seen(backend: str, cli_version: str) -> Mapping[str, Any] | None:
        asked.append((backend, cli_version))
        return {"cli_version": cli_version}

    world.observed = seen
    async with world.service() as service:
        [info] = await service.backends.describe(user_id=USER)
        assert info.capabilities_seen == {"cli_version": "1.0"}
        assert asked == [("echo", "1.0")]
        world.runtime.has_image = False
        [info] = await service.backends.describe(user_id=USER)
        assert (info.image, info.capabilities_seen) == (None, None)
        assert len(asked) == 1
