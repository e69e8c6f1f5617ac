import asyncio
import time
from pathlib import Path

import pytest

from orchestrator.contract.egress import EgressReport
from orchestrator.errors import SandboxError
from orchestrator.relay.control.connection import RelayConnection
from orchestrator.relay.limits import Limits
from orchestrator.relay.process import server as relay_server
from orchestrator.relay.process.server import RelayServer
from orchestrator.relay.protocol import grant_to_wire
from orchestrator.relay.sockets import listen
from orchestrator.system.tasks import TaskOwner
from tests.orchestrator.relay.support import grant_for


async def test_another_users_controller_is_turned_away_unheard(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_server, "same_user", lambda sock: False)
    server = RelayServer(linger=30, limits=Limits())
    serving = asyncio.create_task(server.serve(listen(directory / "c.sock"), None))
    reader, writer = await asyncio.open_unix_connection(str(directory / "c.sock"))
    assert await reader.read() == b""
    writer.close()
    server.stop()
    async with asyncio.timeout(20):
        await serving
    assert not (directory / "c.sock").exists()


async def test_a_relay_of_another_user_is_not_given_anything(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = asyncio.Queue[bytes]()

    async def listening(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await heard.put(await reader.read())
        writer.close()

    server = await asyncio.start_unix_server(listening, sock=listen(directory / "c.sock").sock)
    monkeypatch.setattr("orchestrator.relay.control.connection.same_user", lambda sock: False)
    owner = TaskOwner("test")
    with pytest.raises(SandboxError, match="another user"):
        await RelayConnection.open(directory / "c.sock", owner=owner, on_lost=lambda connection: None)
    assert await heard.get() == b""
    server.close()
    await owner.aclose()


async def test_reports_that_the_service_has_missed_are_kept_for_it_a_while(directory: Path) -> None:
    server = RelayServer(linger=0.05, limits=Limits())
    report = EgressReport(run_id="r", verdict="denied", host="a.example", port=443)
    server._reports.put(report)
    assert server._patience() == 0.05, "nobody has ever asked for them"
    taken = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        taken.set()
        writer.close()

    listener = await asyncio.start_unix_server(serve, directory / "s.sock")
    _, writer = await asyncio.open_unix_connection(directory / "s.sock")
    server._reports.subscribe(writer)
    async with asyncio.timeout(20):
        await taken.wait()
    assert server._patience() == relay_server.REPORTS_LINGER
    server._reports.taken(1)
    assert server._patience() == 0.05
    await server._tasks.aclose()
    writer.close()
    await writer.wait_closed()
    listener.close()


async def test_a_clock_that_is_set_takes_no_way_out_away(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = RelayServer(linger=30, limits=Limits())
    serving = asyncio.create_task(server.serve(listen(directory / "c.sock"), None))
    owner = TaskOwner("test")
    connection = await RelayConnection.open(directory / "c.sock", owner=owner, on_lost=lambda connection: None)
    assert connection is not None
    await connection.call("grant", grant=grant_to_wire(grant_for(directory, "http://127.0.0.1:9")))
    real = time.time
    monkeypatch.setattr("orchestrator.relay.process.server.time.time", lambda: real() + 86400)
    server._changed.set()  # it looks at the time
    await connection.call(
        "grant",
        grant=grant_to_wire(grant_for(directory, "http://127.0.0.1:9", "run-2", expires_at=real() + 86400 + 600)),
    )
    assert (await connection.call("granted"))["runs"] == ["run-1", "run-2"]
    await connection.aclose()
    await owner.aclose()
    server.stop()
    async with asyncio.timeout(20):
        await serving
