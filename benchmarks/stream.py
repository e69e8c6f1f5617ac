"""How long output takes from the CLI's write to a subscriber, and what journal and HTTP add to merely reading the log.

    scripts/benchmark stream

A pretended CLI in a real container prints its own clock; one reader follows the container's log file, one the run's
event stream over HTTP.  Printed: the median and 95th percentile of both in milliseconds, and their ratio.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path

from orchestrator.runs.stream.log_tail import LogWatcher
from orchestrator.scripted import ScriptedProvider
from tests.podman.live import LiveService, live_service

LINES = 200
CLI = f"""#!/usr/bin/python3
import json, time
def say(**obj): print(json.dumps(obj), flush=True)
say(type="system", subtype="init", session_id="11111111-1111-4111-8111-111111111111", tools=[], mcp_servers=[])
for n in range({LINES}):
    say(type="assistant", message={{"id": f"m{{n}}", "content": [{{"type": "text", "text": repr(time.time())}}]}})
    time.sleep(0.02)
say(type="result", subtype="success", is_error=False, result="", duration_ms=1, num_turns=1, usage={{}})
"""


async def over_http(service: LiveService, run_id: str) -> list[float]:
    """Delays of the events of a subscriber."""
    return [
        time.time() - float(event["data"]["text"])
        async for event in service.events(run_id)
        if event["kind"] == "message_delta"
    ]


async def from_log(path: Path) -> list[float]:
    """Delays of a bare reader of the log."""
    delays: list[float] = []
    while not path.exists():
        await asyncio.sleep(0.01)
    async with LogWatcher() as watcher:
        pending = b""
        async for chunk in watcher.tail(path).chunks():
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                obj = json.loads(line.split(b" ", 3)[3])
                if obj["type"] == "assistant":
                    delays.append(time.time() - float(obj["message"]["content"][0]["text"]))
            if len(delays) == LINES:
                break
    return delays


def figures(delays: list[float]) -> tuple[float, float]:
    """Median and 95th percentile in milliseconds."""
    return statistics.median(delays) * 1000, statistics.quantiles(delays, n=20)[-1] * 1000


async def main() -> None:
    """One run, measured twice at once."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        repo = root / "repo"
        repo.mkdir()
        (repo / "cli").write_text(CLI)
        (repo / "cli").chmod(0o755)
        async with (
            ScriptedProvider() as provider,
            live_service(root, provider.base_url, backend={"binary": "/workspace/cli"}) as service,
        ):
            run = await service.submit("x", repo=str(repo))
            log = service.state / "runs" / run["run_id"] / "ctr.log"
            http, bare = await asyncio.gather(over_http(service, run["run_id"]), from_log(log))
            await service.call("DELETE", f"/v1/subagents/{run['subagent_id']}")
    (p50, p95), (bare50, bare95) = figures(http), figures(bare)
    print(f"bare reader of the log   p50 {bare50:6.2f} ms   p95 {bare95:6.2f} ms")
    print(f"subscriber over HTTP     p50 {p50:6.2f} ms   p95 {p95:6.2f} ms   ({p50 / bare50:.1f} times)")


if __name__ == "__main__":
    asyncio.run(main())
