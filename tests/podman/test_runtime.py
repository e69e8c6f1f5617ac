"""The runtime on real containers: what the hardening does inside, how ends are reported, and that nothing is left."""

import asyncio
import json
import os
import secrets
import shutil
import signal
import tarfile
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from asyncinotify import Inotify, Mask

from orchestrator.config.models import PodmanConfig
from orchestrator.contract.sandbox import SandboxExit, SandboxSpec, StartedSandbox, WorkspaceMount
from orchestrator.errors import ImageMissingError, SandboxGoneError
from orchestrator.podman.exits import search
from orchestrator.podman.runtime import PodmanRuntime
from orchestrator.runs.limits.memory_watchdog import ProcessTable, namespace_of
from tests.podman import session

pytestmark = pytest.mark.podman

REAL_IMAGE = "localhost/podmentor/claude-code:current"
TINY_IMAGE = "localhost/podmentor/runtime-test:current"
OCI_RUNTIME = "runc" if shutil.which("runc") else None
MakeSpec = Callable[..., SandboxSpec]
MakeRuntime = Callable[[], PodmanRuntime]


async def podman(*argv: str, ok: bool = True) -> str:
    child = await asyncio.create_subprocess_exec(
        "podman", *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd="/"
    )
    output, errors = await child.communicate()
    assert not ok or child.returncode == 0, errors.decode()
    return output.decode().strip() if child.returncode == 0 else ""


async def import_tiny(scratch: Path) -> None:
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip(f"neither {REAL_IMAGE} nor busybox is there")
    root = scratch / "rootfs"
    for name in ("bin", "dev", "etc", "home/agent", "proc", "run/podmentor", "sys", "tmp", "workspace"):
        (root / name).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    shutil.copy(busybox, root / "bin" / "busybox")
    for name in ("sh", "cat", "cp", "dd", "echo", "false", "id", "ls", "rm", "sleep", "touch", "true"):
        (root / "bin" / name).symlink_to("busybox")
    with tarfile.open(scratch / "rootfs.tar", "w") as archive:
        archive.add(root, arcname=".")
    labels = ("podmentor.cli_version=1.0", "podmentor.recipe=test")
    changes = [word for label in labels for word in ("--change", f"LABEL {label}")]
    await podman("import", "--change", "ENV PATH=/bin", *changes, str(scratch / "rootfs.tar"), TINY_IMAGE)


@pytest.fixture(scope="session")
def image_name(tmp_path_factory: pytest.TempPathFactory) -> Any:
    async def find() -> str:
        if await podman("image", "inspect", REAL_IMAGE, ok=False):
            return REAL_IMAGE
        await import_tiny(tmp_path_factory.mktemp("image"))
        return TINY_IMAGE

    name = asyncio.run(find())
    yield name
    if name == TINY_IMAGE:
        asyncio.run(podman("rmi", "--force", TINY_IMAGE, ok=False))


@pytest.fixture
def instance() -> str:
    return f"test-{secrets.token_hex(6)}"


@pytest.fixture
async def make_runtime(instance: str, tmp_path: Path) -> AsyncIterator[MakeRuntime]:
    runtime_dir = session.runtime_dir()
    made: list[PodmanRuntime] = []

    def make() -> PodmanRuntime:
        runtime = PodmanRuntime(
            config=PodmanConfig(start_concurrency=8),
            runtime_dir=runtime_dir,
            instance=instance,
            oci_runtime=OCI_RUNTIME,
            owned_roots=[tmp_path],
            user_socket=tmp_path / "no.sock",
        )
        made.append(runtime)
        return runtime

    yield make
    for found in await made[-1].find():
        await made[-1].remove(found.container_id)
    for child in list(tmp_path.iterdir()):
        await made[-1].delete_tree(child)
    for runtime in made:
        await runtime.aclose()
    shutil.rmtree(runtime_dir)


@pytest.fixture
async def runtime(make_runtime: MakeRuntime) -> PodmanRuntime:
    made = make_runtime()
    await made.start()
    return made


@pytest.fixture
async def make_spec(image_name: str, instance: str, tmp_path: Path) -> MakeSpec:
    image_id = (await podman("image", "inspect", "--format", "{{.Id}}", image_name)).removeprefix("sha256:")

    def make(script: str, *, mode: Literal["overlay", "direct", "readonly"] = "overlay", **changes: Any) -> SandboxSpec:
        sandbox = f"sb-{secrets.token_hex(6)}"
        top = tmp_path / f"{sandbox} it's"  # as odd as a path may be
        for name in ("repo", "upper", "work", "home", "control", "run"):
            (top / name).mkdir(parents=True, mode=0o700)
        (top / "repo" / "kept").write_text("old")
        (top / "repo" / "gone").write_text("old")
        (top / "control" / "prompt").write_text("hello")
        overlay = {"upper": top / "upper", "work": top / "work"} if mode == "overlay" else {}
        spec = SandboxSpec(
            sandbox_id=sandbox,
            run_id=f"run-{sandbox}",
            instance=instance,
            backend="runtime-test",
            image_id=image_id,
            argv=["sh", "-c", script],
            env={"PROBE": "a b\nc"},
            tier=1,
            workspace=WorkspaceMount(mode=mode, source=top / "repo", **overlay),
            home=top / "home",
            control_dir=top / "control",
            log_path=top / "run" / "ctr.log",
            memory_max_bytes=512 * 1024**2,
            memory_by_cgroup=False,
            pids_max=100,
            cpus=None,
            kill_after_seconds=120,
        )
        return replace(spec, **changes)

    return make


async def begin(runtime: PodmanRuntime, spec: SandboxSpec) -> StartedSandbox:
    async with asyncio.timeout(90):
        return await runtime.start_sandbox(await runtime.create(spec))


async def finish(runtime: PodmanRuntime, spec: SandboxSpec) -> SandboxExit:
    """The whole life of a container."""
    started = await begin(runtime, spec)
    async with asyncio.timeout(90):
        ended = await runtime.wait(started)
    await runtime.remove(started.container_id)
    return ended


def output(spec: SandboxSpec, stream: str = "stdout") -> bytes:
    """What conmon logged, put together again."""
    text = b""
    for line in spec.log_path.read_bytes().split(b"\n"):
        if line:
            _, name, mark, piece = line.split(b" ", 3)
            if name.decode() == stream:
                text += piece + (b"\n" if mark == b"F" else b"")
    return text


async def written(path: Path, text: bytes) -> None:
    """Until the log has the text in it (conmon made the file before the start was answered)."""
    with Inotify() as inotify:
        inotify.add_watch(path, Mask.MODIFY)
        async with asyncio.timeout(60):
            while text not in path.read_bytes():
                await inotify.get()


def processes_of(container_id: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        for name in ("cmdline", "mountinfo"):
            try:
                if container_id.encode() in (entry / name).read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


# --- ends ---


@pytest.mark.parametrize("code", [0, 7])
async def test_exit_codes(runtime: PodmanRuntime, make_spec: MakeSpec, code: int) -> None:
    assert await finish(runtime, make_spec(f"exit {code}")) == SandboxExit(exit_code=code)


async def test_a_killed_container_has_137(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    started = await begin(runtime, make_spec("echo up; exec sleep 100"))
    waiting = asyncio.ensure_future(runtime.wait(started))
    await runtime.signal(started.container_id, "KILL")
    async with asyncio.timeout(60):
        assert (await waiting).exit_code == 137
    await runtime.signal(started.container_id, "TERM")  # ended: nothing happens
    await runtime.remove(started.container_id)
    await runtime.signal(started.container_id, "TERM")  # gone: nothing happens


async def test_int_reaches_the_command(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("trap 'echo caught; exit 9' INT; echo up; while :; do sleep 0.05; done")
    started = await begin(runtime, spec)
    await written(spec.log_path, b"up")
    await runtime.signal(started.container_id, "INT")
    async with asyncio.timeout(60):
        assert (await runtime.wait(started)).exit_code == 9
    assert output(spec) == b"up\ncaught\n"


async def test_the_log_is_complete_when_wait_returns_and_has_every_byte(
    runtime: PodmanRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("cat /workspace/big; printf 'no newline at the end'; printf oops >&2")
    lines = (
        b"".join(b"%06d " % n + b"x" * (n % 500) + b"\n" for n in range(4000)) + b"y" * 200_000 + b"\n\xff\xfe\x01\n"
    )
    (spec.workspace.source / "big").write_bytes(lines)
    started = await begin(runtime, spec)
    async with asyncio.timeout(60):
        assert await runtime.wait(started) == SandboxExit(exit_code=0)
    assert output(spec) == lines + b"no newline at the end"
    assert output(spec, "stderr") == b"oops"


async def test_a_command_that_does_not_exist(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("", argv=["no-such-cli"])
    assert (await finish(runtime, spec)).exit_code not in {0, None}
    assert b"No such file" in output(spec, "stderr")


async def test_the_last_resort_ends_the_container_without_us(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    started = await begin(runtime, make_spec("exec sleep 100", kill_after_seconds=1))
    async with asyncio.timeout(60):
        assert (await runtime.wait(started)).exit_code != 0
    await runtime.remove(started.container_id)
    assert processes_of(started.container_id) == []


async def test_a_killed_conmon_is_noticed_and_its_container_ended(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    started = await begin(runtime, make_spec("exec sleep 100"))
    waiting = asyncio.ensure_future(runtime.wait(started))
    await asyncio.sleep(0)
    os.kill(started.conmon_pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await waiting == SandboxExit(exit_code=None)
    await runtime.remove(started.container_id)
    assert processes_of(started.container_id) == []
    assert await runtime.find() == []


async def test_remove_while_running_leaves_nothing(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("sleep 100 & sleep 100 & echo up; wait")
    started = await begin(runtime, spec)
    await written(spec.log_path, b"up")
    assert len(processes_of(started.container_id)) >= 3
    await runtime.remove(started.container_id)
    assert processes_of(started.container_id) == []
    assert await runtime.find() == []
    await runtime.remove(started.container_id)
    with pytest.raises(SandboxGoneError):
        await runtime.attach(started.container_id)


@pytest.mark.parametrize("pause", [0.0, 0.005, 0.02])
async def test_a_cancelled_create_leaves_nothing(runtime: PodmanRuntime, make_spec: MakeSpec, pause: float) -> None:
    creating = asyncio.ensure_future(runtime.create(make_spec("true")))
    await asyncio.sleep(pause)
    if creating.cancel():
        with pytest.raises(asyncio.CancelledError):
            await creating
    else:
        await runtime.remove(await creating)
    await runtime._work.aclose()
    assert await runtime.find() == []


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.06])
async def test_a_cancelled_start_leaves_nothing(runtime: PodmanRuntime, make_spec: MakeSpec, pause: float) -> None:
    container_id = await runtime.create(make_spec("exec sleep 100"))
    starting = asyncio.ensure_future(runtime.start_sandbox(container_id))
    await asyncio.sleep(0)
    await asyncio.sleep(pause)
    if starting.cancel():
        with pytest.raises(asyncio.CancelledError):
            await starting
    else:
        await runtime.remove(container_id)
    await runtime._work.aclose()
    assert await runtime.find() == []
    assert processes_of(container_id) == []


DEAF_FAMILY = """
trap '' TERM INT HUP
( setsid sh -c 'trap "" TERM INT HUP; ( trap "" TERM; sleep 600; true ) & sleep 600; true' & )
echo up
while :; do sleep 600; done
"""


async def test_nothing_survives_a_kill_and_podman_is_not_needed(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    """Podman's service is stopped: it takes what it is asked, and does nothing."""
    spec = make_spec(DEAF_FAMILY)
    started = await begin(runtime, spec)
    await written(spec.log_path, b"up")
    table = ProcessTable()
    namespace = namespace_of(Path("/proc"), started.init_pid)
    assert namespace is not None
    assert len(table.members(namespace)) >= 4
    assert runtime._service._listener is not None
    os.kill(runtime._service._listener.pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(runtime.wait(started))
    await asyncio.sleep(0)
    async with asyncio.timeout(30):
        await runtime.signal(started.container_id, "INT")
        await runtime.signal(started.container_id, "KILL")
        assert (await waiting).exit_code == 137
    assert ProcessTable().members(namespace) == []
    await table.aclose()
    await runtime.remove(started.container_id)  # the service that hangs is replaced
    assert await runtime.find() == []
    assert processes_of(started.container_id) == []


async def test_a_container_is_recognised_by_a_runtime_that_knows_only_its_id(
    runtime: PodmanRuntime, make_runtime: MakeRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(DEAF_FAMILY)
    started = await begin(runtime, spec)
    other = await begin(runtime, make_spec(DEAF_FAMILY))
    found = search(started.container_id)
    assert found is not None
    assert found.pid == started.init_pid
    found.close()
    stranger = make_runtime()  # never started: it has no Podman service
    await stranger.signal(started.container_id, "KILL")
    async with asyncio.timeout(30):
        assert (await runtime.wait(started)).exit_code == 137
    assert search(other.container_id) is not None
    await runtime.remove(other.container_id)


async def test_the_oci_runtime_keeps_nothing_of_a_container_that_lost_its_conmon(
    runtime: PodmanRuntime, make_spec: MakeSpec
) -> None:
    started = await begin(runtime, make_spec("exec sleep 100"))
    records = [Path(os.environ["XDG_RUNTIME_DIR"]) / name / started.container_id for name in ("runc", "crun")]
    assert any(record.exists() for record in records)
    os.kill(started.conmon_pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await runtime.wait(started) == SandboxExit(exit_code=None)
    await runtime.remove(started.container_id)
    assert not any(record.exists() for record in records)


# --- taken up by another ---


async def test_a_second_runtime_takes_up_what_the_first_started(
    runtime: PodmanRuntime, make_runtime: MakeRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec("echo up; while [ ! -e /run/podmentor/end ]; do sleep 0.05; done; echo down; exit 5")
    started = await begin(runtime, spec)
    await written(spec.log_path, b"up")
    second = make_runtime()
    await second.start()
    (found,) = await second.find()
    assert (found.container_id, found.run_id, found.state) == (started.container_id, spec.run_id, "running")
    assert await second.attach(found.container_id) == started
    waiting = asyncio.ensure_future(second.wait(started))
    await asyncio.sleep(0)
    await runtime.aclose()  # and with it the service
    (spec.control_dir / "end").touch()
    async with asyncio.timeout(60):
        assert await waiting == SandboxExit(exit_code=5)
    assert output(spec) == b"up\ndown\n"
    assert await second.attach(found.container_id) == SandboxExit(exit_code=5)
    await second.remove(found.container_id)


async def test_containers_of_other_instances_are_not_found(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("true", instance="test-somebody-else")
    container_id = await runtime.create(spec)
    try:
        assert await runtime.find() == []
    finally:
        await runtime.remove(container_id)


async def test_eight_at_once(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    specs = [make_spec(f"echo {n}; exit {n}") for n in range(8)]
    ends = await asyncio.gather(*(finish(runtime, spec) for spec in specs))
    assert [end.exit_code for end in ends] == list(range(8))
    assert [output(spec) for spec in specs] == [b"%d\n" % n for n in range(8)]
    assert await runtime.find() == []


# --- inside ---


async def inside(runtime: PodmanRuntime, spec: SandboxSpec) -> str:
    ended = await finish(runtime, spec)
    assert ended.exit_code == 0, spec.log_path.read_text()
    return output(spec).decode()


async def test_no_capability_no_new_privileges_seccomp(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    lines = (await inside(runtime, make_spec("cat /proc/self/status"))).splitlines()
    status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    assert {status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0" * 16}
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"
    assert status["Uid"].split() == ["1000"] * 4
    assert status["Gid"].split() == ["1000"] * 4


async def test_sockets_are_made_only_of_families_that_namespaces_confine(
    runtime: PodmanRuntime, make_spec: MakeSpec
) -> None:
    script = """
        command -v python3 >/dev/null || { echo no python3; exit; }
        python3 -c "
import socket
for family in range(1, 46):
    try:
        socket.socket(family, socket.SOCK_STREAM).close()
        print(family)
    except OSError as error:
        if error.errno != 38:
            print(family, error.errno)
"
    """
    said = await inside(runtime, make_spec(script))
    if "no python3" in said:
        pytest.skip("needs an image with Python")
    families = {line.split()[0] for line in said.splitlines()}
    assert families == {"1", "2", "10", "16"}


async def test_the_root_is_read_only_and_scratch_is_writable(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    script = """
        for place in / /etc /usr /run /run/podmentor /var/tmp /home /proc /sys /dev; do
            if touch "$place/probe" 2>/dev/null; then echo "writable: $place"; fi
        done
        touch /tmp/probe /dev/shm/probe /home/agent/probe /workspace/probe && echo scratch
    """
    assert await inside(runtime, make_spec(script)) == "scratch\n"


async def test_tier_1_has_no_interface_but_loopback(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    names = (await inside(runtime, make_spec("cat /proc/net/dev"))).splitlines()[2:]
    assert [line.split(":")[0].strip() for line in names] == ["lo"]
    assert len((await inside(runtime, make_spec("cat /proc/net/route"))).splitlines()) == 1  # the heading


@pytest.mark.skipif(not os.access("/dev/net/tun", os.R_OK | os.W_OK), reason="no /dev/net/tun for the network helper")
async def test_tier_0_has_a_network_of_its_own(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    names = (await inside(runtime, make_spec("cat /proc/net/dev", tier=0))).splitlines()[2:]
    assert len(names) == 2
    here = str(Path("/proc/self/ns/net").readlink())
    assert here not in await inside(runtime, make_spec("ls -l /proc/self/ns/net", tier=0))


async def test_environment_prompt_and_init(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    script = 'echo "$PROBE|$HTTP_PROXY$http_proxy$ANTHROPIC_API_KEY|$(cat /run/podmentor/prompt)|$(cat /proc/sys/kernel/hostname)|$$"'
    os.environ["HTTP_PROXY"] = os.environ["ANTHROPIC_API_KEY"] = "leak"
    try:
        text = await inside(runtime, make_spec(script))
    finally:
        del os.environ["HTTP_PROXY"], os.environ["ANTHROPIC_API_KEY"]
    value, leaked, prompt, hostname, pid = text.strip().split("|")
    assert (value, leaked, prompt, hostname) == ("a b\nc", "", "hello", "podmentor")
    assert int(pid) > 1  # process 1 is the init


async def test_standard_input_is_empty(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    assert await inside(runtime, make_spec("cat; echo end")) == "end\n"


async def test_hostile_arguments_stay_arguments(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    words = ["$(touch /workspace/x)", "`id`", "; exit 3", "--privileged", "a\nb", "\u00e9\u2028", "'\"\\", ""]
    spec = make_spec("", argv=["sh", "-c", 'for word; do printf "%s\\0" "$word"; done', "sh", *words])
    assert (await inside(runtime, spec)).split("\0")[:-1] == words
    assert spec.workspace.upper is not None
    assert list(spec.workspace.upper.iterdir()) == []


async def test_processes_are_limited(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("i=0; while [ $i -lt 60 ]; do sleep 5 & i=$((i+1)); done; echo all", pids_max=20)
    await finish(runtime, spec)
    if not runtime._host.nproc_per_userns and "pids" not in runtime._host.controllers:
        pytest.skip("neither the kernel nor a cgroup limits the processes of one container here")
    assert b"fork" in output(spec, "stderr").lower()


@pytest.mark.delegation
async def test_the_memory_limit_where_there_is_a_controller(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    assert runtime.memory_by_cgroup
    spec = make_spec(
        "x=$(dd if=/dev/zero bs=1M count=300 | cat -v); echo all", memory_max_bytes=64 * 1024**2, memory_by_cgroup=True
    )
    assert (await finish(runtime, spec)).exit_code == 137


# --- workspaces ---

CHANGE = "echo new > /workspace/made; echo new > /workspace/kept; rm /workspace/gone"


async def test_an_overlay_leaves_the_repo_alone_and_its_leftovers_can_be_removed(
    runtime: PodmanRuntime, make_spec: MakeSpec
) -> None:
    spec = make_spec(CHANGE)
    await inside(runtime, spec)
    repo, upper, work = spec.workspace.source, spec.workspace.upper, spec.workspace.work
    assert upper is not None
    assert work is not None
    assert {p.name: p.read_text() for p in repo.iterdir()} == {"kept": "old", "gone": "old"}
    assert (upper / "made").read_text() == "new\n"
    assert (upper / "made").stat().st_uid == os.getuid()
    await runtime.delete_tree(work)
    await runtime.delete_tree(upper)
    assert not work.exists()
    assert not upper.exists()


async def test_a_direct_workspace_is_the_repo(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec(CHANGE, mode="direct")
    await inside(runtime, spec)
    assert {p.name: p.read_text() for p in spec.workspace.source.iterdir()} == {"kept": "new\n", "made": "new\n"}


async def test_a_read_only_workspace_cannot_be_changed(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec(f"cat /workspace/kept; ({CHANGE}) 2>/dev/null; exit 0", mode="readonly")
    assert await inside(runtime, spec) == "old"
    assert {p.name: p.read_text() for p in spec.workspace.source.iterdir()} == {"kept": "old", "gone": "old"}


async def test_files_of_other_ids_and_closed_directories_are_removed(runtime: PodmanRuntime, tmp_path: Path) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    tree.mkdir()
    script = 'mkdir "$1/a" && touch "$1/a/b" && ln -s "$2" "$1/a/link" && chown -R 1:1 "$1/a" && chmod 0 "$1/a"'
    await podman("unshare", "sh", "-c", script, "sh", str(tree), str(outside))
    await runtime.delete_tree(tree)
    assert not tree.exists()
    assert (outside / "kept").exists()


# --- the image and the service ---


async def test_the_current_image(runtime: PodmanRuntime, image_name: str) -> None:
    backend = image_name.removeprefix("localhost/podmentor/").removesuffix(":current")
    image = await runtime.image(backend)
    inspected = json.loads(await podman("image", "inspect", image_name))[0]
    assert image.image_id == inspected["Id"].removeprefix("sha256:")
    assert image.cli_version == inspected["Labels"]["podmentor.cli_version"]
    assert image.size_bytes > 0
    with pytest.raises(ImageMissingError, match="podmentor images build no-such"):
        await runtime.image("no-such")


async def test_an_image_that_is_not_there_is_never_pulled(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    with pytest.raises(ImageMissingError):
        await runtime.create(make_spec("true", image_id="0" * 64))


async def test_a_killed_service_is_started_again(runtime: PodmanRuntime, make_spec: MakeSpec) -> None:
    spec = make_spec("echo up; sleep 0.5; exit 4")
    started = await begin(runtime, spec)
    listener = runtime._service._listener
    assert listener is not None
    os.kill(listener.pid, signal.SIGKILL)
    async with asyncio.timeout(60):
        assert await runtime.wait(started) == SandboxExit(exit_code=4)
        await runtime.remove(started.container_id)
    assert await finish(runtime, make_spec("exit 6")) == SandboxExit(exit_code=6)
