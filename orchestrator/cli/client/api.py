"""A client of the HTTP API, over the service's Unix socket or a URL.

Errors of the API come back as the classes that the service raised; a service that does not answer is
ServiceGoneError.  Event streams survive disconnects: they go on after the last event that was received.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from orchestrator import errors
from orchestrator.errors import PodmentorError, RemoteError, ServiceGoneError

TERMINAL_KINDS = frozenset({"completed", "error"})
_DELAYS = (0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0)
"""Seconds between attempts to get a stream again; the last one repeats."""
_LONG = 900.0
"""Seconds that applying or removing many files may take."""
MAX_LINE = 256 * 1024**2
"""Bytes; far above any event that the journal makes (they are cut): a service beyond it is broken or hostile."""
_SILENCE = 45.0
"""Seconds without a byte after which a stream counts as dead; heartbeats come every 10 s."""


def _subclasses(cls: type[PodmentorError]) -> list[type[PodmentorError]]:
    return [found for sub in cls.__subclasses__() for found in (sub, *_subclasses(sub))]


_BY_CODE = {cls.code: cls for cls in _subclasses(PodmentorError) if cls.__module__ == errors.__name__}


def error_of(status: int, body: bytes) -> PodmentorError:
    """The error that an answer stands for."""
    try:
        problem = json.loads(body)
    except ValueError:
        problem = None
    if not isinstance(problem, dict):
        return RemoteError(f"the service answered {status} and nothing that can be read")
    core = {"type", "title", "status", "detail", "code", "request_id"}
    code, message = str(problem.get("code", "")), str(problem.get("detail") or problem.get("title") or status)
    if code not in _BY_CODE:
        message = f"{message} ({code or status})"
    details = {f"remote_{key}" if key in {"message", "self"} else key: value for key, value in problem.items()}
    return _BY_CODE.get(code, RemoteError)(message, **{k: v for k, v in details.items() if k not in core})


class ApiClient:
    """One connection to one service.  Use as an async context manager."""

    def __init__(
        self, *, token: str, socket: Path | None = None, url: str | None = None, patience: float = 3.0
    ) -> None:
        """``patience``: seconds for which a lost stream is sought again before ServiceGoneError."""
        self.socket = socket
        self._patience = patience
        self._base = (url or "http://localhost").rstrip("/")
        self._where = str(socket) if socket is not None else self._base
        self._token = token
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        connector = aiohttp.UnixConnector(path=str(self.socket)) if self.socket is not None else None
        self._http = aiohttp.ClientSession(
            connector=connector,
            headers={"Authorization": f"Bearer {self._token}"},
            timeout=aiohttp.ClientTimeout(total=60, sock_connect=10),
        )
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close all connections.  Safe to call twice."""
        if self._http is not None:
            await self._http.close()

    @property
    def _session(self) -> aiohttp.ClientSession:
        assert self._http is not None, "use it inside `async with`"
        return self._http

    async def call(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float = 60.0,
    ) -> bytes:
        """The body of the answer.  Raises the service's error, or ServiceGoneError."""
        try:
            async with self._session.request(
                method,
                self._base + path,
                params=params,
                json=body,
                headers=headers,
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=timeout, sock_connect=10),
            ) as response:
                data = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServiceGoneError(f"no answer from the service at {self._where}: {_reason(error)}") from error
        if not 200 <= response.status < 300:
            raise error_of(response.status, data)
        return data

    async def json(self, method: str, path: str, **more: Any) -> dict[str, Any]:
        """``call`` for answers that are JSON objects."""
        data = await self.call(method, path, **more)
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise RemoteError(f"the service at {self._where} did not answer with a JSON object; is this podmentor?")
        return found

    async def health(self) -> Mapping[str, Any] | None:
        """What the service says of itself; None: none answers."""
        try:
            async with self._session.get(self._base + "/healthz", timeout=aiohttp.ClientTimeout(total=5)) as response:
                found = await response.json() if response.status == 200 else None
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    async def submit(self, body: Mapping[str, Any], *, key: str) -> dict[str, Any]:
        """Have a run accepted; ``key`` makes a second try harmless.  {run_id, subagent_id}."""
        return await self.json("POST", "/v1/runs", body=body, headers={"Idempotency-Key": key})

    async def run(self, run_id: str) -> dict[str, Any]:
        """One run."""
        return await self.json("GET", _run(run_id))

    async def runs(self, **wanted: Any) -> dict[str, Any]:
        """A page of runs: {runs, next_before}."""
        return await self.json("GET", "/v1/runs", params={k: str(v) for k, v in wanted.items() if v is not None})

    async def cancel(self, run_id: str) -> dict[str, Any]:
        """Ask for the end of a run."""
        return await self.json("POST", f"{_run(run_id)}/cancel")

    async def allow(self, run_id: str, host: str, port: int | None) -> dict[str, Any]:
        """Let a run reach one more host."""
        body: dict[str, Any] = {"host": host} if port is None else {"host": host, "port": port}
        return await self.json("POST", f"{_run(run_id)}/egress", body=body)

    async def log(self, run_id: str) -> AsyncIterator[bytes]:
        """The raw log of a run, piece by piece: it may be a gigabyte."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE)
        path = f"{self._base}{_run(run_id)}/log"
        try:
            async with self._session.get(path, allow_redirects=False, timeout=timeout) as response:
                if response.status != 200:
                    raise error_of(response.status, await response.read())
                async for chunk in response.content.iter_any():
                    yield chunk
        except (aiohttp.ClientError, TimeoutError) as error:
            raise ServiceGoneError(f"the log from {self._where} broke off: {_reason(error)}") from error

    async def subagents(self, **wanted: Any) -> list[dict[str, Any]]:
        """All subagents; with ``prefix`` those whose id begins so."""
        return list((await self.json("GET", "/v1/subagents", params=wanted))["subagents"])

    async def subagent(self, subagent_id: str) -> dict[str, Any]:
        """One subagent."""
        return await self.json("GET", _subagent(subagent_id))

    async def delete_subagent(self, subagent_id: str) -> None:
        """Remove a subagent with all that belongs to it."""
        await self.call("DELETE", _subagent(subagent_id))

    async def backends(self) -> list[dict[str, Any]]:
        """The enabled backends."""
        return list((await self.json("GET", "/v1/backends"))["backends"])

    async def changes(self, subagent_id: str) -> list[dict[str, Any]]:
        """What its workspace has changed, without the files that git ignores."""
        return list((await self.change_list(subagent_id))["changes"])

    async def change_list(self, subagent_id: str, paths: Sequence[str] = ()) -> dict[str, Any]:
        """{changes, ignored}."""
        return await self.json("GET", f"{_subagent(subagent_id)}/changes", params=_paths(paths))

    async def patch(self, subagent_id: str, paths: Sequence[str] = (), *, ignored: bool = False) -> bytes:
        """The same as a patch."""
        params = _paths(paths) | ({"ignored": "true"} if ignored else {})
        return await self.call("GET", f"{_subagent(subagent_id)}/changes.patch", params=params)

    async def apply(self, subagent_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Bring changes into the repo: {applied, files, branch, commit}.  Raises ConflictError."""
        return await self.json("POST", f"{_subagent(subagent_id)}/apply", body=body, timeout=_LONG)

    async def discard(self, subagent_id: str, paths: Sequence[str]) -> dict[str, Any]:
        """Drop changes: {discarded}."""
        return await self.json("POST", f"{_subagent(subagent_id)}/discard", body={"paths": list(paths)}, timeout=_LONG)

    async def run_changes(self, run_id: str) -> list[dict[str, Any]]:
        """What one run changed in the workspace."""
        return list((await self.json("GET", f"{_run(run_id)}/changes"))["changes"])

    async def rollback(self, subagent_id: str, run_id: str) -> None:
        """Take the workspace back to the end of a run."""
        await self.call("POST", f"{_subagent(subagent_id)}/rollback", body={"run_id": run_id}, timeout=_LONG)

    async def gc(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Remove what is old: {removed, kept, bytes, dry_run}."""
        return await self.json("POST", "/v1/gc", body=body, timeout=_LONG)

    async def commits(self, subagent_id: str) -> list[dict[str, Any]]:
        """The commits that the agent made, newest first."""
        return list((await self.json("GET", f"{_subagent(subagent_id)}/commits"))["commits"])

    async def commits_file(self, subagent_id: str, form: str) -> bytes:
        """The same as a file; ``form``: ``bundle`` or ``patch``."""
        return await self.call("GET", f"{_subagent(subagent_id)}/commits.{form}")

    async def events(self, run_id: str, *, after: int = 0, follow: bool = True) -> AsyncIterator[dict[str, Any]]:
        """Events with a higher ``seq`` than ``after``, each once and in order, to the one that ends the run.

        ``follow`` False: only those that exist.  Raises ServiceGoneError when the stream is lost for longer than the
        client's patience; the caller may go on elsewhere after the last ``seq`` it saw.
        """
        loop = asyncio.get_running_loop()
        deadline, attempt = loop.time() + self._patience, 0
        while True:
            lost: Exception | None = None
            opened = loop.time()
            try:
                async with aclosing(self._stream(run_id, after=after, follow=follow)) as stream:
                    async for event in stream:
                        if event["seq"] <= after:
                            continue
                        after = event["seq"]
                        deadline, attempt = loop.time() + self._patience, 0
                        yield event
                        if event["kind"] in TERMINAL_KINDS:
                            return
            except (aiohttp.ClientError, TimeoutError, OSError, _TryAgainError) as error:
                lost = error
            if lost is None and not follow:
                return
            if loop.time() - opened > self._patience:  # it was only silent: what was lost is lost since now
                deadline, attempt = loop.time() + self._patience, 0
            delay = _DELAYS[min(attempt, len(_DELAYS) - 1)]
            if loop.time() + delay > deadline:
                raise ServiceGoneError(f"the event stream from {self._where} broke off: {_reason(lost)}") from lost
            attempt += 1
            await asyncio.sleep(delay)

    async def _stream(self, run_id: str, *, after: int, follow: bool) -> AsyncGenerator[dict[str, Any], None]:
        headers = {"Accept": "application/x-ndjson"}
        if after:
            headers["Last-Event-ID"] = str(after)
        params = {"after": str(after)} | ({} if follow else {"follow": "false"})
        async with self._session.get(
            f"{self._base}{_run(run_id)}/events",
            params=params,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=_SILENCE),
        ) as response:
            if response.status >= 500:
                raise _TryAgainError(f"status {response.status}")
            if response.status != 200:
                raise error_of(response.status, await response.read())
            async for line in lines_of(response.content.iter_any()):
                if (event := _event(line)) is not None:
                    yield event


class _TryAgainError(Exception):
    """The service answers, but not with the stream."""


async def lines_of(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The lines in ``chunks``, however they are cut; a last one without its end is dropped: it comes again.

    Raises _TryAgainError for a line over MAX_LINE.
    """
    pending: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ends, rest = chunk.split(b"\n")
        for end in ends:
            yield b"".join([*pending, end])
            pending, size = [], 0
        pending.append(rest)
        size += len(rest)
        if size > MAX_LINE:
            raise _TryAgainError("an event without an end")


def _event(line: bytes) -> dict[str, Any] | None:
    """A journalled event; None for what is not one (heartbeats have no number)."""
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        raise _TryAgainError("an event that is not JSON") from None
    if not isinstance(event, dict) or not isinstance(event.get("seq"), int) or not isinstance(event.get("kind"), str):
        return None
    if not isinstance(event.get("data"), dict):
        event["data"] = {}
    return event


def _reason(error: Exception | None) -> str:
    if error is None:
        return "closed"
    if isinstance(error, TimeoutError):
        return "it took too long"
    return str(error) or type(error).__name__


def _run(run_id: str) -> str:
    return f"/v1/runs/{quote(run_id, safe='')}"


def _subagent(subagent_id: str) -> str:
    return f"/v1/subagents/{quote(subagent_id, safe='')}"


def _paths(paths: Sequence[str]) -> dict[str, str]:
    return {"paths": json.dumps(list(paths))} if paths else {}
