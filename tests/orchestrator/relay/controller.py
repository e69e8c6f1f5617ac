"""A service that grants one run and then waits to be killed: ``python controller.py DIRECTORY UPSTREAM [RULE...]``.

With rules the run gets an egress proxy as well; names are those of DIRECTORY/hosts.
"""

import asyncio
import sys
from pathlib import Path

from orchestrator.relay.control.client import RelayProcess
from tests.orchestrator.relay.proxied import egress_grant
from tests.orchestrator.relay.support import grant_for


async def main(directory: Path, upstream: str, *rules: str) -> None:
    options = ("--resolve-file", str(directory / "hosts"))
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", options=options)
    await relay.start()
    await relay.grant(grant_for(directory, upstream))
    if rules:
        await relay.grant_egress(egress_grant(directory, *rules))
    print(relay.pid, flush=True)
    await asyncio.Event().wait()


asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
