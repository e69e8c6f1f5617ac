"""A service that grants one run and then waits to be killed: ``python controller.py DIRECTORY UPSTREAM``."""

import asyncio
import sys
from pathlib import Path

from orchestrator.egress.client import RelayProcess
from tests.orchestrator.egress.support import grant_for


async def main(directory: Path, upstream: str) -> None:
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log")
    await relay.start()
    await relay.grant(grant_for(directory, upstream))
    print(relay.pid, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
