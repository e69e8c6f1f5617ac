"""What the egress proxy costs: its added latency and its throughput, against a bare ``socat`` in the same place.

    scripts/benchmark proxy [--connections N] [--mebibytes N] [--rounds N]

Client, server and relay are processes of their own on this machine, and both ways are measured in turns within one run,
so the ratios say more than the absolute figures.  ``connect`` is the time from a new connection to the first byte of
the server: through the proxy it holds the CONNECT request, the rules, the name and the check of its address.  Needs
``socat``.
"""

import argparse
import asyncio
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from _relay import MEBI, main, quantile, socat

from orchestrator.contract.egress import EgressGrant
from orchestrator.relay.control.client import RelayProcess

NAME = "target.example"


def provide(pipe: Connection) -> None:
    """The server: says one byte; then echoes a ping or sends as many MiB as it is asked for."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(b"!")
            while line := await reader.readline():
                if line == b"ping\n":
                    writer.write(line)
                    continue
                chunk = bytes(256 * 1024)
                for _ in range(int(line) * 4):
                    writer.write(chunk)
                    await writer.drain()
                break
            writer.write_eof()
        except OSError:
            pass
        finally:
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()

    asyncio.run(main())


async def opened(path: Path, port: int | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which the server has said its byte; with ``port`` through a proxy."""
    reader, writer = await asyncio.open_unix_connection(path, limit=MEBI)
    if port is not None:
        writer.write(f"CONNECT {NAME}:{port} HTTP/1.1\r\nHost: {NAME}:{port}\r\n\r\n".encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head:
            raise SystemExit(head.decode())
    await reader.readexactly(1)
    return reader, writer


async def connecting(path: Path, port: int | None, count: int) -> list[float]:
    """Seconds to the server's first byte, one connection after the other."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        _, writer = await opened(path, port)
        seconds.append(time.perf_counter() - start)
        writer.close()
        await writer.wait_closed()
    return seconds


async def pinging(path: Path, port: int | None, count: int) -> list[float]:
    """Seconds to the answer on a connection that stands."""
    reader, writer = await opened(path, port)
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        writer.write(b"ping\n")
        await reader.readline()
        seconds.append(time.perf_counter() - start)
    writer.close()
    await writer.wait_closed()
    return seconds


async def streaming(path: Path, port: int | None, mebibytes: int) -> float:
    """MiB per second of one stream."""
    reader, writer = await opened(path, port)
    start, taken = time.perf_counter(), 0
    writer.write(f"{mebibytes}\n".encode())
    while data := await reader.read(MEBI):
        taken += len(data)
    writer.close()
    await writer.wait_closed()
    return taken / MEBI / (time.perf_counter() - start)


async def measure(directory: Path, port: int, args: argparse.Namespace) -> None:
    """Both ways in turns; prints a table."""
    hosts = directory / "hosts"
    hosts.write_text(f"127.0.0.1 {NAME}\n")
    relay = RelayProcess(
        runtime_dir=directory, log_path=directory / "relay.log", options=("--resolve-file", str(hosts))
    )
    sockets = {"socat": directory / "socat.sock", "proxy": directory / "egress.sock"}
    ports = {"socat": None, "proxy": port}
    await relay.grant_egress(
        EgressGrant(
            run_id="benchmark",
            socket_path=sockets["proxy"],
            rules=(f"{NAME}:{port}", f"127.0.0.1:{port}"),
            expires_at=time.time() + 3600,
        )
    )
    connect: dict[str, list[float]] = {way: [] for way in sockets}
    ping: dict[str, list[float]] = {way: [] for way in sockets}
    speed: dict[str, list[float]] = {way: [] for way in sockets}
    async with socat(sockets["socat"], port, "-b", "65536"):
        for way, path in [*sockets.items()] * args.rounds:
            await connecting(path, ports[way], 20)  # warm
            connect[way] += await connecting(path, ports[way], args.count)
            ping[way] += await pinging(path, ports[way], args.count * 5)
            speed[way].append(await streaming(path, ports[way], args.mebibytes))
    await relay.aclose(keep=False)
    print(f"{'':8} {'connect p50':>14} {'p99':>10} {'round trip p50':>16} {'p99':>10} {'stream':>14}")
    for way in sockets:
        print(
            f"{way:8} {quantile(connect[way], 0.5):11.2f} ms {quantile(connect[way], 0.99):7.2f} ms"
            f" {quantile(ping[way], 0.5):13.3f} ms {quantile(ping[way], 0.99):7.3f} ms"
            f" {statistics.median(speed[way]):8.0f} MiB/s"
        )
    ratios = [quantile(values["proxy"], 0.5) / quantile(values["socat"], 0.5) for values in (connect, ping)]
    throughput = statistics.median(speed["proxy"]) / statistics.median(speed["socat"])
    print(
        f"proxy : socat = {ratios[0]:.2f} in connecting, {ratios[1]:.2f} in round trips, {throughput:.2f} in throughput"
    )
    print(
        f"added: {quantile(connect['proxy'], 0.5) - quantile(connect['socat'], 0.5):.2f} ms per connection,"
        f" {(quantile(ping['proxy'], 0.5) - quantile(ping['socat'], 0.5)) * 1e3:.0f} µs per round trip"
    )


if __name__ == "__main__":
    main(__doc__, counted="connections", mebibytes=256, serve=provide, measure=measure)
