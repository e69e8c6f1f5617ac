"""The real probe, on harmless things."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from orchestrator.doctor.probe import Output, SystemProbe

probe = SystemProbe()


async def test_command() -> None:
    output = await probe.run("sh", "-c", "echo out; echo first >&2; echo last >&2; exit 3")
    assert output == Output(3, "out\n", "first\nlast\n")
    assert not output.good
    assert output.complaint == "last"


async def test_command_that_is_not_there() -> None:
    output = await probe.run("no-such-command-here")
    assert output.code is None
    assert "No such file" in output.complaint


async def test_command_without_an_end_is_killed_with_its_children(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    held = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    # the child holds the writing end: end of file is seen only when both are dead
    output = await probe.run("sh", "-c", f"exec 3>{fifo}; echo started >&3; sleep 1000 & wait", timeout=0.5)
    assert output.code is None
    assert "did not end within" in output.complaint
    os.set_blocking(held, True)
    read = await asyncio.wait_for(asyncio.to_thread(_read_all, held), 10)
    assert read in {b"started\n", b""}


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


async def test_files(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert await probe.read(file) is None
    await probe.write(file, "text\n")
    assert await probe.read(file) == "text\n"
    facts = await probe.facts(file)
    assert facts is not None
    assert (facts.uid, facts.mode, facts.is_dir, facts.privileged) == (os.getuid(), 0o600, False, False)
    assert facts.free_bytes > 0
    file.chmod(0o4755)
    facts = await probe.facts(file)
    assert facts is not None
    assert facts.privileged
    await probe.write(tmp_path / "no" / "such" / "directory", "lost")
    assert await probe.facts(tmp_path / "no") is None
    assert sorted(tmp_path.iterdir()) == [file]


async def test_files_of_the_kernel() -> None:
    for name in ("/proc/sys/kernel/random/boot_id", "/proc/self/mountinfo"):
        assert await probe.read(Path(name)) == Path(name).read_text()


async def test_rootfs(tmp_path: Path) -> None:
    root = tmp_path / "root"
    assert await probe.make_rootfs(root) is None
    assert (root / "var/tmp").is_dir()
    await probe.remove(root)
    assert not root.exists()
    (tmp_path / "file").touch()
    assert "Not a directory" in str(await probe.make_rootfs(tmp_path / "file" / "root"))


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [(b"HTTP/1.1 200 OK\r\n\r\nOK", None), (b"HTTP/1.1 500 Oh\r\n\r\n", "500"), (b"", "answers b''")],
)
async def test_ping(tmp_path: Path, reply: bytes, trouble: str | None) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(reply)
        writer.close()

    async with await asyncio.start_unix_server(answer, tmp_path / "s"):
        said = await probe.ping(tmp_path / "s")
    assert said is None if trouble is None else trouble in str(said)


async def test_ping_of_nothing_and_of_one_who_never_answers(tmp_path: Path) -> None:
    assert "No such file" in str(await probe.ping(tmp_path / "s"))
    connected: list[asyncio.StreamWriter] = []

    def silent(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connected.append(writer)

    async with await asyncio.start_unix_server(silent, tmp_path / "s"):
        assert "no answer within" in str(await probe.ping(tmp_path / "s", timeout=0.05))
        for writer in connected:
            writer.close()


SERVICE = """
import socketserver, sys
class Answer(socketserver.StreamRequestHandler):
    def handle(self):
        self.rfile.readline()
        self.wfile.write(b"HTTP/1.1 200 OK\\r\\n\\r\\n")
socketserver.UnixStreamServer(sys.argv[1], Answer).serve_forever()
"""


async def test_service_is_started_and_ended(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    assert await probe.serve(sys.executable, "-c", SERVICE, str(socket), socket=socket) is None
    assert not socket.exists()
    assert await probe.ping(socket) is not None


async def test_service_that_does_not_start(tmp_path: Path) -> None:
    socket = tmp_path / "s"
    assert await probe.serve("sh", "-c", "echo 'Error: no way' >&2; exit 1", socket=socket) == "Error: no way"
    assert "No such file" in str(await probe.serve("no-such-command-here", socket=socket))
    assert "no answer within" in str(await probe.serve("sleep", "1000", socket=socket, timeout=0.05))
