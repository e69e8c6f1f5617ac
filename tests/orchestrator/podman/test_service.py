"""Finding, starting, restarting, taking over and ending the service; ``podman`` is a script that serves a fake."""

import asyncio
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from orchestrator.errors import RuntimeUnavailableError
from orchestrator.podman import service as service_module
from orchestrator.podman.service import UNSET, PodmanService, podman_environment
from orchestrator.podman.transport import Transport
from orchestrator.system import processes
from tests.fakes.libpod import Answer, FakeLibpod

PROJECT = Path(__file__).resolve().parents[3]
SCRIPT = f"""#!{sys.executable}
import os, signal, sys
sys.path.insert(0, {str(PROJECT)!r})
from pathlib import Path
here = Path(__file__).parent
with (here / "calls").open("a") as calls:
    calls.write(repr(sys.argv[1:]) + "\\n")
if "unshare" in sys.argv:
    sys.exit(0)
if (here / "broken").exists():
    print("cannot set up namespace", file=sys.stderr)
    sys.exit(125)
(here / "environ").write_text(repr(dict(os.environ)))
from tests.fakes.libpod import FakeLibpod
socket = Path(sys.argv[-1].removeprefix("unix://"))
assert not socket.exists()
FakeLibpod(socket).start()
print("serving", flush=True)
signal.sigwait([signal.SIGTERM])
"""
SCRIPT = SCRIPT.replace(
    "import os, signal, sys\n", "import os, signal, sys\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
)

MakeService = Callable[..., PodmanService]


@pytest.fixture
def podman(tmp_path: Path) -> Path:
    script = tmp_path / "podman"
    script.write_text(SCRIPT)
    script.chmod(0o755)
    return script


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(workers=4)
    yield made
    made.aclose()


@pytest.fixture
async def make(transport: Transport, podman: Path, tmp_path: Path) -> AsyncIterator[MakeService]:
    made: list[PodmanService] = []

    def build(**changes: object) -> PodmanService:
        options: dict[str, object] = {"runtime_dir": tmp_path / "run", "podman": str(podman), **changes}
        service = PodmanService(transport, **options)  # type: ignore[arg-type]
        made.append(service)
        return service

    yield build
    for service in made:
        await service.aclose()


def starts(tmp_path: Path) -> int:
    return (tmp_path / "calls").read_text().count("'service'")


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def listener(service: PodmanService) -> int:
    assert service._listener is not None
    return service._listener.pid


async def test_the_user_s_own_socket_is_used_when_it_answers(
    libpod: FakeLibpod, make: MakeService, tmp_path: Path
) -> None:
    service = make(user_socket=libpod.socket)
    assert await service.ensure() == libpod.socket
    assert not service.owned
    assert not (tmp_path / "calls").exists()


async def test_a_socket_that_does_not_answer_is_not_used(libpod: FakeLibpod, make: MakeService, tmp_path: Path) -> None:
    libpod.stop()
    service = make(user_socket=libpod.socket)
    assert await service.ensure() == tmp_path / "run" / "podman.sock"
    assert service.owned


async def test_the_user_s_service_with_another_oci_runtime_is_not_used(
    libpod: FakeLibpod, make: MakeService, tmp_path: Path
) -> None:
    service = make(user_socket=libpod.socket, oci_runtime="crun")
    assert await service.ensure() == tmp_path / "run" / "podman.sock"
    assert (
        "['--runtime', 'crun', '--log-level=error', 'system', 'service', '--time=0', 'unix://"
        in (tmp_path / "calls").read_text()
    )


async def test_a_runtime_given_as_a_path_is_known_by_its_name(libpod: FakeLibpod, make: MakeService) -> None:
    assert await make(user_socket=libpod.socket, oci_runtime="/usr/sbin/runc").ensure() == libpod.socket


async def test_a_configured_socket_must_answer(make: MakeService, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match="no Podman service answers"):
        await make(configured=tmp_path / "nothing.sock").ensure()


async def test_started_once_and_only_looked_at_when_suspected(make: MakeService, tmp_path: Path) -> None:
    service = make()
    sockets = await asyncio.gather(*(service.ensure() for _ in range(5)))
    assert set(sockets) == {tmp_path / "run" / "podman.sock"}
    pid = listener(service)
    service.suspect()
    await service.ensure()
    assert listener(service) == pid
    assert starts(tmp_path) == 1
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


async def test_a_service_that_died_is_started_again_by_the_next_call(make: MakeService, tmp_path: Path) -> None:
    service = make()
    await service.ensure()
    first = listener(service)
    os.kill(first, signal.SIGKILL)
    held = processes.HeldProcess.open(first, lambda _: True)
    if held is not None:
        with held:
            assert await held.ended_within(10)
    service.suspect()
    await service.ensure()
    assert listener(service) != first
    assert starts(tmp_path) == 2


async def test_its_death_is_noticed_before_a_call_fails(make: MakeService, tmp_path: Path) -> None:
    service = make()
    await service.ensure()
    assert service._child is not None
    os.kill(listener(service), signal.SIGKILL)
    await service._child.wait()
    await service.ensure()
    assert starts(tmp_path) == 2


async def test_the_service_ends_with_its_owner(make: MakeService, tmp_path: Path) -> None:
    service = make()
    socket = await service.ensure()
    pid = listener(service)
    await service.aclose()
    assert not alive(pid)
    assert not socket.exists()
    with pytest.raises(RuntimeUnavailableError, match="has ended"):
        await service.ensure()
    await service.aclose()


async def test_a_service_that_ignores_term_is_killed(
    make: MakeService, podman: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "TERM_SECONDS", 0.1)
    podman.write_text(SCRIPT.replace("signal.sigwait([signal.SIGTERM])", "signal.sigwait([signal.SIGUSR1])"))
    service = make()
    await service.ensure()
    pid = listener(service)
    await service.aclose()
    assert not alive(pid)


async def test_a_guest_uses_the_service_and_leaves_it(make: MakeService, tmp_path: Path) -> None:
    owner, guest = make(), make()
    socket = await owner.ensure()
    assert await guest.ensure() == socket
    assert not guest.owned
    await guest.aclose()
    assert alive(listener(owner))
    assert starts(tmp_path) == 1


async def test_a_guest_becomes_the_owner_when_the_owner_has_gone(make: MakeService, tmp_path: Path) -> None:
    owner, guest = make(), make()
    await owner.ensure()
    await guest.ensure()
    await owner.aclose()
    guest.suspect()
    await guest.ensure()
    assert guest.owned
    assert starts(tmp_path) == 2


async def test_a_service_left_by_a_crash_is_taken_over_and_ended(
    make: MakeService, podman: Path, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    socket = tmp_path / "run" / "podman.sock"
    left = await asyncio.create_subprocess_exec(
        str(podman), "system", "service", "--time=0", f"unix://{socket}", stdout=asyncio.subprocess.PIPE
    )
    assert left.stdout is not None
    assert await left.stdout.readline() == b"serving\n"
    service = make()
    await service.ensure()
    assert listener(service) == left.pid
    assert starts(tmp_path) == 1
    await service.aclose()
    await left.wait()


async def test_a_stale_socket_is_replaced(make: MakeService, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    FakeLibpod(tmp_path / "run" / "podman.sock").start().stop()
    service = make()
    await service.ensure()
    assert service.owned


async def test_the_service_dies_with_a_process_that_is_killed(podman: Path, tmp_path: Path) -> None:
    program = f"""
import asyncio, sys
from pathlib import Path
from orchestrator.podman.service import PodmanService
from orchestrator.podman.transport import Transport
async def main():
    service = PodmanService(Transport(workers=2), runtime_dir=Path({str(tmp_path / "run")!r}), podman={str(podman)!r})
    await service.ensure()
    print(service._listener.pid, flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdout=asyncio.subprocess.PIPE, cwd=PROJECT
    )
    assert owner.stdout is not None
    pid = int(await owner.stdout.readline())
    held = processes.HeldProcess.open(pid, lambda _: True)
    assert held is not None
    owner.kill()
    await owner.wait()
    with held:
        assert await held.ended_within(10)


async def test_what_the_service_said_is_in_the_error(make: MakeService, tmp_path: Path) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(RuntimeUnavailableError, match="cannot set up namespace"):
        await make().ensure()
    (tmp_path / "broken").unlink()


async def test_it_is_tried_anew_after_a_failure(make: MakeService, tmp_path: Path) -> None:
    service = make()
    (tmp_path / "broken").touch()
    with pytest.raises(RuntimeUnavailableError):
        await service.ensure()
    (tmp_path / "broken").unlink()
    await service.ensure()
    assert service.owned


async def test_a_missing_podman_is_said(make: MakeService, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match=r"ended at once|not installed"):
        await make(podman=str(tmp_path / "missing")).ensure()


async def test_a_socket_path_that_is_too_long_is_said(make: MakeService, tmp_path: Path) -> None:
    with pytest.raises(RuntimeUnavailableError, match="too long"):
        await make(runtime_dir=tmp_path / ("x" * 100)).ensure()


async def test_a_service_that_never_answers_is_ended(
    make: MakeService, podman: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(service_module, "START_SECONDS", 0.3)
    podman.write_text(SCRIPT.replace("FakeLibpod(socket).start()", "(here / 'pid').write_text(str(os.getpid()))"))
    with pytest.raises(RuntimeUnavailableError, match="did not answer"):
        await make().ensure()
    if (tmp_path / "pid").exists():
        assert not alive(int((tmp_path / "pid").read_text()))


async def test_nothing_of_systemd_s_or_of_a_remote_podman_reaches_the_service(
    make: MakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "CONTAINER_HOST"):
        monkeypatch.setenv(name, "/x")
    await make().ensure()
    environ = (tmp_path / "environ").read_text()
    assert not [name for name in ("NOTIFY_SOCKET", "LISTEN_FDS", "CONTAINER_HOST") if name in environ]


async def test_a_socket_of_somebody_else_is_not_trusted(
    libpod: FakeLibpod, make: MakeService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("orchestrator.podman.service.os.geteuid", lambda: 4_000_000)
    libpod.script("GET", "/_ping", Answer(200, "OK"))
    assert not await make()._answers(libpod.socket)


async def test_a_service_that_hangs_is_killed_and_replaced(
    make: MakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped, it takes connections and answers none, and takes no TERM."""
    monkeypatch.setattr(service_module, "PING_SECONDS", 0.2)
    service = make()
    await service.ensure()
    hung = listener(service)
    os.kill(hung, signal.SIGSTOP)
    assert await service.hangs(tmp_path / "run" / "podman.sock")
    service.suspect()
    monkeypatch.setattr(service_module, "PING_SECONDS", 10.0)
    await service.ensure()
    assert not alive(hung)
    assert listener(service) != hung
    assert starts(tmp_path) == 2


async def test_a_users_service_that_hangs_is_replaced_by_one_of_ours(
    libpod: FakeLibpod, make: MakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service_module, "PING_SECONDS", 1.0)
    release = threading.Event()
    service = make(user_socket=libpod.socket)
    assert await service.ensure() == libpod.socket
    libpod.script("GET", "/_ping", Answer(200, wait=release))
    service.suspect()
    assert await service.ensure() == tmp_path / "run" / "podman.sock"
    release.set()


async def test_all_who_wait_share_one_failure(
    libpod: FakeLibpod, make: MakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A service that hangs costs its time limit once, not once for each call that waits."""
    monkeypatch.setattr(service_module, "PING_SECONDS", 0.2)
    release = threading.Event()
    libpod.script("GET", "/_ping", Answer(200, wait=release))
    service = make(configured=libpod.socket)
    results = await asyncio.gather(*(service.ensure() for _ in range(6)), return_exceptions=True)
    assert [type(result) for result in results] == [RuntimeUnavailableError] * 6
    assert len(libpod.seen("GET", "/_ping")) == 1
    release.set()
    libpod.script("GET", "/_ping", Answer(200, "OK"))
    assert await service.ensure() == libpod.socket


async def test_a_caller_who_gives_up_does_not_cut_a_start_in_half(make: MakeService, tmp_path: Path) -> None:
    service = make()
    impatient = asyncio.ensure_future(service.ensure())
    await asyncio.sleep(0)
    impatient.cancel()
    with pytest.raises(asyncio.CancelledError):
        await impatient
    await service.ensure()
    assert starts(tmp_path) == 1


def test_no_key_is_in_podman_s_environment() -> None:
    environ = {
        "HOME": "/h",
        "PATH": "/bin",
        "XDG_RUNTIME_DIR": "/r",
        "ANTHROPIC_API_KEY": "sk",
        "STORAGE_DRIVER": "vfs",
    }
    assert podman_environment(environ) == {
        "HOME": "/h",
        "PATH": "/bin",
        "XDG_RUNTIME_DIR": "/r",
        "STORAGE_DRIVER": "vfs",
    }


def test_what_is_about_this_process_is_not_passed_on() -> None:
    assert podman_environment(dict.fromkeys(UNSET, "x")) == {}
