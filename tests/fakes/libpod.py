"""A libpod service on a Unix socket, in a thread, scripted answer by answer."""

import json
import socketserver
import threading
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, Self
from urllib.parse import parse_qsl, urlsplit

PREFIX = "/v4.0.0/libpod"

INFO: dict[str, Any] = {
    "host": {
        "cgroupVersion": "v2",
        "cgroupControllers": ["cpu", "memory", "pids"],
        "ociRuntime": {"name": "runc"},
        "security": {"rootless": True, "selinuxEnabled": False},
        "slirp4netns": {"executable": "/usr/bin/slirp4netns"},
    },
    "version": {"Version": "4.3.1"},
}


@dataclass(frozen=True)
class Answer:
    """What to answer; ``hang_up`` closes the connection after the request was read, ``wait`` holds the answer back."""

    status: int = 200
    body: Any = None
    hang_up: bool = False
    wait: threading.Event | None = None

    @classmethod
    def error(cls, status: int, message: str) -> Self:
        return cls(status, {"cause": message, "message": message, "response": status})


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: dict[str, str]
    body: Any = field(default=None)


Script = Answer | Callable[[Request], Answer]
GONE = Answer.error(404, "no such container")


class FakeLibpod:
    """``script("GET", "/info", answer, ...)``: answers in turn, the last one again and again."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.requests: list[Request] = []
        self.arrived = threading.Condition()
        self._scripts: dict[tuple[str, str], deque[Script]] = defaultdict(deque)
        self._server: _Server | None = None
        self._connections: list[Any] = []
        self.script("GET", "/_ping", Answer(200, "OK"))
        self.script("GET", "/info", Answer(200, INFO))

    def script(self, method: str, path: str, *answers: Script) -> None:
        self._scripts[method, path] = deque(answers)

    def seen(self, method: str, path: str) -> list[Request]:
        return [r for r in self.requests if (r.method, r.path) == (method, path)]

    def wait_for(self, method: str, path: str, count: int = 1) -> None:
        """Block (call it in a thread) until that request has come so often."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.seen(method, path)) >= count, timeout=10)

    def answer(self, request: Request) -> Answer:
        with self.arrived:
            self.requests.append(request)
            self.arrived.notify_all()
        answers = self._scripts.get((request.method, request.path))
        if not answers:
            return GONE if request.path.startswith("/containers/") else Answer.error(404, "not scripted")
        answer = answers.popleft() if len(answers) > 1 else answers[0]
        return answer(request) if callable(answer) else answer

    def start(self) -> Self:
        self.socket.unlink(missing_ok=True)
        self._server = _Server(str(self.socket), _Handler)
        self._server.fake = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Stop answering; the socket file stays, as after a crash."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
            self._server = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64
    fake: FakeLibpod

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        raw = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = parts.path.removeprefix(PREFIX)
        request = Request(self.command, path, dict(parse_qsl(parts.query)), json.loads(raw) if raw else None)
        answer = self.server.fake.answer(request)
        if answer.wait is not None:
            answer.wait.wait(30)
        self.close_connection = True
        if answer.hang_up:
            return
        text = b"" if answer.body is None else json.dumps(answer.body).encode()
        self.send_response(answer.status)
        self.send_header("Content-Length", str(len(text)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = _answer

    def address_string(self) -> str:
        return "unix"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """Quiet."""
