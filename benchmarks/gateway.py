"""What the gateway costs: its added latency and its throughput, against a bare ``socat`` in the same place.

    scripts/benchmark gateway [--requests N] [--mebibytes N] [--rounds N]

Client, provider and relay are processes of their own on this machine, and both ways are measured in turns within one
run, so the ratios say more than the absolute figures.  Needs ``socat``.
"""

import argparse
import asyncio
import hashlib
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

import aiohttp
from _relay import MEBI, main, quantile, socat
from aiohttp import web

from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.gateway import GatewayGrant
from orchestrator.relay.control.client import RelayProcess

TOKEN = "benchmark-token"  # noqa: S105
URL = "http://gateway/v1/messages"


def provide(pipe: Connection) -> None:
    """The provider: small answers, and streams of the size asked for."""

    async def answer(request: web.Request) -> web.StreamResponse:
        size = int(request.query.get("size", "0"))
        response = web.StreamResponse()
        await response.prepare(request)
        chunk = b"x" * 65536
        for _ in range(size // len(chunk)):
            await response.write(chunk)
        await response.write(b"data: end\n\n")
        return response

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/v1/messages", answer)
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        pipe.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())


async def latencies(session: aiohttp.ClientSession, count: int) -> list[float]:
    """Seconds to the first byte of an answer, one request after the other."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        async with session.post(URL, data=b"{}", headers={"x-api-key": TOKEN}) as answer:
            await answer.content.readany()
            seconds.append(time.perf_counter() - start)
            await answer.read()
    return seconds


async def throughput(session: aiohttp.ClientSession, size: int) -> float:
    """MiB per second of one stream."""
    start = time.perf_counter()
    taken = 0
    async with session.get(f"{URL}?size={size}", headers={"x-api-key": TOKEN}) as answer:
        async for chunk in answer.content.iter_any():
            taken += len(chunk)
    return taken / MEBI / (time.perf_counter() - start)


async def measure(directory: Path, port: int, args: argparse.Namespace) -> None:
    """Both ways in turns; prints a table."""
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log")
    route = GatewayRoute(
        upstream=f"http://127.0.0.1:{port}", key_headers=("x-api-key",), path_prefixes=("/v1/messages",)
    )
    sockets = {"socat": directory / "socat.sock", "gateway": directory / "gateway.sock"}
    await relay.grant(
        GatewayGrant(
            run_id="benchmark",
            socket_path=sockets["gateway"],
            route=route,
            api_key="sk-benchmark-key",
            token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest(),
            expires_at=time.time() + 3600,
        )
    )
    first: dict[str, list[float]] = {way: [] for way in sockets}
    speed: dict[str, list[float]] = {way: [] for way in sockets}
    async with socat(sockets["socat"], port):
        for way, path in [*sockets.items()] * args.rounds:
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(path=str(path))) as session:
                await latencies(session, 20)  # warm
                first[way] += await latencies(session, args.count)
                speed[way].append(await throughput(session, args.mebibytes * MEBI))
    await relay.aclose(keep=False)
    print(f"{'':8} {'first byte p50':>15} {'p99':>10} {'stream':>14}")
    for way in sockets:
        print(
            f"{way:8} {quantile(first[way], 0.5):12.2f} ms {quantile(first[way], 0.99):7.2f} ms"
            f" {statistics.median(speed[way]):8.0f} MiB/s"
        )
    p50 = {way: quantile(values, 0.5) for way, values in first.items()}
    ratio = statistics.median(speed["gateway"]) / statistics.median(speed["socat"])
    print(f"gateway : socat = {p50['gateway'] / p50['socat']:.2f} in latency, {ratio:.2f} in throughput")
    print(f"added per request: {p50['gateway'] - p50['socat']:.2f} ms")


if __name__ == "__main__":
    main(__doc__, counted="requests", mebibytes=128, serve=provide, measure=measure)
