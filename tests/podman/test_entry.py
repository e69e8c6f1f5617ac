"""The entry script in real containers, with a server on the host's side of the gateway socket."""

import socketserver
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from tests.podman.images_kit import IMAGE, container, run_to_end

pytestmark = pytest.mark.podman

ENTRY = "/usr/local/bin/podmentor-entry"


class Gateway(BaseHTTPRequestHandler):
    """Answers ``hello PATH``; /slow sends its second half only when the test says so."""

    go_on = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/slow":
            self.wfile.write(b"first\n")
            self.wfile.flush()
            self.go_on.wait(30)
            self.wfile.write(b"second\n")
            return
        self.wfile.write(f"hello {self.path}\n".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "unix"  # a Unix socket's peer has no address

    def log_message(self, *args: object) -> None:
        """Say nothing."""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@pytest.fixture
def control() -> Iterator[Path]:
    """A control directory with a prompt and no socket; its path is short enough for one."""
    with tempfile.TemporaryDirectory(prefix="pm-") as directory:
        (Path(directory) / "prompt").write_text("fix the test\n")
        yield Path(directory)


@pytest.fixture
def gateway(control: Path) -> Iterator[Path]:
    """The control directory with a gateway that answers."""
    Gateway.go_on.clear()
    with Server(str(control / "gateway.sock"), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield control
        server.shutdown()
        thread.join(10)


def run(control: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return run_to_end(container(f"--volume={control}:/run/podmentor:ro", IMAGE, *command))


def test_the_egress_proxy_has_a_port_of_its_own(control: Path) -> None:
    with Server(str(control / "egress.sock"), Gateway) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        done = run(
            control, ENTRY, "sh", "-c", "curl -sS http://127.0.0.1:8118/x; curl -sS -m 5 http://127.0.0.1:8080/x"
        )
        server.shutdown()
        thread.join(10)
    assert done.stdout == "hello /x\n"
    assert done.returncode == 7, "there is no gateway in this container"


def test_the_cli_reads_the_prompt_and_reaches_the_gateway_without_a_network(gateway: Path) -> None:
    script = "id -u; cat; curl -sS http://127.0.0.1:8080/v1/x; tail -n +2 /proc/net/route; ls /sys/class/net"
    done = run(gateway, ENTRY, "sh", "-c", script)
    assert (done.stdout, done.stderr, done.returncode) == ("1000\nfix the test\nhello /v1/x\nlo\n", "", 0)


def test_large_bodies_and_many_connections_pass(gateway: Path) -> None:
    script = """
    head -c 5000000 /dev/urandom > /tmp/body
    curl -sS --data-binary @/tmp/body http://127.0.0.1:8080/ | cmp - /tmp/body && echo same
    seq 40 | xargs -P 20 -I{} curl -sS http://127.0.0.1:8080/{} | sort -u | wc -l
    """
    done = run(gateway, ENTRY, "sh", "-c", script)
    assert (done.stdout, done.stderr) == ("same\n40\n", "")


def test_a_stream_passes_piece_by_piece(gateway: Path) -> None:
    argv = container(
        f"--volume={gateway}:/run/podmentor:ro", IMAGE, ENTRY, "curl", "-sSN", "http://127.0.0.1:8080/slow"
    )
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "first\n"
        Gateway.go_on.set()
        assert process.stdout.read() == "second\n"
    assert process.returncode == 0


def test_the_relay_holds_none_of_the_clis_pipes(gateway: Path) -> None:
    script = """
    for process in /proc/[0-9]*; do
        [ "$(cat $process/comm 2>/dev/null)" = socat ] || continue
        for fd in 0 1 2; do readlink $process/fd/$fd; done
        ls -l $process/fd | grep -c pipe:
    done
    """
    assert run(gateway, ENTRY, "sh", "-c", script).stdout.split() == ["/dev/null"] * 3 + ["0"]


def test_the_container_ends_with_the_cli_and_has_its_exit_code(gateway: Path) -> None:
    assert run(gateway, ENTRY, "sh", "-c", "sleep 1000 >/dev/null 2>&1 & exit 7").returncode == 7


def test_without_a_gateway_socket_nothing_listens(control: Path) -> None:
    done = run(control, ENTRY, "sh", "-c", "grep -c 1F90 /proc/net/tcp; cat")
    assert (done.stdout, done.returncode) == ("0\nfix the test\n", 0)


def test_a_cli_that_is_not_there(control: Path) -> None:
    done = run(control, ENTRY, "no-such-cli", "--flag")
    assert done.returncode == 127
    assert "no-such-cli" in done.stderr


def test_without_a_prompt(control: Path) -> None:
    (control / "prompt").unlink()
    done = run(control, ENTRY, "true")
    assert (done.returncode, done.stderr) == (96, "podmentor-entry: /run/podmentor/prompt cannot be read\n")


def test_a_port_that_another_process_has(gateway: Path) -> None:
    script = f"""
    socat TCP-LISTEN:8080,bind=127.0.0.1,fork SYSTEM:true &
    until grep -q :1F90 /proc/net/tcp; do sleep 0.05; done
    exec {ENTRY} echo started
    """
    done = run(gateway, "sh", "-c", script)
    assert (done.returncode, done.stdout) == (96, "")
    assert "the relay from 127.0.0.1:8080 to gateway.sock ended at once" in done.stderr


def test_the_agent_cannot_change_the_entry(control: Path) -> None:
    done = run(control, ENTRY, "sh", "-c", f"stat -c %U:%a {ENTRY}; echo x >> {ENTRY}")
    assert done.stdout == "root:755\n"
    assert done.returncode != 0
