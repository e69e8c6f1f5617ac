"""The Podman service: found, or started here and then owned.

In this order: the configured socket; the user's own, when it answers; our own at ``<runtime dir>/podman.sock``.  Who
holds the lock on ``<runtime dir>/podman.lock`` owns our own service: starts it, restarts it when it has died, ends it
at the end.  A process that finds the lock taken is a guest of that service.  The kernel gives the lock back when its
holder crashes, so the next owner may find a service (it is taken over) or only its stale socket (it is replaced).

The service dies with us: ``setpriv --pdeathsig``.  That reaches only the process started here, and rootless podman
forks once more when it has to make its user namespace (the first call after a boot).  So the namespace is made
beforehand by a call that ends, and the process that really listens is looked up at the socket, and ended as well.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from orchestrator.errors import RuntimeUnavailableError, SandboxError
from orchestrator.podman.transport import Transport
from orchestrator.system import processes
from orchestrator.system.locks import try_lock
from orchestrator.system.processes import HeldProcess
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes
from orchestrator.system.tasks import TaskOwner, ignore_outcome

log = logging.getLogger(__name__)

START_SECONDS: Final = 45.0
PING_SECONDS: Final = 10.0
INFO_SECONDS: Final = 30.0
PREPARE_SECONDS: Final = 60.0
HUNG_SECONDS: Final = 0.5
"""Between TERM and KILL for a service that does not answer (a stopped process takes no TERM)."""

UNSET: Final = (
    "NOTIFY_SOCKET",
    "LISTEN_FDS",
    "LISTEN_PID",
    "LISTEN_FDNAMES",
    "WATCHDOG_USEC",
    "WATCHDOG_PID",
    "CONTAINER_HOST",
    "CONTAINER_CONNECTION",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
)
"""Variables that are about this process, or that would make podman talk to another service."""
_PASSED: Final = (
    "HOME",
    "USER",
    "LOGNAME",
    "PATH",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "XDG_RUNTIME_DIR",
    "XDG_CONFIG_HOME",
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "XDG_STATE_HOME",
)
_PASSED_PREFIXES: Final = ("CONTAINERS_", "STORAGE_", "PODMAN_", "REGISTRY_AUTH_FILE")


def podman_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of an environment that Podman needs; no key or token that happens to be in it goes along."""
    return {k: v for k, v in environ.items() if k in _PASSED or k.startswith(_PASSED_PREFIXES)}


class PodmanService:
    """Knows a socket that answers.  ``ensure`` is cheap while nothing is wrong."""

    def __init__(
        self,
        transport: Transport,
        *,
        runtime_dir: Path,
        configured: Path | None = None,
        user_socket: Path | None = None,
        oci_runtime: str | None = None,
        env: dict[str, str] | None = None,
        podman: str = "podman",
    ) -> None:
        self._transport = transport
        self._runtime_dir = runtime_dir
        self._own_socket = runtime_dir / "podman.sock"
        self._configured = configured
        self._user_socket = user_socket
        self._oci_runtime = oci_runtime
        self._env = env
        self._podman = podman
        self._socket: Path | None = None
        self._suspected = False
        self._closed = False
        self._hung: Path | None = None
        self._tasks = TaskOwner("podman service")
        self._finding: asyncio.Task[Path] | None = None
        self._child: asyncio.subprocess.Process | None = None
        self._listener: HeldProcess | None = None
        self._lock_fd = -1
        self._mutex = asyncio.Lock()

    @property
    def owned(self) -> bool:
        """Whether the service at the socket is ours to end."""
        return self._socket == self._own_socket and self._lock_fd >= 0

    def suspect(self) -> None:
        """The socket did not answer a call: look again before the next one."""
        self._suspected = True

    async def ensure(self) -> Path:
        """The socket of a service that answers (when last looked).  Raises RuntimeUnavailableError."""
        if (known := self._known()) is not None:
            return known
        # One search for all who wait, in a task of its own: one of them who gives up does not cut a start in half.
        if self._finding is None or self._finding.done():
            self._finding = self._tasks.spawn(self._look(), name="find", awaited=True)
            self._finding.add_done_callback(ignore_outcome)
        return await asyncio.shield(self._finding)

    async def _look(self) -> Path:
        async with self._mutex:
            if self._closed:
                raise RuntimeUnavailableError("podmentor has ended and needs no Podman service any more")
            self._suspected = False
            try:
                self._socket = await self._find()
            except BaseException:
                self._suspected = True
                raise
            return self._socket

    async def hangs(self, socket: Path) -> bool:
        """Whether the service at this socket, which keeps a call waiting, answers nobody."""
        self._hung = None if await self._answers(socket) else socket
        return self._hung is not None

    def _known(self) -> Path | None:
        if self._socket is None or self._suspected:
            return None
        if self._child is not None and self._child.returncode is not None:
            return None
        return self._socket

    async def _find(self) -> Path:
        if self._configured is not None:
            if not await self._answers(self._configured):
                raise RuntimeUnavailableError(
                    f"no Podman service answers at {self._configured} (podman.socket in the configuration)"
                )
            if (other := await self._other_runtime(self._configured)) is not None:
                raise RuntimeUnavailableError(
                    f"the Podman service at {self._configured} uses the OCI runtime {other}, not {self._oci_runtime}: "
                    f'set runtime = "{self._oci_runtime}" in the [engine] table of its containers.conf'
                )
            return self._configured
        user = self._user_socket
        if user is not None and user != self._own_socket and await self._answers(user):
            if (other := await self._other_runtime(user)) is None:
                return user
            log.info("the service at %s uses the OCI runtime %s: starting one with %s", user, other, self._oci_runtime)
        return await self._own()

    async def _answers(self, socket: Path) -> bool:
        """Whether a service of this user answers at the socket."""
        try:
            if os.lstat(socket).st_uid != os.geteuid():
                return False
            await self._transport.call(socket, "GET", "/_ping", timeout=PING_SECONDS, ping=True)
        except (OSError, SandboxError):
            return False
        return True

    async def _other_runtime(self, socket: Path) -> str | None:
        """The OCI runtime of the service, when it is not the wanted one (old versions take none per container)."""
        if self._oci_runtime is None:
            return None
        reply = await self._transport.call(socket, "GET", "/info", timeout=INFO_SECONDS)
        host = reply.body.get("host", {}) if isinstance(reply.body, dict) else {}
        name = str(host.get("ociRuntime", {}).get("name", ""))
        return None if name == Path(self._oci_runtime).name else name or "(unknown)"

    # --- our own service -------------------------------------------------------------------------------------------

    async def _own(self) -> Path:
        if socket_path_bytes(self._own_socket) > SOCKET_PATH_MAX:
            raise RuntimeUnavailableError(
                f"the path of the Podman socket is too long ({self._own_socket}): set a shorter storage.runtime_dir"
            )
        if not self._lock():
            return await self._visit()
        hung, self._hung = self._hung == self._own_socket, None
        if not hung and await self._answers(self._own_socket):
            if self._listener is None and self._child is None:
                self._listener = await self._held_listener()
                log.info("took over the Podman service that a former process left at %s", self._own_socket)
            return self._own_socket
        self._listener = self._listener or await self._held_listener()  # one that hangs
        await self._end(term_seconds=HUNG_SECONDS)
        await self._start()
        return self._own_socket

    def _lock(self) -> bool:
        if self._lock_fd >= 0:
            return True
        try:
            self._runtime_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = try_lock(self._runtime_dir / "podman.lock")
        except OSError as error:
            raise RuntimeUnavailableError(f"the runtime directory {self._runtime_dir} is not usable: {error}") from None
        if fd is None:
            return False
        self._lock_fd = fd
        return True

    async def _visit(self) -> Path:
        """Another process owns the service; it may be starting it just now."""
        deadline = asyncio.get_running_loop().time() + START_SECONDS
        while not await self._answers(self._own_socket):
            if self._lock():
                return await self._own()
            if asyncio.get_running_loop().time() > deadline:
                raise RuntimeUnavailableError(f"another process's Podman service does not answer at {self._own_socket}")
            await asyncio.sleep(0.1)
        return self._own_socket

    async def _start(self) -> None:
        self._own_socket.unlink(missing_ok=True)
        prefix = ["env", *(word for name in UNSET for word in ("-u", name)), self._podman]
        output = os.open(self._log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            # Makes the user namespace (see above).  When it fails, the service will say why.
            await processes.run([*prefix, "unshare", "true"], timeout=PREPARE_SECONDS, env=self._env)
            self._child = await asyncio.create_subprocess_exec(
                *("setpriv", "--pdeathsig=TERM", "--", *prefix),
                *(["--runtime", self._oci_runtime] if self._oci_runtime else []),
                *("--log-level=error", "system", "service", "--time=0", f"unix://{self._own_socket}"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,  # a file, not a pipe: what conmon inherits must not depend on us
                stderr=output,
                start_new_session=True,
                cwd="/",
                env=self._env,
            )
        except TimeoutError:
            raise RuntimeUnavailableError("podman does not answer (`podman unshare true` takes too long)") from None
        except FileNotFoundError as error:
            raise RuntimeUnavailableError(f"{error.filename or 'podman'} is not installed") from None
        except OSError as error:
            raise RuntimeUnavailableError(f"the Podman service cannot be started: {error}") from None
        finally:
            os.close(output)
        await self._started(self._child)

    async def _started(self, child: asyncio.subprocess.Process) -> None:
        try:
            async with asyncio.timeout(START_SECONDS):
                while not await self._answers(self._own_socket):
                    if child.returncode is not None:
                        break
                    await asyncio.sleep(0.02)
        except TimeoutError:
            await self._end()
            raise RuntimeUnavailableError(
                f"the Podman service did not answer within {START_SECONDS:.0f} s: {self._log_tail()}"
            ) from None
        except BaseException:
            await self._end()
            raise
        if child.returncode is not None:
            await self._end()
            raise RuntimeUnavailableError(f"the Podman service ended at once: {self._log_tail()}")
        self._listener = await self._held_listener()

    @property
    def _log_file(self) -> Path:
        return self._runtime_dir / "podman-service.log"

    def _log_tail(self) -> str:
        with contextlib.suppress(OSError):
            if said := self._log_file.read_bytes()[-600:].decode(errors="replace").strip():
                return said
        return "it said nothing"

    async def _held_listener(self) -> HeldProcess | None:
        pid = await asyncio.to_thread(processes.listening_pid, self._own_socket)
        address = f"unix://{self._own_socket}"
        return HeldProcess.open(pid, lambda pid: address in processes.cmdline(pid))

    async def _end(self, *, term_seconds: float | None = None) -> None:
        """The ladder: TERM, a while, KILL, for the process that listens and the one that was started; reaped."""
        listener, self._listener = self._listener, None
        child, self._child = self._child, None
        started = None if child is None else HeldProcess.of_child(child.pid)
        for process in (listener, started):
            if process is None:
                continue
            with process:
                if not await processes.end(process, term_seconds=term_seconds):
                    log.error("the Podman service (pid %d) did not end", process.pid)
        if child is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(processes.KILL_SECONDS):
                    await child.wait()

    async def aclose(self) -> None:
        """End the service if it is ours.  Containers go on."""
        self._closed = True
        await self._tasks.aclose(grace=processes.TERM_SECONDS + processes.KILL_SECONDS)
        async with self._mutex:
            self._socket = None
            if self._lock_fd < 0:
                return
            await self._end()
            self._own_socket.unlink(missing_ok=True)
            fd, self._lock_fd = self._lock_fd, -1
            os.close(fd)
