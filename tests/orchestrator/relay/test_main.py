import asyncio
import contextlib
import json
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orchestrator.relay.__main__ import EXIT_TAKEN, parse, take_lock
from orchestrator.relay.control.client import ROOT
from orchestrator.relay.protocol import MAX_LINE, VERSION, grant_to_wire
from tests.orchestrator.relay.support import AUTH, KEY, MESSAGES, Provider, agent, grant_for


@contextlib.asynccontextmanager
async def relay_process(directory: Path, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """The bare process, ready."""
    reader, writer = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "orchestrator.relay",
        "--control",
        str(directory / "c.sock"),
        "--log",
        str(directory / "log"),
        "--ready-fd",
        str(writer),
        *options,
        cwd=ROOT,
        pass_fds=(writer,),
    )
    os.close(writer)
    assert await asyncio.to_thread(os.read, reader, 16) == b"ready\n"
    os.close(reader)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


class Controller:
    """Speaks the protocol by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, directory: Path) -> "Controller":
        return cls(*await asyncio.open_unix_connection(str(directory / "c.sock")))

    async def line(self, line: bytes) -> dict[str, Any] | None:
        """The answer to ``line``; None when the relay closed instead."""
        async with asyncio.timeout(30):
            try:
                self.writer.write(line + b"\n")
                await self.writer.drain()
                answer = await self.reader.readline()
            except OSError:
                return None
        return json.loads(answer) if answer else None

    async def ask(self, **message: Any) -> dict[str, Any] | None:
        return await self.line(json.dumps({"id": 7, **message}).encode())

    async def hello(self) -> None:
        answer = await self.ask(op="hello", version=VERSION)
        assert answer is not None
        assert answer["ok"]

    async def close(self) -> None:
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()


async def test_hello_comes_first_and_must_name_the_version(directory: Path) -> None:
    async with relay_process(directory) as process:
        controller = await Controller.connect(directory)
        assert await controller.ask(op="hello", version=VERSION) == {
            "id": 7,
            "version": VERSION,
            "pid": process.pid,
            "ok": True,
        }
        assert await controller.ask(op="granted") == {"id": 7, "ok": True, "runs": []}
        await controller.close()
        for first in ({"op": "hello", "version": VERSION + 1}, {"op": "granted"}, {"op": "shutdown"}):
            controller = await Controller.connect(directory)
            answer = await controller.ask(**first)
            assert answer is not None
            assert (answer["ok"], answer["code"]) == (False, "wrong_version")
            assert str(process.pid) in answer["error"], "what to end, for who wants the other version"
            assert await controller.ask(op="granted") is None
            await controller.close()
        assert process.returncode is None


async def test_bad_requests_are_answered_and_quote_nothing(directory: Path, provider: Provider) -> None:
    async with relay_process(directory):
        controller = await Controller.connect(directory)
        await controller.hello()
        grant = grant_to_wire(grant_for(directory, provider.url))
        for message in (
            {"op": "dance"},
            {"op": "grant"},
            {"op": "grant", "grant": {**grant, "upstream": None, "route": KEY}},
            {"op": "grant", "grant": {**grant, "api_key": KEY + "\n"}},
        ):
            answer = await controller.ask(**message)
            assert answer is not None
            assert (answer["id"], answer["ok"], answer["code"]) == (7, False, "invalid_request")
            assert KEY not in str(answer)
        answer = await controller.line(b"not json " + KEY.encode())
        assert answer is not None
        assert answer["code"] == "invalid_request"
        assert KEY not in str(answer)
        assert await controller.line(b"x" * (MAX_LINE + 1)) is None  # out of step: dropped
        await controller.close()
        other = await Controller.connect(directory)
        await other.hello()
        answer = await other.ask(op="totals")
        assert answer is not None
        assert (answer["ok"], set(answer["totals"])) == (True, {"gateway", "egress"})
        assert await other.ask(op="granted") == {"id": 7, "ok": True, "runs": []}, "none of them was granted"
        await other.close()
    assert KEY not in (directory / "log").read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_cleanly_in_the_middle_of_streams(
    directory: Path, provider: Provider, number: signal.Signals
) -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.Event().wait()
        return response

    provider.handler = endless
    grant = grant_for(directory, provider.url)
    async with relay_process(directory) as process, agent(grant.socket_path) as client:
        controller = await Controller.connect(directory)
        await controller.hello()
        answer = await controller.ask(op="grant", grant=grant_to_wire(grant))
        assert answer == {"id": 7, "ok": True}
        async with client.post(MESSAGES, headers=AUTH) as stream:
            assert await stream.content.readany() == b"first"
            process.send_signal(number)
            async with asyncio.timeout(30):
                assert await process.wait() == 0
        await controller.close()
    assert not grant.socket_path.exists()
    assert not (directory / "c.sock").exists()


async def test_it_ends_when_nobody_comes(directory: Path) -> None:
    async with relay_process(directory, "--linger", "0.05") as process, asyncio.timeout(30):
        assert await process.wait() == 0
    assert not (directory / "c.sock").exists()


async def test_a_second_one_for_the_same_place_gives_way(directory: Path) -> None:
    async with relay_process(directory):
        inode = (directory / "c.sock").stat().st_ino
        second = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "orchestrator.relay",
            "--control",
            str(directory / "c.sock"),
            "--log",
            str(directory / "log"),
            cwd=ROOT,
        )
        async with asyncio.timeout(30):
            assert await second.wait() == EXIT_TAKEN
        assert (directory / "c.sock").stat().st_ino == inode
        controller = await Controller.connect(directory)
        await controller.hello()
        await controller.close()


def test_the_lock_is_waited_for_a_while(directory: Path) -> None:
    held = take_lock(directory / "c.sock", seconds=0)
    assert held is not None
    assert take_lock(directory / "c.sock", seconds=0) is None
    os.close(held)
    again = take_lock(directory / "c.sock", seconds=0)
    assert again is not None
    os.close(again)


def test_the_command_line_has_places_and_bounds_only() -> None:
    args = parse(["--control", "/c", "--log", "/l"])
    assert set(vars(args)) == {
        "control",
        "log",
        "ready_fd",
        "linger",
        "max_body",
        "max_connections",
        "idle",
        "connect",
        "resolve_file",
    }
    assert (args.max_body, args.max_connections, args.idle, args.connect) == (64 * 1024 * 1024, 64, 600.0, 30.0)


async def test_it_may_have_as_many_connections_as_the_system_allows(directory: Path) -> None:
    async with relay_process(directory) as process:
        soft, hard = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        assert soft == hard
