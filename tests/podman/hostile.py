"""An agent that means harm: runs a Python script in its container and tells what came of each attempt.

Its targets are servers of the test's own on loopback, addresses of the documentation ranges, and names that only the
test's own hosts file knows.  No real host is ever tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from tests.orchestrator.relay.proxied import Target, target
from tests.podman.live import LiveService

PRELUDE = '''
import ctypes, errno, glob, json, os, socket, stat, struct, subprocess, sys
out = {}
def attempt(name):
    def run(work):
        try:
            out[name] = f"ok: {work()!r}"
        except OSError as error:
            out[name] = errno.errorcode.get(error.errno, str(error))
        except Exception as error:
            out[name] = type(error).__name__
        return work
    return run
libc = ctypes.CDLL(None, use_errno=True)
def checked(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
def said(data, port=8118):
    """What the proxy answers to these bytes."""
    with socket.create_connection(("127.0.0.1", port), 20) as sock:
        sock.sendall(data)
        answer = b""
        try:
            while piece := sock.recv(65536):
                answer += piece
        except ConnectionResetError:
            pass
        return answer.decode("latin-1")
def first_line(data):
    with socket.create_connection(("127.0.0.1", 8118), 20) as sock:
        sock.sendall(data)
        return sock.makefile("rb").readline().decode("latin-1").strip()
def connect(target):
    return first_line(f"CONNECT {target} HTTP/1.1\\r\\nHost: {target}\\r\\n\\r\\n".encode())
'''


def script(body: str, **values: object) -> str:
    """The prompt that makes the agent run ``body``; ``values`` are its globals."""
    given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
    lines = f"{PRELUDE}{given}{textwrap.dedent(body)}\nprint('RESULT ' + json.dumps(out))"
    return f"scenario: dump\nRUN:\npython3 - <<'PY_END'\n{lines}\nPY_END\n"


async def attack(
    service: LiveService, body: str, *, submit: dict[str, Any] | None = None, **values: object
) -> dict[str, str]:
    """What became of every attempt."""
    run = await service.submit(script(body, **values), **(submit or {}))
    return results(await service.finished(run["run_id"]))


def results(record: dict[str, Any]) -> dict[str, str]:
    """The attempts of a finished run."""
    text = record["final_text"] or ""
    found = [line.partition("RESULT ")[2] for line in text.splitlines() if "RESULT " in line]
    assert found, f"{record['error']}: {text[-3000:]}"
    answer = json.loads(found[-1])
    assert isinstance(answer, dict)
    return answer


@contextlib.asynccontextmanager
async def watched() -> AsyncIterator[Target]:
    """A server on loopback that keeps everything that it was sent.

    It answers the first request with ``the watched server`` and goes on to listen.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            found.received.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\nthe watched server")
            found.received.append(await reader.read(-1))

    async with target(serve) as found:
        yield found


def audited(state: Path, event: str, run_id: str) -> list[dict[str, Any]]:
    """The audit log's lines of one kind about one run."""
    lines = [json.loads(line) for line in (state / "audit.log").read_text().splitlines()]
    return [line for line in lines if line["event"] == event and line.get("run_id") == run_id]
