"""A real service in a process of its own, that tests can kill; the provider stays in the test's process."""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from tests.podman import session

REAL_KEY = f"sk-real-{secrets.token_hex(16)}"
"""The key that must never be seen inside a container, an event, a log or a journal."""
PROJECT = Path(__file__).resolve().parents[2]
START_SECONDS = 300  # an emulated machine is slow
STARTED: list[LiveService] = []
"""The services of the test that runs now; what they said is shown when it fails."""


class LiveService:
    """`podmentor serve` on its own state; ``start`` may be called again after ``kill`` or ``terminate``."""

    def __init__(self, root: Path, base_url: str, *, backend_name: str = "claude-code", **config: Any) -> None:
        self.backend_name = backend_name
        self.state = root / "state"
        self.runtime = session.runtime_dir()
        self.config = root / "podmentor.yaml"
        backend = {"api_key": REAL_KEY, "base_url": base_url, **config.pop("backend", {})}
        self.config.write_text(
            yaml.safe_dump(
                {
                    "external_agent": {"default_sandbox_tier": 1, "backends": {backend_name: backend}},
                    "storage": {
                        "state_dir": str(self.state),
                        "runtime_dir": str(self.runtime),
                        **config.pop("storage", {}),
                    },
                    "server": {"port": 0},
                    **config,
                }
            )
        )
        self.output = root / "service.log"
        self._process: asyncio.subprocess.Process | None = None
        self._session: aiohttp.ClientSession | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> Self:
        """Start the process and wait until it answers."""
        if self not in STARTED:
            STARTED.append(self)
        with self.output.open("ab") as output:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "orchestrator",
                "--config",
                str(self.config),
                "serve",
                cwd=PROJECT,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        exited = asyncio.ensure_future(self._process.wait())
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await self._answers():
                    if exited.done():
                        raise AssertionError(f"the service ended: {self.output.read_text()[-3000:]}")
                    await asyncio.wait({exited}, timeout=0.1)
        finally:
            exited.cancel()
        return self

    async def _answers(self) -> bool:
        socket, token = self.runtime / "api.sock", self.state / "local-token"
        if not socket.exists() or not token.exists():
            return False
        await self._close_session()
        self._session = aiohttp.ClientSession(
            "http://localhost",
            connector=aiohttp.UnixConnector(str(socket), force_close=True),
            headers={"Authorization": f"Bearer {token.read_text().strip()}"},
            timeout=aiohttp.ClientTimeout(total=300),
        )
        try:
            async with self._session.get("/readyz") as response:
                return response.status == 200
        except aiohttp.ClientError:
            return False

    async def kill(self) -> None:
        """kill -9, as a crash would."""
        await self._end(signal.SIGKILL)

    async def terminate(self) -> int:
        """SIGTERM; the exit code."""
        return await self._end(signal.SIGTERM)

    async def _end(self, how: signal.Signals) -> int:
        assert self._process is not None
        if self._process.returncode is None:
            self._process.send_signal(how)
        code = await asyncio.wait_for(self._process.wait(), 60)
        await self._close_session()
        return code

    async def close(self) -> None:
        """End it with all that it has: also the runs that it would leave to the next service."""
        if self._process is not None and self._process.returncode is None:
            await self.terminate()
        await self._close_session()
        if processes_with(f"k8s-file:{self.state}/"):  # a container's monitor
            label = f"label=podmentor.instance={(self.state / 'instance').read_text().strip()}"
            if left := (await podman("ps", "--all", "--quiet", f"--filter={label}")).split():
                await podman("rm", "--force", "--time=0", *left)
            for relay in processes_with(f"{self.runtime}/relay"):  # it waited for the next service
                os.kill(relay, signal.SIGKILL)
        # overlayfs leaves directories that only the user namespace's root can remove
        await podman("unshare", "rm", "-rf", "--", str(self.state), str(self.runtime))

    async def _close_session(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def call(self, method: str, path: str, **options: Any) -> Any:
        """One request; the JSON of a good answer."""
        assert self._session is not None
        async with self._session.request(method, path, **options) as response:
            text = await response.text()
            assert response.status < 400, f"{method} {path}: {response.status} {text}"
            return json.loads(text) if text else None

    async def submit(self, query: str, **body: Any) -> dict[str, Any]:
        answer = await self.call("POST", "/v1/runs", json={"backend": self.backend_name, "query": query, **body})
        assert isinstance(answer, dict)
        return answer

    async def finished(self, run_id: str, *, seconds: float = 120) -> dict[str, Any]:
        """The run once it is finished; follows it over restarts of the service by asking again."""
        async with asyncio.timeout(seconds):
            async for event in self.events(run_id):
                if event["kind"] in {"completed", "error"}:
                    run = await self.call("GET", f"/v1/runs/{run_id}")
                    assert isinstance(run, dict)
                    return run
        raise AssertionError(f"the stream of {run_id} ended without an end: {self.output.read_text()[-3000:]}")

    async def events(self, run_id: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        assert self._session is not None
        params = {"after": str(after), "format": "ndjson", "follow": "1" if follow else "0"}
        async with self._session.get(f"/v1/runs/{run_id}/events", params=params) as response:
            assert response.status == 200, await response.text()
            pending = b""
            async for chunk in response.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    if line.strip() and (event := json.loads(line)).get("seq"):
                        yield event

    async def all_events(self, run_id: str) -> list[dict[str, Any]]:
        return [event async for event in self.events(run_id, follow=False)]

    async def until(self, run_id: str, kind: str, *, seconds: float = 90, **data: Any) -> dict[str, Any]:
        async with asyncio.timeout(seconds):
            async for event in self.events(run_id):
                if event["kind"] == kind and all(event["data"].get(k) == v for k, v in data.items()):
                    return event
        raise AssertionError(f"no event {kind} {data} in {run_id}")


@asynccontextmanager
async def live_service(root: Path, base_url: str, **config: Any) -> AsyncIterator[LiveService]:
    """A started service that is ended at the end, with what it left behind checked by the caller."""
    service = LiveService(root, base_url, **config)
    try:
        await service.start()
        yield service
    finally:
        await service.close()


async def eventually(holds: Callable[[], bool], *, seconds: float = 30) -> None:
    """Wait for something in the world outside that gives no signal."""
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 -- there is nothing to wait on
            await asyncio.sleep(0.05)


def processes_with(text: str) -> list[int]:
    """Pids whose command line has ``text``, ours left out."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if text.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


async def podman(*argv: str) -> str:
    """The output of one podman command."""
    process = await asyncio.create_subprocess_exec(
        "podman",
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out.decode()


async def assert_nothing_left(service: LiveService, run_id: str) -> None:
    """Neither a container nor a directory nor a process of this run."""
    assert run_id not in await podman("ps", "-a", "--format", "{{.Labels}}")
    assert not (service.runtime / run_id).exists()
    assert processes_with(run_id) == []
