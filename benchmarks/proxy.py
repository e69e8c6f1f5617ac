"""What the egress proxy costs: its added latency and its throughput, against a bare ``socat`` in the same place.

    scripts/benchmark proxy [--connections N] [--mebibytes N] [--rounds N]

Client, server and relay are processes of their own on this machine, and both ways are measured in turns within one run,
so the ratios say more than the absolute figures.  ``connect`` is the time from a new connection to the first byte of
the server: through the proxy it holds the CONNECT request, the rules, the name and the check of its address.  Needs
``socat``.
"""

import argparse
import asyncio
import multiprocessing
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path

from orchestrator.contract.egress import EgressGrant
from orchestrator.relay.control.client import RelayProcess

MEBI = 1024 * 1024
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
    socat = await asyncio.create_subprocess_exec(
        "socat", "-b", "65536", f"UNIX-LISTEN:{sockets['socat']},fork,unlink-early", f"TCP:127.0.0.1:{port}"
    )
    while not sockets["socat"].exists():  # socat has no other way to say that it is ready
        await asyncio.sleep(0.01)
    connect: dict[str, list[float]] = {way: [] for way in sockets}
    ping: dict[str, list[float]] = {way: [] for way in sockets}
    speed: dict[str, list[float]] = {way: [] for way in sockets}
    for _ in range(args.rounds):
        for way, path in sockets.items():
            await connecting(path, ports[way], 20)  # warm
            connect[way] += await connecting(path, ports[way], args.connections)
            ping[way] += await pinging(path, ports[way], args.connections * 5)
            speed[way].append(await streaming(path, ports[way], args.mebibytes))
    socat.terminate()
    await socat.wait()
    await relay.aclose(keep=False)
    print(f"{'':8} {'connect p50':>14} {'p99':>10} {'round trip p50':>16} {'p99':>10} {'stream':>14}")
    for way in sockets:
        print(
            f"{way:8} {at(connect[way], 0.5):11.2f} ms {at(connect[way], 0.99):7.2f} ms"
            f" {at(ping[way], 0.5):13.3f} ms {at(ping[way], 0.99):7.3f} ms {statistics.median(speed[way]):8.0f} MiB/s"
        )
    ratios = [at(values["proxy"], 0.5) / at(values["socat"], 0.5) for values in (connect, ping)]
    throughput = statistics.median(speed["proxy"]) / statistics.median(speed["socat"])
    print(
        f"proxy : socat = {ratios[0]:.2f} in connecting, {ratios[1]:.2f} in round trips, {throughput:.2f} in throughput"
    )
    print(
        f"added: {at(connect['proxy'], 0.5) - at(connect['socat'], 0.5):.2f} ms per connection,"
        f" {(at(ping['proxy'], 0.5) - at(ping['socat'], 0.5)) * 1e3:.0f} µs per round trip"
    )


def at(values: list[float], share: float) -> float:
    """The quantile, in milliseconds."""
    ordered = sorted(values)
    return ordered[int(len(ordered) * share)] * 1e3


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=300, help="per round and way")
    parser.add_argument("--mebibytes", type=int, default=256, help="of the stream")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    here, there = multiprocessing.Pipe()
    server = multiprocessing.get_context("spawn").Process(target=provide, args=(there,), daemon=True)
    server.start()
    with tempfile.TemporaryDirectory(prefix="pm-") as directory:
        asyncio.run(measure(Path(directory), here.recv(), args))
    server.terminate()
    server.join()


if __name__ == "__main__":
    main()
