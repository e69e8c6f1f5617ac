import asyncio
import contextlib
import hashlib
import logging
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import asdict, replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from orchestrator.contract.gateway import Relay
from orchestrator.errors import InvalidRequestError, SandboxError
from orchestrator.relay.control import client, connection
from orchestrator.relay.control.client import ROOT, RelayProcess
from orchestrator.relay.protocol import socket_name
from orchestrator.system.processes import WatchedProcess
from tests.orchestrator.relay.support import AUTH, KEY, MESSAGES, TOKEN, Provider, agent, grant_for, status


@contextlib.asynccontextmanager
async def relay_in(directory: Path, **options: object) -> AsyncIterator[RelayProcess]:
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", **options)  # type: ignore[arg-type]
    try:
        yield relay
    finally:
        await relay.aclose(keep=False)


async def until_ended(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        process = WatchedProcess(pid, child=False)
        try:
            return await process.wait(20)
        finally:
            process.close()
    return True


class TwoParts:
    """Says one part, and the other when the test wants it."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one ")
        await self.go_on.wait()
        await response.write(b"two")
        return response


async def test_a_run_talks_through_the_relay_and_its_counts_come_back(provider: Provider, directory: Path) -> None:
    async with relay_in(directory) as relay:
        contract: Relay = relay
        await contract.start()
        grant = grant_for(directory, provider.url)
        await contract.grant(grant)
        assert await contract.granted() == {"run-1"}
        async with agent(grant.socket_path) as inside:
            answer = await inside.post(MESSAGES, data=b"12345", headers=AUTH)
            assert (answer.status, await answer.json()) == (200, {"hello": "there"})
            await status(inside)
        before = await relay.totals()
        await contract.revoke("run-1")
        after = await relay.totals()
        assert before is not None
        assert after is not None
        counts = {"connections": 1, "failures": 0, "requests": 1, "refusals": 1, "bytes_up": 5, "bytes_down": 18}
        assert asdict(before.gateway) | {"open": 0} == asdict(after.gateway) == {"open": 0, **counts}, "kept at the end"
        assert set(asdict(after.egress).values()) == {0}
        await contract.revoke("run-1")
        await contract.revoke("never-heard-of")
        assert await contract.granted() == set()
        assert not grant.socket_path.exists()
        pid = relay.pid
        assert pid is not None
    assert provider.requests[0][2]["x-api-key"] == KEY
    with pytest.raises(ProcessLookupError):  # ended, and reaped
        os.kill(pid, 0)
    assert sorted(path.name for path in directory.iterdir()) == [
        socket_name().replace(".sock", ".lock"),
        "relay.log",
        "run-1",
    ]
    log = (directory / "relay.log").read_text()
    assert "run run-1: granted" in log
    (ended,) = [line for line in log.splitlines() if "run run-1: gateway ended" in line]
    assert all(f"'{name}': {count}" in ended for name, count in counts.items()), "the run's own counts"
    assert KEY not in log
    assert TOKEN not in log


async def test_the_token_of_one_run_is_refused_at_the_socket_of_another(provider: Provider, directory: Path) -> None:
    other = "token-of-the-other-run-0123"
    async with relay_in(directory) as relay:
        first = grant_for(directory, provider.url)
        second = grant_for(
            directory,
            provider.url,
            "run-2",
            token_sha256=hashlib.sha256(other.encode()).hexdigest(),
            api_key="sk-second",
        )
        await relay.grant(first)
        await relay.grant(second)
        for grant, wrong, right in ((first, other, TOKEN), (second, TOKEN, other)):
            async with agent(grant.socket_path) as inside:
                assert await status(inside, {"x-api-key": wrong}) == 401
                assert await status(inside, {"x-api-key": right}) == 200
    assert [headers["x-api-key"] for _, _, headers in provider.requests] == [KEY, "sk-second"]


async def test_streams_go_on_when_the_service_is_killed_and_the_next_one_takes_the_relay_over(
    provider: Provider, directory: Path
) -> None:
    provider.handler = two = TwoParts()
    service = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.orchestrator.relay.controller",
        str(directory),
        provider.url,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
    )
    assert service.stdout is not None
    relay_pid = int(await service.stdout.readline())
    grant = grant_for(directory, provider.url)
    async with agent(grant.socket_path) as inside:
        answer = await inside.post(MESSAGES, headers=AUTH)
        assert await answer.content.readany() == b"one "
        service.kill()
        await service.wait()
        async with relay_in(directory) as relay:
            await relay.start()
            assert relay.pid == relay_pid
            assert await relay.granted() == {"run-1"}
            two.go_on.set()
            assert await answer.read() == b"two"
            await relay.grant(replace(grant, api_key="sk-renewed"))
            await status(inside, AUTH)
    assert provider.requests[-1][2]["x-api-key"] == "sk-renewed"
    assert await until_ended(relay_pid)  # though it was not ours


async def test_letting_go_leaves_the_relay_to_runs_that_go_on(provider: Provider, directory: Path) -> None:
    first = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log")
    await first.grant(grant_for(directory, provider.url))
    pid = first.pid
    await first.aclose(keep=True)
    await first.aclose(keep=True)
    async with agent(directory / "run-1" / "gateway.sock") as inside:
        assert await status(inside, AUTH) == 200
    async with relay_in(directory) as second:
        await second.start()
        assert second.pid == pid
    assert await until_ended(pid or 0)
    await asyncio.to_thread(os.waitpid, pid or 0, 0)  # it was this process's child


async def test_a_relay_that_crashed_is_replaced_with_all_its_grants(
    provider: Provider, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    renewed: asyncio.Future[frozenset[str]] = asyncio.get_running_loop().create_future()
    on_restart: Callable[[frozenset[str]], None] = renewed.set_result
    provider.handler = two = TwoParts()
    async with relay_in(directory, on_restart=on_restart) as relay:
        grants = [grant_for(directory, provider.url, run) for run in ("run-1", "run-2")]
        for grant in grants:
            await relay.grant(grant)
        await relay.grant(grant_for(directory, provider.url, "run-3"))
        await relay.revoke("run-3")
        old = relay.pid
        assert old is not None
        async with agent(grants[0].socket_path) as inside, inside.post(MESSAGES, headers=AUTH) as answer:
            assert await answer.content.readany() == b"one "
            os.kill(old, signal.SIGKILL)
            with pytest.raises(aiohttp.ClientError):
                await answer.read()
        async with asyncio.timeout(30):
            assert await renewed == {"run-1", "run-2"}
        two.go_on.set()
        assert await relay.granted() == {"run-1", "run-2"}
        assert relay.pid not in {None, old}
        for grant in grants:
            async with agent(grant.socket_path) as inside:
                assert await status(inside, AUTH) == 200
        with pytest.raises(ProcessLookupError):  # reaped
            os.kill(old, 0)
    assert "is gone" in caplog.text
    assert KEY not in caplog.text


async def test_a_relay_that_died_without_grants_is_started_at_the_next_need(
    directory: Path, provider: Provider
) -> None:
    async with relay_in(directory) as relay:
        await relay.start()
        old = relay.pid
        assert old is not None
        os.kill(old, signal.SIGKILL)
        await relay.grant(grant_for(directory, provider.url))
        assert await relay.granted() == {"run-1"}
        assert relay.pid != old


async def test_revoking_after_a_crash_removes_the_socket_that_was_left(directory: Path, provider: Provider) -> None:
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log")
    grant = grant_for(directory, provider.url)
    await relay.grant(grant)
    pid = relay.pid
    assert pid is not None
    await relay.aclose(keep=True)
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert grant.socket_path.exists()
    await relay.revoke("run-1")
    assert not grant.socket_path.exists()
    await relay.aclose(keep=False)


async def test_a_grant_ends_at_its_time_by_itself_and_so_does_a_relay_without_work(
    provider: Provider, directory: Path
) -> None:
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", linger=0.05)
    await relay.start()
    grant = grant_for(directory, provider.url, expires_at=time.time() + 2.0)
    await relay.grant(grant)
    assert grant.socket_path.exists()
    pid = relay.pid
    assert pid is not None
    await relay.aclose(keep=True)
    assert await until_ended(pid)
    await asyncio.to_thread(os.waitpid, pid, 0)
    assert not grant.socket_path.exists()
    assert "the grant's time is over" in (directory / "relay.log").read_text()
    assert not (directory / socket_name()).exists()


async def test_two_services_at_once_share_one_relay(directory: Path) -> None:
    async with relay_in(directory) as first, relay_in(directory) as second:
        await asyncio.gather(first.start(), second.start())
        assert first.pid == second.pid


async def test_calls_at_once_start_one_relay_and_a_cancelled_one_does_not_disturb_the_others(
    directory: Path, provider: Provider
) -> None:
    async with relay_in(directory) as relay:
        cancelled = asyncio.create_task(relay.start())
        grants = [
            asyncio.create_task(relay.grant(grant_for(directory, provider.url, f"run-{number}")))
            for number in range(20)
        ]
        await asyncio.sleep(0)
        cancelled.cancel()
        await asyncio.gather(*grants)
        assert await relay.granted() == {f"run-{number}" for number in range(20)}
    assert (directory / "relay.log").read_text().count(" ready, ") == 1


async def test_grants_that_cannot_be_honoured_are_refused_and_forgotten(directory: Path, provider: Provider) -> None:
    async with relay_in(directory) as relay:
        good = grant_for(directory, provider.url)
        await relay.grant(good)
        with pytest.raises(InvalidRequestError, match="expired"):
            await relay.grant(replace(good, expires_at=time.time() - 1))
        with pytest.raises(InvalidRequestError, match="upstream"):
            await relay.grant(grant_for(directory, "nonsense", "run-2"))
        missing = grant_for(directory, provider.url, "run-3", socket_path=directory / "missing" / "gateway.sock")
        with pytest.raises(SandboxError, match="No such file"):
            await relay.grant(missing)
        assert await relay.granted() == {"run-1"}


async def test_a_relay_that_hangs_is_ended_all_the_same(
    directory: Path, provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay_in(directory) as relay:
        await relay.start()
        pid = relay.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        monkeypatch.setattr(connection, "CALL_SECONDS", 0.1)
        monkeypatch.setattr(client, "END_LADDER", ((None, 0.01), (signal.SIGTERM, 0.01), (signal.SIGKILL, 20.0)))
        with pytest.raises(SandboxError, match=f"kill {pid}"):
            await relay.granted()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_an_interpreter_that_cannot_be_started_is_an_error_that_names_the_log(directory: Path) -> None:
    relay = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", python="/nonexistent/python")
    with pytest.raises(SandboxError, match=r"relay\.log"):
        await relay.start()
    await relay.aclose(keep=False)
    ends_at_once = RelayProcess(runtime_dir=directory, log_path=directory / "relay.log", python="/bin/false")
    with pytest.raises(SandboxError, match=r"relay\.log"):
        await ends_at_once.start()
    await ends_at_once.aclose(keep=False)


async def test_no_task_thread_or_descriptor_is_left(
    directory: Path, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    tasks, descriptors = asyncio.all_tasks(), len(list(Path("/proc/self/fd").iterdir()))
    async with relay_in(directory) as relay:
        await relay.grant(grant_for(directory, provider.url))
    assert asyncio.all_tasks() == tasks
    assert len(list(Path("/proc/self/fd").iterdir())) <= descriptors
    assert caplog.text == ""


async def test_the_relay_has_nothing_of_our_environment_or_descriptors(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SECRET", KEY)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    async with relay_in(directory) as relay:
        await relay.start()
        assert relay.pid is not None
        os.close(writer)
        assert os.read(reader, 1) == b""  # an end of file: the relay does not hold the other end
        os.close(reader)
        arguments = Path(f"/proc/{relay.pid}/cmdline").read_bytes()
        assert KEY.encode() not in arguments
        assert os.getsid(relay.pid) == relay.pid
        if os.geteuid() == 0:
            assert KEY.encode() not in Path(f"/proc/{relay.pid}/environ").read_bytes()
        else:
            with pytest.raises(PermissionError):
                Path(f"/proc/{relay.pid}/environ").read_bytes()
