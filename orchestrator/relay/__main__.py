"""The relay process: ``python -m orchestrator.relay --control PATH --log PATH``.

One per state directory, in a session of its own, so that runs still reach the provider while the service is
killed or restarted.  Keys come over the control socket only and live in this process's memory alone; each grant ends
at its time by itself; with no grants and nobody connected the process ends after ``--linger`` seconds.

Exit codes: 0 ended as asked or for want of work, 2 bad arguments, 3 another relay serves this control socket.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Final

from orchestrator.relay.limits import Limits
from orchestrator.relay.process.hardening import close_logging, harden, open_logging
from orchestrator.relay.process.server import RelayServer
from orchestrator.relay.proxy.resolver import FileResolver
from orchestrator.relay.sockets import Listener, listen
from orchestrator.system.locks import try_lock

log = logging.getLogger(__name__)

EXIT_TAKEN: Final = 3


def take_lock(control: Path, *, seconds: float = 5.0) -> int | None:
    """Hold the lock beside ``control`` for the life of the process; None when a relay that serves there has it.

    A relay that is just ending does not answer any more, but has the lock for a moment: up to ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while (handle := try_lock(control.with_suffix(".lock"))) is None:
        if _answers(control) or time.monotonic() >= deadline:
            return None
        time.sleep(0.02)
    return handle


def _answers(control: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(control))
        except OSError:
            return False
        return True


async def run(args: argparse.Namespace, listener: Listener) -> None:
    """The process, from its event loop on."""
    limits = Limits(
        body_bytes=args.max_body,
        connections=args.max_connections,
        idle_seconds=args.idle,
        connect_seconds=args.connect,
    )
    resolver = None if args.resolve_file is None else FileResolver(args.resolve_file)
    server = RelayServer(linger=args.linger, limits=limits, resolver=resolver)
    logging_state = open_logging(args.log, server.secrets)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.stop)
    try:
        await server.serve(listener, args.ready_fd)
    except Exception as error:
        log.critical("the relay broke down: %s", type(error).__name__)
        raise
    finally:
        close_logging(logging_state)


def parse(argv: list[str]) -> argparse.Namespace:
    """The command line: places and bounds, never a secret."""
    default = Limits()
    parser = argparse.ArgumentParser(prog="orchestrator.relay", description=__doc__, allow_abbrev=False)
    parser.add_argument("--control", type=Path, required=True, help="Unix socket for the service")
    parser.add_argument("--log", type=Path, required=True, help="log file; kept below 2 MiB with its predecessor")
    parser.add_argument("--ready-fd", type=int, help="written to and closed when the control socket answers")
    parser.add_argument("--linger", type=float, default=10.0, help="seconds to stay without work (default 10)")
    parser.add_argument("--resolve-file", type=Path, help="look names up in this file (as /etc/hosts) and nowhere else")
    parser.add_argument("--max-body", type=int, default=default.body_bytes, help="bytes of one request's body")
    parser.add_argument("--max-connections", type=int, default=default.connections, help="per run")
    parser.add_argument("--idle", type=float, default=default.idle_seconds, help="seconds between two bytes")
    parser.add_argument("--connect", type=float, default=default.connect_seconds, help="seconds to reach the provider")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    args = parse(sys.argv[1:] if argv is None else argv)
    harden()
    os.chdir("/")
    # Two descriptors per connection, and as many connections as all runs together may have.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if args.ready_fd is not None:
        # What the service's parents left open must not be kept open by a process that outlives them all.
        os.closerange(3, args.ready_fd)
        os.closerange(args.ready_fd + 1, max(os.sysconf("SC_OPEN_MAX"), 65536))
    if take_lock(args.control) is None:
        return EXIT_TAKEN
    listener = listen(args.control)
    asyncio.run(run(args, listener))
    return 0


if __name__ == "__main__":
    sys.exit(main())
