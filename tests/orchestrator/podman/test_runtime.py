"""The runtime over a scripted libpod: what it does when Podman fails, hangs, lies or is gone."""

import asyncio
import dataclasses
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.sandbox import FoundSandbox, SandboxExit, StartedSandbox
from orchestrator.errors import (
    ImageMissingError,
    InvalidRequestError,
    RuntimeUnavailableError,
    SandboxError,
    SandboxGoneError,
    TransientSandboxError,
)
from orchestrator.podman import runtime as runtime_module
from orchestrator.podman.runtime import PodmanRuntime
from tests.fakes.conmon import FakeConmon
from tests.fakes.libpod import GONE, INFO, Answer, FakeLibpod, Request, Script
from tests.orchestrator.podman.conftest import MakeRuntime
from tests.orchestrator.podman.test_spec import SPEC

CID = "ab" * 32
OTHER = "cd" * 32
CREATE = ("POST", "/containers/create")
START = ("POST", f"/containers/{CID}/start")
INSPECT = ("GET", f"/containers/{CID}/json")
KILL = ("POST", f"/containers/{CID}/kill")
DELETE = ("DELETE", f"/containers/{CID}")
LIST = ("GET", "/containers/json")
BUSY = Answer.error(500, "adding container to database: database is locked")
LOST = Answer(hang_up=True)
FULL = ["0:1:1000", "1000:0:1", "1001:1001:64536"]


def state(status: str, **more: Any) -> Answer:
    return Answer(200, {"Id": CID, "State": {"Status": status, "OOMKilled": False, "ExitCode": 0, **more}})


def created(container_id: str = CID) -> Answer:
    return Answer(201, {"Id": container_id, "Warnings": []})


def will_create(libpod: FakeLibpod, *answers: Script) -> None:
    """Answers to create; what was made can be looked at."""
    libpod.script(*CREATE, *answers)
    libpod.script(*INSPECT, Answer(200, {"HostConfig": {"IDMappings": {"UidMap": FULL, "GidMap": FULL}}}))


# --- start ---


async def test_it_reads_what_the_machine_can_do(runtime: PodmanRuntime) -> None:
    assert runtime.memory_by_cgroup


async def test_required_cgroup_limits_refuse_to_start_without(libpod: FakeLibpod, make_runtime: MakeRuntime) -> None:
    libpod.script("GET", "/info", Answer(200, {**INFO, "host": {**INFO["host"], "cgroupVersion": "v1"}}))
    with pytest.raises(RuntimeUnavailableError, match="memory, pids"):
        await make_runtime(require_cgroup_limits=True).start()
    lenient = make_runtime()
    await lenient.start()
    assert not lenient.memory_by_cgroup


async def test_required_cgroup_limits_start_with(make_runtime: MakeRuntime) -> None:
    await make_runtime(require_cgroup_limits=True).start()


async def test_a_service_with_another_oci_runtime_is_refused_when_configured(make_runtime: MakeRuntime) -> None:
    with pytest.raises(RuntimeUnavailableError, match="uses the OCI runtime runc, not crun"):
        await make_runtime(oci_runtime="crun").start()


# --- create ---


async def test_create_sends_the_payload_and_gives_the_id(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    will_create(libpod, created())
    assert await runtime.create(SPEC) == CID
    (request,) = libpod.seen(*CREATE)
    assert request.body["image"] == SPEC.image_id
    assert request.body["resource_limits"]["pids"] == {"limit": SPEC.pids_max}  # the facts of this machine are used


@pytest.mark.parametrize(
    "failure",
    [
        BUSY,
        Answer.error(
            500, "keep-id requires additional UIDs or GIDs defined in /etc/subuid and /etc/subgid to function"
        ),
    ],
)
async def test_create_is_tried_again_on_passing_failures(
    libpod: FakeLibpod, runtime: PodmanRuntime, failure: Answer
) -> None:
    will_create(libpod, failure, failure, created())
    assert await runtime.create(SPEC) == CID
    assert [r.body["name"] for r in libpod.seen(*CREATE)] == [
        "podmentor-sb-1",
        "podmentor-sb-1-2",
        "podmentor-sb-1-3",
    ]


async def test_create_gives_up_after_a_bounded_number_of_attempts(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    will_create(libpod, BUSY)
    with pytest.raises(TransientSandboxError, match="database is locked"):
        await runtime.create(SPEC)
    assert len(libpod.seen(*CREATE)) == 8


async def test_a_real_failure_is_not_tried_again(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    will_create(libpod, Answer.error(500, "statfs /srv/repo: no such file or directory"))
    with pytest.raises(SandboxError, match="statfs"):
        await runtime.create(SPEC)
    assert len(libpod.seen(*CREATE)) == 1


async def test_a_missing_image_is_said(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    will_create(libpod, Answer.error(500, f"{SPEC.image_id}: image not known"))
    with pytest.raises(ImageMissingError) as caught:
        await runtime.create(SPEC)
    assert caught.value.details["image"] == SPEC.image_id


async def test_nothing_is_asked_of_podman_for_a_bad_spec(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    with pytest.raises(InvalidRequestError):
        await runtime.create(dataclasses.replace(SPEC, argv=[]))
    assert libpod.seen(*CREATE) == []


async def test_a_create_without_an_answer_leaves_nothing_behind(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    """The lost one may have made a container: it is looked for by its label and removed."""
    will_create(libpod, LOST, created())
    libpod.script(*LIST, Answer(200, [{"Id": OTHER, "State": "created"}, {"Id": CID, "State": "created"}]))
    libpod.script("DELETE", f"/containers/{OTHER}", Answer(200, []))
    assert await runtime.create(SPEC) == CID
    assert json.loads(libpod.seen(*LIST)[0].query["filters"]) == {"label": ["podmentor.sandbox_id=sb-1"]}
    assert len(libpod.seen("DELETE", f"/containers/{OTHER}")) == 1
    assert libpod.seen(*DELETE) == []


@pytest.mark.parametrize(
    "broken", [{"UidMap": ["1000:0:1"], "GidMap": FULL}, {"UidMap": FULL, "GidMap": ["0:1:1000"]}, {}]
)
async def test_a_container_without_its_user_ids_is_made_anew(
    libpod: FakeLibpod, runtime: PodmanRuntime, broken: dict[str, Any]
) -> None:
    """Podman 5 makes one now and then when it could not read the subordinate ids; it could not be started."""
    will_create(libpod, created(OTHER), created())
    libpod.script("GET", f"/containers/{OTHER}/json", Answer(200, {"HostConfig": {"IDMappings": broken}}))
    libpod.script(*LIST, Answer(200, [{"Id": OTHER, "State": "created"}, {"Id": CID, "State": "created"}]))
    libpod.script("DELETE", f"/containers/{OTHER}", Answer(200, []))
    assert await runtime.create(SPEC) == CID
    assert len(libpod.seen("DELETE", f"/containers/{OTHER}")) == 1


async def test_a_cancelled_create_is_finished_and_removed(
    libpod: FakeLibpod, runtime: PodmanRuntime, make_runtime: MakeRuntime
) -> None:
    answered = threading.Event()
    will_create(libpod, dataclasses.replace(created(), wait=answered))
    libpod.script(*DELETE, Answer(200, []))
    creating = asyncio.ensure_future(runtime.create(SPEC))
    await asyncio.to_thread(libpod.wait_for, *CREATE)
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert libpod.seen(*DELETE) == []
    answered.set()
    await asyncio.to_thread(libpod.wait_for, *DELETE)


async def test_starts_at_the_same_time_are_limited(libpod: FakeLibpod, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(start_concurrency=2)
    now = peak = 0
    lock, enough, release = threading.Lock(), threading.Event(), threading.Event()

    def create(request: Request) -> Answer:
        nonlocal now, peak
        with lock:
            now += 1
            peak = max(peak, now)
            if now == 2:
                enough.set()
        release.wait(10)
        with lock:
            now -= 1
        return created()

    will_create(libpod, create)
    creating = [asyncio.ensure_future(runtime.create(SPEC)) for _ in range(6)]
    assert await asyncio.to_thread(enough.wait, 10)
    creating[-1].cancel()  # still waits for its turn: nothing is made for it
    release.set()
    results = await asyncio.gather(*creating, return_exceptions=True)
    assert results[:5] == [CID] * 5
    assert isinstance(results[5], asyncio.CancelledError)
    assert peak == 2
    assert len(libpod.seen(*CREATE)) == 5


# --- start_sandbox ---


async def test_start_gives_the_processes(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*START, Answer(204))
    libpod.script(*INSPECT, state("running", Pid=4242, ConmonPid=4240))
    assert await runtime.start_sandbox(CID) == StartedSandbox(container_id=CID, conmon_pid=4240, init_pid=4242)


async def test_a_container_that_ended_at_once_has_its_conmon_from_the_pid_file(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path
) -> None:
    (tmp_path / "conmon.pid").write_text("4240")
    answer = state("stopped")
    libpod.script(*START, Answer(204))
    libpod.script(*INSPECT, Answer(200, {**answer.body, "ConmonPidFile": str(tmp_path / "conmon.pid")}))
    assert await runtime.start_sandbox(CID) == StartedSandbox(container_id=CID, conmon_pid=4240, init_pid=0)


async def test_start_is_tried_again_while_the_container_has_not_run(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*START, BUSY, Answer(204))
    libpod.script(*INSPECT, state("created"), state("running", Pid=4242, ConmonPid=4240))
    assert (await runtime.start_sandbox(CID)).init_pid == 4242
    assert len(libpod.seen(*START)) == 2


async def test_a_start_whose_answer_was_lost_does_not_run_the_agent_twice(
    libpod: FakeLibpod, runtime: PodmanRuntime
) -> None:
    libpod.script(*START, LOST)
    libpod.script(*INSPECT, state("exited", ExitCode=7))
    await runtime.start_sandbox(CID)
    assert len(libpod.seen(*START)) == 1


async def test_a_cancelled_start_is_finished_and_removed(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    answered = threading.Event()
    libpod.script(*START, Answer(204, wait=answered))
    libpod.script(*INSPECT, state("running"))
    libpod.script(*DELETE, Answer(200, []))
    starting = asyncio.ensure_future(runtime.start_sandbox(CID))
    await asyncio.to_thread(libpod.wait_for, *START)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    answered.set()
    await asyncio.to_thread(libpod.wait_for, *DELETE)


# --- wait and attach ---


async def test_wait_needs_no_answer_of_podman(libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        waiting = asyncio.ensure_future(
            runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=1))
        )
        await asyncio.sleep(0)
        conmon.write_exit_file("7")
        assert await waiting == SandboxExit(exit_code=7)
    assert libpod.seen(*INSPECT) == []


@pytest.mark.parametrize("oom_killed", [True, False])
async def test_a_killed_container_is_asked_for_oom(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path, oom_killed: bool
) -> None:
    libpod.script(*INSPECT, BUSY, state("stopped", ExitCode=137, OOMKilled=oom_killed))
    with FakeConmon(CID, tmp_path) as conmon:
        conmon.write_exit_file("137")
        found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=1))
    assert found == SandboxExit(exit_code=137, oom_killed=oom_killed)


async def test_a_known_code_is_kept_when_podman_cannot_tell_more(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path
) -> None:
    libpod.script(*INSPECT, Answer.error(500, "broken"))
    with FakeConmon(CID, tmp_path) as conmon:
        conmon.write_exit_file("137")
        found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=1))
    assert found == SandboxExit(exit_code=137)


@pytest.mark.parametrize("status", ["stopped", "exited"])
async def test_after_conmon_s_end_podman_tells(libpod: FakeLibpod, runtime: PodmanRuntime, status: str) -> None:
    libpod.script(*INSPECT, BUSY, LOST, state(status, ExitCode=3, OOMKilled=True))
    found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=0, init_pid=0))
    assert found == SandboxExit(exit_code=3, oom_killed=True)


async def test_a_reused_conmon_pid_is_not_waited_for(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path
) -> None:
    libpod.script(*INSPECT, state("exited", ExitCode=3))
    with FakeConmon(OTHER, tmp_path) as somebody:
        found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=somebody.pid, init_pid=1))
    assert found == SandboxExit(exit_code=3)


async def test_a_container_that_lost_its_conmon_is_killed_and_its_code_unknown(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path
) -> None:
    libpod.script(*KILL, Answer(204))
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("running", ConmonPid=conmon.pid, Pid=0))
        waiting = asyncio.ensure_future(
            runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=1))
        )
        await asyncio.sleep(0)
        conmon.kill()
        assert await waiting == SandboxExit(exit_code=None)
    assert [r.query for r in libpod.seen(*KILL)] == [{"signal": "KILL"}]


async def test_a_wrong_conmon_pid_is_put_right(libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path) -> None:
    """The container runs and has a conmon: it must not be taken for lost."""
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("running", ConmonPid=conmon.pid))
        waiting = asyncio.ensure_future(runtime.wait(StartedSandbox(container_id=CID, conmon_pid=0, init_pid=1)))
        await asyncio.to_thread(libpod.wait_for, *INSPECT)
        conmon.write_exit_file("5")
        assert await waiting == SandboxExit(exit_code=5)
    assert libpod.seen(*KILL) == []


@pytest.mark.parametrize("answer", [GONE, state("created"), state("removing")])
async def test_nobody_knows_the_code(libpod: FakeLibpod, runtime: PodmanRuntime, answer: Answer) -> None:
    libpod.script(*INSPECT, answer)
    found = await runtime.wait(StartedSandbox(container_id=CID, conmon_pid=0, init_pid=0))
    assert found == SandboxExit(exit_code=None)


async def test_closing_does_not_end_what_is_waited_for(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path
) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("running", ConmonPid=conmon.pid))
        waiting = asyncio.ensure_future(
            runtime.wait(StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=1))
        )
        for _ in range(10):
            await asyncio.sleep(0)
        await runtime.aclose()
        with pytest.raises(RuntimeUnavailableError):
            await waiting
    assert libpod.seen(*KILL) == []


async def test_attach_to_a_running_container(libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("running", ConmonPid=conmon.pid, Pid=4242))
        found = await runtime.attach(CID)
        assert found == StartedSandbox(container_id=CID, conmon_pid=conmon.pid, init_pid=4242)


async def test_attach_to_one_that_has_ended(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*INSPECT, state("exited", ExitCode=9))
    assert await runtime.attach(CID) == SandboxExit(exit_code=9)


async def test_attach_to_one_that_is_gone(runtime: PodmanRuntime) -> None:
    with pytest.raises(SandboxGoneError):
        await runtime.attach(CID)


async def test_attach_to_one_without_a_conmon(libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path) -> None:
    with FakeConmon(OTHER, tmp_path) as somebody:  # its pid was reused
        libpod.script(*INSPECT, state("running", ConmonPid=somebody.pid, Pid=0))
        libpod.script(*KILL, Answer(204))
        assert await runtime.attach(CID) == SandboxExit(exit_code=None)
    assert len(libpod.seen(*KILL)) == 1


# --- signal ---


async def test_a_signal_is_sent_by_name(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*KILL, Answer(204))
    await runtime.signal(CID, "INT")
    assert [r.query for r in libpod.seen(*KILL)] == [{"signal": "INT"}]


async def test_a_signal_to_what_is_gone_or_has_ended_does_nothing(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    await runtime.signal(CID, "TERM")
    libpod.script(*KILL, Answer.error(409, "can only kill running containers: container state improper"))
    libpod.script(*INSPECT, state("exited"))
    await runtime.signal(CID, "TERM")
    assert len(libpod.seen(*KILL)) == 2


async def test_a_signal_that_a_running_container_did_not_get_is_sent_again(
    libpod: FakeLibpod, runtime: PodmanRuntime
) -> None:
    libpod.script(*KILL, BUSY, Answer(204))
    libpod.script(*INSPECT, state("running"))
    await runtime.signal(CID, "KILL")
    assert len(libpod.seen(*KILL)) == 2


# --- remove ---


async def test_remove_kills_and_sees_that_it_is_gone(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*INSPECT, state("running"))
    libpod.script(*DELETE, Answer(200, []))
    await runtime.remove(CID)
    assert [r.query for r in libpod.seen(*DELETE)] == [{"force": "true", "timeout": "0", "v": "true"}]
    assert len(libpod.seen("GET", f"/containers/{CID}/exists")) == 1


async def test_remove_of_what_is_gone_is_fine(runtime: PodmanRuntime) -> None:
    await runtime.remove(CID)


async def test_remove_is_tried_again_until_it_is_gone(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    improper = "cannot remove container: sending SIGKILL: container state improper: stopped"
    libpod.script(*INSPECT, state("running"))
    libpod.script(*DELETE, Answer.error(500, improper), LOST, Answer(200, []), Answer(200, []))
    libpod.script("GET", f"/containers/{CID}/exists", Answer(204), GONE)
    await runtime.remove(CID)
    assert len(libpod.seen(*DELETE)) == 4


async def test_remove_says_when_it_cannot(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*DELETE, Answer.error(500, "device or resource busy"))
    with pytest.raises(SandboxError, match="busy"):
        await runtime.remove(CID)


async def test_remove_waits_for_the_end_of_conmon(libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path) -> None:
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("exited", ConmonPid=conmon.pid))

        def delete(request: Request) -> Answer:
            conmon.end()
            return Answer(200, [])

        libpod.script(*DELETE, delete)
        await runtime.remove(CID)
        assert not Path(f"/proc/{conmon.pid}").exists()


async def test_remove_kills_a_conmon_that_stays(
    libpod: FakeLibpod, runtime: PodmanRuntime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtime_module, "PROCESS_SECONDS", 0.05)
    with FakeConmon(CID, tmp_path) as conmon:
        libpod.script(*INSPECT, state("running", ConmonPid=conmon.pid))
        libpod.script(*DELETE, Answer(200, []))
        await runtime.remove(CID)
        assert conmon.returncode() == -9


async def test_a_cancelled_remove_goes_on(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    answered = threading.Event()
    libpod.script(*INSPECT, state("running"))
    libpod.script(*DELETE, Answer(200, [], wait=answered))
    removing = asyncio.ensure_future(runtime.remove(CID))
    await asyncio.to_thread(libpod.wait_for, *DELETE)
    removing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await removing
    answered.set()
    await asyncio.to_thread(libpod.wait_for, "GET", f"/containers/{CID}/exists")


# --- find and image ---


async def test_find_asks_for_this_instance_only(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    labels = {"podmentor.run_id": "run-1", "podmentor.sandbox_id": "sb-1"}
    states = ["created", "configured", "running", "stopping", "stopped", "exited", "removing"]
    libpod.script(*LIST, Answer(200, [{"Id": CID, "Labels": labels, "State": s} for s in states]))
    found = await runtime.find()
    assert [f.state for f in found] == ["created", "created", "running", "running", "exited", "exited", "unknown"]
    assert found[0] == FoundSandbox(container_id=CID, run_id="run-1", sandbox_id="sb-1", state="created")
    (request,) = libpod.seen(*LIST)
    assert request.query == {"all": "true", "filters": '{"label": ["podmentor.instance=inst-1"]}'}


async def test_find_without_containers(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script(*LIST, Answer(200, None))
    assert await runtime.find() == []


IMAGE_PATH = "/images/localhost/podmentor/claude-code:current/json"
IMAGE = {
    "Id": "ef" * 32,
    "RepoTags": ["localhost/podmentor/claude-code:current", "localhost/podmentor/claude-code:2.1.197-abc"],
    "Labels": {"podmentor.cli_version": "2.1.197", "podmentor.recipe": "abc"},
    "Size": 1234,
    "Created": "2026-01-01T00:00:00Z",
}


async def test_the_current_image(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    libpod.script("GET", IMAGE_PATH, Answer(200, IMAGE))
    image = await runtime.image("claude-code")
    assert (image.image_id, image.tag) == ("ef" * 32, "localhost/podmentor/claude-code:2.1.197-abc")
    assert (image.backend, image.cli_version, image.recipe) == ("claude-code", "2.1.197", "abc")
    assert (image.size_bytes, image.created) == (1234, "2026-01-01T00:00:00Z")


NO_IMAGE = Answer.error(
    404,
    "failed to find image localhost/podmentor/claude-code:current: localhost/podmentor/claude-code:current: image not known",
)


@pytest.mark.parametrize("answer", [NO_IMAGE, Answer(200, {**IMAGE, "Labels": {}})])
async def test_a_missing_image_names_the_command_that_builds_it(
    libpod: FakeLibpod, runtime: PodmanRuntime, answer: Answer
) -> None:
    libpod.script("GET", IMAGE_PATH, answer)
    with pytest.raises(ImageMissingError, match="podmentor images build claude-code"):
        await runtime.image("claude-code")


async def test_the_name_of_a_backend_cannot_be_a_path(libpod: FakeLibpod, runtime: PodmanRuntime) -> None:
    with pytest.raises(ImageMissingError):
        await runtime.image("../../containers/json?all=true")
    assert len(libpod.requests) == len(libpod.seen("GET", "/_ping") + libpod.seen("GET", "/info"))


async def test_another_image_than_the_current_one(libpod: FakeLibpod, make_runtime: MakeRuntime) -> None:
    runtime = make_runtime(image_tags={"claude-code": "2.2.0-def", "codex": "../../x"})
    await runtime.start()
    libpod.script("GET", "/images/localhost/podmentor/claude-code:2.2.0-def/json", Answer(200, IMAGE))
    assert (await runtime.image("claude-code")).image_id == "ef" * 32
    with pytest.raises(ImageMissingError, match="is not the tag of an image"):
        await runtime.image("codex")
    gone = make_runtime(image_tags={"claude-code": "9.9.9-abc"})
    await gone.start()
    libpod.script("GET", "/images/localhost/podmentor/claude-code:9.9.9-abc/json", NO_IMAGE)
    with pytest.raises(ImageMissingError, match=r"no image with the tag 9\.9\.9-abc: podmentor images list"):
        await gone.image("claude-code")


# --- delete_tree ---


async def test_delete_tree_keeps_to_its_roots(runtime: PodmanRuntime, tmp_path: Path) -> None:
    tree = tmp_path / "state" / "subagents" / "x"
    tree.mkdir(parents=True)
    await runtime.delete_tree(tree)
    assert not tree.exists()


async def test_half_a_container_that_a_killed_podman_left_in_its_storage_is_removed(
    libpod: FakeLibpod, runtime: PodmanRuntime
) -> None:
    """Nobody else's, and no whole container."""
    rows = [
        {"Id": "1" * 64, "Names": ["podmentor-s1"], "State": "storage"},
        {"Id": "2" * 64, "Names": ["podmentor-s1-2"], "State": "running", "Labels": {"a": "b"}},
        {"Id": "3" * 64, "Names": ["podmentor-s2"], "State": "storage"},
    ]
    libpod.script(*LIST, lambda r: Answer(200, rows if "external" in r.query else []))
    libpod.script("DELETE", "/containers/podmentor-s1", Answer(200, []))
    await runtime.remove_run("run-1", sandbox_id="s1")
    assert [r.path for r in libpod.requests if r.method == "DELETE"] == ["/containers/podmentor-s1"]
