"""Egress through the relay process: grants, reports, and what a killed service or relay does to them."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.contract.egress import EgressReport
from orchestrator.contract.gateway import Relay
from orchestrator.errors import InvalidRequestError, SandboxError
from orchestrator.relay.control.client import ROOT, RelayProcess
from tests.orchestrator.relay.proxied import Target, connect, egress_grant, eventually, target, to_end


class Listener:
    """Keeps what is reported to it."""

    def __init__(self) -> None:
        self.reports: list[EgressReport] = []
        self.failure: Exception | None = None
        self.gate: asyncio.Event | None = None

    async def __call__(self, report: EgressReport) -> None:
        if self.gate is not None:
            await self.gate.wait()
        self.reports.append(report)
        if self.failure is not None:
            raise self.failure

    @property
    def taken(self) -> list[tuple[str, str, int]]:
        return [(report.verdict, report.host, report.count) for report in self.reports]


@asynccontextmanager
async def relay_in(directory: Path, *, keep: bool = False) -> AsyncIterator[tuple[RelayProcess, Listener]]:
    (directory / "hosts").write_text("127.0.0.1 good.example\n")
    relay = RelayProcess(
        runtime_dir=directory, log_path=directory / "relay.log", options=("--resolve-file", str(directory / "hosts"))
    )
    listener = Listener()
    relay.listen(listener)
    try:
        yield relay, listener
    finally:
        await relay.aclose(keep=keep)


def rules(server: Target) -> tuple[str, str]:
    return f"good.example:{server.port}", f"127.0.0.1:{server.port}"


async def said(path: Path, data: bytes) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(path))
    writer.write(data)
    try:
        return await to_end(reader)
    finally:
        writer.close()
        await writer.wait_closed()


async def test_a_run_gets_out_where_it_may_and_the_service_hears_of_the_rest(directory: Path) -> None:
    async with target() as server, relay_in(directory) as (relay, listener):
        contract: Relay = relay
        grant = egress_grant(directory, *rules(server))
        await contract.grant_egress(grant)
        assert await contract.granted() == {"run-1"}
        reader, writer = await asyncio.open_unix_connection(str(grant.socket_path))
        writer.write(connect("good.example", server.port))
        assert (await reader.readuntil(b"hello")).endswith(b"\r\n\r\nhello")
        now = await contract.totals()
        assert now is not None
        assert (now.egress.open, now.egress.bytes_down) == (1, 5), "what is under way counts"
        writer.write_eof()
        assert await to_end(reader) == b""
        writer.close()
        for _ in range(3):
            assert b"403" in await said(grant.socket_path, connect("evil.example", 443))
        await contract.revoke("run-1")
        # What was only counted so far comes with the end of the run, before it is over.
        assert listener.taken == [
            ("allowed", "good.example", 1),
            ("denied", "evil.example", 1),
            ("denied", "evil.example", 2),
        ]
        assert not grant.socket_path.exists()
        assert await contract.granted() == set()
        then = await contract.totals()
        assert then is not None
        assert (then.egress.open, then.egress.connections, then.egress.requests, then.egress.refusals) == (0, 4, 1, 3)
        assert then.egress.bytes_down == 5
    assert await relay.totals() is None, "no relay is started to be asked"
    log = (directory / "relay.log").read_text()
    assert "run run-1: egress to 2 host patterns" in log
    assert "'refusals': 3" in log


async def test_a_tunnel_goes_on_when_the_service_is_killed_and_its_reports_wait_for_the_next(directory: Path) -> None:
    async with target() as server:
        (directory / "hosts").write_text("127.0.0.1 good.example\n")
        service = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.orchestrator.relay.controller",
            str(directory),
            "http://127.0.0.1:9",
            *rules(server),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
        )
        assert service.stdout is not None
        relay_pid = int(await service.stdout.readline())
        grant = egress_grant(directory, *rules(server))
        reader, writer = await asyncio.open_unix_connection(str(grant.socket_path))
        writer.write(connect("good.example", server.port))
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
        service.kill()
        await service.wait()
        writer.write(b"still there")
        assert b"403" in await said(grant.socket_path, connect("late.example", 443))
        async with relay_in(directory) as (relay, listener):
            await relay.start()
            assert relay.pid == relay_pid
            await eventually(lambda: bool(listener.reports))
            assert listener.taken == [("denied", "late.example", 1)]
            await relay.grant_egress(replace(grant, rules=(*grant.rules, "more.example")))
            writer.write_eof()
            assert await to_end(reader) == b""
            writer.close()
            assert b"more.example:443 is not known" in await said(grant.socket_path, connect("more.example", 443))
            await relay.revoke("run-1")
            assert listener.taken[1:] == [("allowed", "good.example", 1)]
            assert listener.reports[-1].bytes_up == len(b"still there")
        assert server.received == [b"still there"]


async def test_a_relay_that_crashed_is_replaced_with_its_rules(directory: Path) -> None:
    async with target() as server, relay_in(directory) as (relay, listener):
        grant = egress_grant(directory, "first.example")
        await relay.grant_egress(grant)
        await relay.grant_egress(replace(grant, rules=rules(server)))
        assert b"403" in await said(grant.socket_path, connect("one.example", 443))
        await eventually(lambda: len(listener.reports) == 1)
        old = relay.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        assert await relay.granted() == {"run-1"}
        assert relay.pid != old
        assert b"403" in await said(grant.socket_path, connect("first.example", 443))
        assert b"403" in await said(grant.socket_path, connect("two.example", 443))
        await eventually(lambda: len(listener.reports) == 3)
        assert [host for _, host, _ in listener.taken] == ["one.example", "first.example", "two.example"]


async def test_a_report_that_is_not_taken_well_does_not_hold_up_the_next(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with relay_in(directory) as (relay, listener):
        listener.failure = RuntimeError("a bug")
        grant = egress_grant(directory)
        await relay.grant_egress(grant)
        for host in ("one.example", "two.example"):
            assert b"403" in await said(grant.socket_path, connect(host, 443))
        await relay.revoke("run-1")
        assert [host for _, host, _ in listener.taken] == ["one.example", "two.example"]
    assert "was not taken" in caplog.text


async def test_more_reports_than_are_sent_at_once_all_arrive_in_their_order(directory: Path) -> None:
    async with relay_in(directory) as (relay, listener):
        listener.gate = asyncio.Event()
        grants = [egress_grant(directory, run_id=f"run-{number}") for number in range(8)]
        for grant in grants:
            await relay.grant_egress(grant)
        for grant in grants:
            for number in range(45):
                await said(grant.socket_path, connect(f"h{number}.example", 443))
        listener.gate.set()
        for grant in grants:
            await relay.revoke(grant.run_id)
        assert [(report.run_id, report.host) for report in listener.reports] == [
            (grant.run_id, f"h{number}.example") for grant in grants for number in range(45)
        ]


async def test_a_service_that_has_taken_everything_gets_nothing_twice(directory: Path) -> None:
    grant = egress_grant(directory)
    async with relay_in(directory, keep=True) as (relay, listener):
        await relay.grant_egress(grant)
        await said(grant.socket_path, connect("one.example", 443))
        await eventually(lambda: len(listener.reports) == 1)
        pid = relay.pid
    async with relay_in(directory) as (relay, listener):
        await relay.start()
        assert relay.pid == pid
        await relay.revoke("run-1")
        assert listener.reports == []
    assert pid is not None
    await asyncio.to_thread(os.waitpid, pid, 0)


async def test_grants_that_cannot_be_honoured_are_refused_and_forgotten(directory: Path) -> None:
    async with relay_in(directory) as (relay, _):
        with pytest.raises(InvalidRequestError, match="too broad"):
            await relay.grant_egress(egress_grant(directory, "*.com"))
        with pytest.raises(InvalidRequestError, match="expired"):
            await relay.grant_egress(egress_grant(directory, expires_at=1.0))
        with pytest.raises(SandboxError, match="No such file"):
            await relay.grant_egress(egress_grant(directory, socket_path=directory / "missing" / "egress.sock"))
        assert await relay.granted() == set()


async def test_the_end_of_a_run_cuts_its_tunnels(directory: Path) -> None:
    async with target() as server, relay_in(directory) as (relay, listener):
        grant = egress_grant(directory, *rules(server))
        await relay.grant_egress(grant)
        reader, writer = await asyncio.open_unix_connection(str(grant.socket_path))
        writer.write(connect("good.example", server.port))
        assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 200 ")
        await relay.revoke("run-1")
        assert await to_end(reader) == b""
        writer.close()
        assert listener.taken == [("allowed", "good.example", 1)]
