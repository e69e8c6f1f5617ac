"""Each backend's CLI is asked in its real container whether it could log in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.adapters.registered import adapters
from tests.podman.live import REAL_KEY, LiveService, podman, processes_with

pytestmark = [pytest.mark.podman, pytest.mark.timeout(240)]
BACKENDS = sorted(name for name, adapter in adapters().items() if adapter.transport == "subprocess")
PROBE = "/ui/plugins/external_agent/auth/probe?backend="


async def test_c15_every_cli_is_asked_and_nothing_is_left(tmp_path: Path) -> None:
    backends = {name: {"api_key": REAL_KEY, "base_url": "http://127.0.0.1:9"} for name in BACKENDS}
    service = LiveService(tmp_path, "http://127.0.0.1:9", external_agent={"backends": backends})
    await service.start()
    try:
        instance = (service.state / "instance").read_text().strip()
        for name in BACKENDS:
            answer = await service.call("GET", PROBE + name)
            assert answer["installed"] is True, (name, answer)
            assert answer.keys() <= {"installed", "authenticated", "error"}, name
            assert answer["authenticated"] is True, (name, answer)
            assert REAL_KEY not in str(answer)
        listing = await podman("ps", "-a", "--filter", f"label=podmentor.instance={instance}", "--format", "{{.ID}}")
        assert listing == ""
        for place in (service.state / "subagents", service.state / "runs"):
            assert list(place.iterdir()) == []
        assert processes_with(instance) == []
    finally:
        await service.terminate()
