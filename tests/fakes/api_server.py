"""A service that answers the HTTP API from a script, for tests of the command.

``FakeApi`` is the application and what it remembers; ``ThreadedApi`` serves one in a thread of its own, so that
synchronous tests (click's CliRunner) can talk to it; ``fake_running_service`` stands in for the real embedded service.
"""

import asyncio
import contextlib
import json
import os
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from aiohttp import web

from orchestrator.config.models import Config, Paths
from orchestrator.errors import ConflictError

TS = "2026-05-01T10:00:00.000000Z"
Step = tuple[str, dict[str, Any]] | tuple[str, dict[str, Any], str]

HELLO: list[Step] = [
    ("status", {"phase": "queued", "position": 1}),
    ("status", {"phase": "starting"}),
    ("status", {"phase": "running"}),
    ("session_started", {"session_id": "sess-1", "model": "scripted"}),
    ("thinking", {"text": "I look first."}),
    ("message_delta", {"text": "Look", "message_id": "m1"}),
    ("message_delta", {"text": "ing.\n", "message_id": "m1"}),
    ("tool_use", {"tool_call_id": "t1", "name": "Bash", "input": {"command": "ls -la"}}),
    ("tool_result", {"tool_call_id": "t1", "content": "a.txt\nb.txt", "is_error": False}),
    ("message_delta", {"text": "All done.", "message_id": "m2"}),
    (
        "completed",
        {
            "final_text": "All done.",
            "stop_reason": "end_turn",
            "tokens": {"input": 900, "output": 12},
            "cost_usd": 0.0123,
            "turns": 2,
            "duration_ms": 1500,
        },
    ),
]
CANCELLED: Step = ("error", {"reason": "cancelled", "message": "cancelled by the user", "details": {}})
PATCH = b"diff --git a/a.txt b/a.txt\n--- a/a.txt\n+++ b/a.txt\n@@ -1 +1 @@\n-old\n+new \xff\x1b[31m\n"
CHANGES = [
    {"path": "a.txt", "change": "modified", "size": 4, "binary": False, "insertions": 1, "deletions": 1},
    {"path": "b\x1b[2J.bin", "change": "added", "size": 9, "binary": True, "insertions": 0, "deletions": 0},
]
IGNORED = [{"path": "out/x.o", "change": "added", "size": 5, "binary": True, "insertions": 0, "deletions": 0}]
COMMITS = [
    {
        "commit": "1" * 40,
        "parents": [],
        "author": "An Agent <a@b>",
        "authored_at": "2026-05-01T10:00:00+00:00",
        "subject": "Fix\x1b[2J it",
        "refs": ["HEAD", "refs/heads/main"],
    },
]


def make_events(run_id: str, steps: list[Step], *, subagent_id: str = "sub_1") -> list[dict[str, Any]]:
    """Steps as journalled events."""
    return [
        {
            "seq": number,
            "ts": TS,
            "run_id": run_id,
            "subagent_id": subagent_id,
            "backend": "claude-code",
            "kind": step[0],
            "source": "agent",
            "parent_tool_call_id": step[2] if len(step) > 2 else None,
            "data": step[1],
        }
        for number, step in enumerate(steps, 1)
    ]


def make_run(run_id: str, **more: Any) -> dict[str, Any]:
    """A finished run."""
    return {
        "run_id": run_id,
        "subagent_id": "sub_1",
        "sandbox_id": None,
        "user_id": "local",
        "backend": "claude-code",
        "query": "do it",
        "state": "finished",
        "outcome": "completed",
        "tier": 0,
        "repo": None,
        "workspace": "overlay",
        "limits": {"memory_max_bytes": 2 * 1024**3, "wall_clock_seconds": 300.0},
        "enforcement": {"memory_max_bytes": "cgroup"},
        "usage": {
            "tokens": {"input": 900, "output": 12, "cache_read": 300},
            "cost_usd": 0.0123,
            "turns": 2,
            "peak_memory_bytes": 128 * 1024**2,
        },
        "final_text": "All done.",
        "error": None,
        "exit_code": 0,
        "cli_version": "2.1.0",
        "image_id": "sha256:1",
        "metadata": {},
        "queue_position": None,
        "last_seq": 11,
        "created_at": TS,
        "started_at": TS,
        "finished_at": "2026-05-01T10:00:03.500000Z",
        "links": {},
        **more,
    }


@dataclass
class FakeApi:
    """What is answered, and what was asked."""

    steps: list[Step] = field(default_factory=lambda: list(HELLO))
    token: str = "pml_local"
    embedded: bool = False
    """It says that it is inside a command."""
    hang: bool = False
    """Leave the last event out until the run is cancelled."""
    stop_short: int | None = None
    """Give only this many events, then wait until ``finish``."""
    cut_after: list[int] = field(default_factory=list)
    """For each connection to the event stream in turn: break it off after so many events."""
    refuse: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    """Answers to the next POSTs instead of taking the run."""
    run: dict[str, Any] = field(default_factory=lambda: make_run("run_1"))
    runs: list[dict[str, Any]] = field(default_factory=list)
    subagents: list[dict[str, Any]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    conflicts: list[dict[str, Any]] = field(default_factory=list)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    """Parameters of the questions for changes."""
    keys: list[str | None] = field(default_factory=list)
    resumed_from: list[str | None] = field(default_factory=list)
    account: dict[str, Any] = field(
        default_factory=lambda: {
            "backend": "claude-code",
            "user_id": "local",
            "mode": "byo_subscription",
            "connected": False,
            "disconnecting": False,
            "run_ids": [],
            "command": "podmentor login claude-code",
        }
    )
    auth_status: dict[str, Any] = field(
        default_factory=lambda: {"installed": True, "authenticated": True, "error": None}
    )
    asked: list[tuple[str, str]] = field(default_factory=list)
    cancelled: int = 0
    allowed: list[dict[str, Any]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    log: bytes = b'2026-05-01T10:00:00Z stdout F \x1b]0;title\x07{"x":1}\n'
    finish: bool = False

    def __post_init__(self) -> None:
        self.changed = asyncio.Condition()

    def application(self) -> web.Application:
        """The routes."""
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/healthz", self._healthz)
        app.router.add_post("/v1/runs", self._submit)
        app.router.add_get("/v1/runs", self._list)
        app.router.add_get("/v1/runs/{id}", self._get)
        app.router.add_get("/v1/runs/{id}/events", self._events)
        app.router.add_post("/v1/runs/{id}/cancel", self._cancel)
        app.router.add_post("/v1/runs/{id}/egress", self._allow)
        app.router.add_get("/v1/runs/{id}/log", self._log)
        app.router.add_get("/v1/subagents", self._subagents)
        app.router.add_get("/v1/subagents/{id}", self._subagent)
        app.router.add_delete("/v1/subagents/{id}", self._delete)
        app.router.add_get("/v1/subagents/{id}/changes", self._changes)
        app.router.add_get("/v1/subagents/{id}/changes.patch", self._patch)
        app.router.add_post("/v1/subagents/{id}/apply", self._apply)
        app.router.add_post("/v1/subagents/{id}/discard", self._discard)
        app.router.add_post("/v1/subagents/{id}/rollback", self._rollback)
        app.router.add_get("/v1/runs/{id}/changes", self._run_changes)
        app.router.add_post("/v1/gc", self._gc)
        app.router.add_get("/v1/subagents/{id}/commits", self._commits)
        app.router.add_get("/v1/subagents/{id}/commits.{form}", self._commits_file)
        app.router.add_get("/v1/backends", self._backends)
        app.router.add_get("/v1/accounts", self._accounts)
        app.router.add_route("*", "/ui/plugins/external_agent/subscription/{backend}{rest:.*}", self._subscription)
        return app

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.path != "/healthz" and request.headers.get("Authorization") != f"Bearer {self.token}":
            return problem(401, "unauthorized", "no such token")
        response: web.StreamResponse = await handler(request)
        return response

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok", "embedded": self.embedded})

    async def _submit(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        self.keys.append(request.headers.get("Idempotency-Key"))
        if self.refuse:
            status, body = self.refuse.pop(0)
            return web.json_response(body, status=status, content_type="application/problem+json")
        return web.json_response({"run_id": "run_1", "subagent_id": "sub_1"}, status=202)

    def _all_events(self) -> list[dict[str, Any]]:
        events = make_events("run_1", self.steps)
        if self.hang:
            events = events[:-1]
            if self.cancelled:
                events += [make_events("run_1", [*self.steps[:-1], CANCELLED])[-1]]
        if self.stop_short is not None and not self.finish:
            events = events[: self.stop_short]
        return events

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["id"] not in {"run_1", *(run["run_id"] for run in self.runs)}:
            return problem(404, "not_found", "there is no such run")
        assert request.headers["Accept"] == "application/x-ndjson"
        self.resumed_from.append(request.headers.get("Last-Event-ID"))
        sent = int(request.headers.get("Last-Event-ID") or request.query.get("after") or "0")
        budget = self.cut_after.pop(0) if self.cut_after else None
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(b'{"seq":null,"kind":"status","data":{"phase":"heartbeat"}}\n')
        while True:
            for event in self._all_events():
                if event["seq"] <= sent:
                    continue
                if budget == 0:
                    assert request.transport is not None
                    request.transport.abort()
                    return response
                budget = None if budget is None else budget - 1
                sent = event["seq"]
                await response.write(json.dumps(event).encode() + b"\n")
                if event["kind"] in {"completed", "error"}:
                    return response
            if request.query.get("follow") == "false":
                return response
            async with self.changed:
                await self.changed.wait()

    async def _allow(self, request: web.Request) -> web.Response:
        self.allowed.append(await request.json())
        return web.json_response({**self.run, "egress": ["a.example", self.allowed[-1]["host"]]})

    async def _cancel(self, _: web.Request) -> web.Response:
        self.cancelled += 1
        async with self.changed:
            self.changed.notify_all()
        return web.json_response(make_run("run_1", state="running", outcome=None))

    async def release(self) -> None:
        """Let the events behind ``stop_short`` go."""
        self.finish = True
        async with self.changed:
            self.changed.notify_all()

    async def _get(self, request: web.Request) -> web.Response:
        wanted = request.match_info["id"]
        if wanted == "run_1":
            if self.cancelled and self.hang:
                return web.json_response(
                    {**self.run, "outcome": "cancelled", "final_text": None, "error": CANCELLED[1]}
                )
            return web.json_response(self.run)
        for run in self.runs:
            if run["run_id"] == wanted:
                return web.json_response(run)
        return problem(404, "not_found", "there is no such run")

    async def _list(self, request: web.Request) -> web.Response:
        if (prefix := request.query.get("prefix")) is None:
            self.bodies.append(dict(request.query))
            return web.json_response({"runs": self.runs, "next_before": None})
        runs = {run["run_id"]: run for run in [*self.runs, self.run] if run["run_id"].startswith(prefix)}
        return web.json_response({"runs": list(runs.values())[: int(request.query["limit"])], "next_before": None})

    async def _log(self, _: web.Request) -> web.Response:
        return web.Response(body=self.log, content_type="text/plain")

    async def _subagents(self, request: web.Request) -> web.Response:
        prefix = request.query.get("prefix", "")
        found = [one for one in self.subagents if one["subagent_id"].startswith(prefix)]
        return web.json_response({"subagents": found})

    async def _subagent(self, request: web.Request) -> web.Response:
        for found in self.subagents:
            if found["subagent_id"] == request.match_info["id"]:
                return web.json_response(found)
        return problem(404, "not_found", "there is no such subagent")

    async def _delete(self, request: web.Request) -> web.Response:
        self.deleted.append(request.match_info["id"])
        return web.Response(status=204)

    async def _changes(self, request: web.Request) -> web.Response:
        self.chosen.append(dict(request.query))
        return web.json_response({"changes": CHANGES, "ignored": IGNORED})

    async def _patch(self, request: web.Request) -> web.Response:
        self.chosen.append(dict(request.query))
        return web.Response(body=PATCH, content_type="text/x-diff")

    async def _apply(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.bodies.append(body)
        if self.conflicts and not body["dry_run"]:
            return problem(409, "conflict", "nothing was applied", files=self.conflicts)
        return web.json_response(
            {
                "applied": not body["dry_run"],
                "branch": body.get("branch"),
                "commit": "2" * 40 if "branch" in body else None,
                "files": [
                    {"path": "a.txt", "change": "modified", "outcome": "applied", "reason": None},
                    *self.conflicts,
                ],
            }
        )

    async def _discard(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response({"discarded": ["a.txt", "b"]})

    async def _rollback(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.Response(status=204)

    async def _run_changes(self, _: web.Request) -> web.Response:
        found = [("a\x1b[2J", "changed"), ("b", "deleted"), ("c", "restored")]
        return web.json_response({"changes": [{"path": path, "change": change} for path, change in found]})

    async def _gc(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.json())
        return web.json_response(
            {
                "removed": [{"kind": "log", "id": "run_1", "bytes": 2048, "reason": None}],
                "bytes": 2048,
                "kept": [{"kind": "subagent", "id": "sub_1", "bytes": 5, "reason": "it has changes"}],
                "dry_run": self.bodies[-1]["dry_run"],
            }
        )

    async def _commits(self, _: web.Request) -> web.Response:
        return web.json_response({"commits": COMMITS})

    async def _commits_file(self, request: web.Request) -> web.Response:
        return web.Response(body=b"\xff" + request.match_info["form"].encode())

    async def _accounts(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs))
        return web.json_response({"accounts": [self.account]})

    async def _subscription(self, request: web.Request) -> web.Response:
        self.asked.append((request.method, request.path_qs))
        if request.match_info["backend"] != "claude-code":
            return problem(404, "unknown_backend", "no such backend")
        if request.match_info["rest"] == "/finished":
            return web.json_response(self.auth_status)
        if request.method == "DELETE":
            if self.account["run_ids"] and "mode" not in request.query:
                return problem(409, "conflict", "1 run(s) use this account now")
            if request.query["timeout"] != "0":  # the second question: the run has ended meanwhile
                self.account = {**self.account, "run_ids": []}
            self.account = {**self.account, "connected": False, "disconnecting": bool(self.account["run_ids"])}
        return web.json_response(self.account)

    async def _backends(self, _: web.Request) -> web.Response:
        can = {"streaming": True, "deltas": True, "thinking": False}
        return web.json_response(
            {
                "backends": [
                    {
                        "name": "claude-code",
                        "tool_name": "claude_code",
                        "image": "sha256:1",
                        "image_tag": "2.1.0-abc",
                        "cli_version": "2.1.0",
                        "capabilities": can,
                        "default_allowed_egress": [],
                        "auth": {"source": "technical_user", "authenticated": True},
                    },
                    {
                        "name": "codex",
                        "tool_name": "codex",
                        "image": None,
                        "image_tag": None,
                        "cli_version": None,
                        "capabilities": can,
                        "default_allowed_egress": [],
                        "auth": {"authenticated": False, "error": "no key"},
                    },
                ]
            }
        )


def problem(status: int, code: str, detail: str, **more: Any) -> web.Response:
    """An error as the API writes it."""
    return web.json_response(
        {
            "type": f"urn:podmentor:problem:{code}",
            "title": code,
            "status": status,
            "detail": detail,
            "code": code,
            **more,
        },
        status=status,
        content_type="application/problem+json",
    )


@contextlib.asynccontextmanager
async def serve(api: FakeApi, socket: Path | None) -> AsyncIterator[int | None]:
    """Serve ``api`` on ``socket``, or on a free port (which is yielded)."""
    runner = web.AppRunner(api.application(), shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    try:
        if socket is not None:
            socket.unlink(missing_ok=True)
            await web.UnixSite(runner, str(socket)).start()
            yield None
        else:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
        if socket is not None:
            socket.unlink(missing_ok=True)


class ThreadedApi:
    """``with ThreadedApi(api, socket) as served:`` serves from a thread; ``do`` runs something in its loop."""

    def __init__(self, api: FakeApi, socket: Path | None) -> None:
        self.api = api
        self.port: int | None = None
        self._socket = socket
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        try:
            async with serve(self.api, self._socket) as self.port:
                self._ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if not self._ready.done():
                self._ready.set_exception(error)
            raise

    def __enter__(self) -> Self:
        self._thread.start()
        self._ready.result(timeout=10)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End the service.  Safe to call twice."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(timeout=10)

    def do(self, coro: Any) -> Any:
        """Run ``coro`` in the service's loop."""
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(timeout=10)


@dataclass
class FakeHandle:
    """ServiceHandle."""

    socket: Path
    token: str
    port: int | None
    stops: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.stopped = asyncio.Event()

    def request_stop(self, *, drain: bool = False) -> None:
        """Note it, and stop."""
        self.stops.append(drain)
        print(f"[stop drain={drain}]", flush=True)
        self.stopped.set()

    async def wait_stopped(self) -> None:
        """Until asked to stop."""
        await self.stopped.wait()


@contextlib.contextmanager
def state_lock(paths: Paths) -> Iterator[None]:
    """The state directory belongs to one service."""
    try:
        handle = os.open(paths.lock_file, os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        raise ConflictError("another service holds the state directory") from None
    try:
        yield
    finally:
        os.close(handle)
        paths.lock_file.unlink()


@contextlib.asynccontextmanager
async def fake_running_service(config: Config, paths: Paths, *, listen_tcp: bool) -> AsyncIterator[FakeHandle]:
    """Stands in for the embedded service; ``PODMENTOR_FAKE`` (JSON) sets fields of its FakeApi."""
    with state_lock(paths):
        api = FakeApi(**json.loads(os.environ.get("PODMENTOR_FAKE", "{}")))
        paths.token_file.write_text(api.token + "\n")
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(serve(api, paths.api_socket))
            port = await stack.enter_async_context(serve(api, None)) if listen_tcp else None
            handle = FakeHandle(socket=paths.api_socket, token=api.token, port=port)
            yield handle
            if any(handle.stops):
                await asyncio.Event().wait()  # a run that does not end
