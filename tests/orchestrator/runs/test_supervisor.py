"""The life of runs over a fake runtime: every ending, and nothing left behind."""

from __future__ import annotations

import asyncio
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.adapter import Resumed, StreamParser
from orchestrator.contract.runs import LimitsRequest, RunFilter, RunRecord
from orchestrator.errors import InvalidRequestError, QueueFullError, SandboxError, ShuttingDownError, StorageError
from orchestrator.events import AgentEvent
from orchestrator.runs.limits import monitor
from tests.fakes.adapter import EchoAdapter, EchoParser
from tests.fakes.credentials import FakeCredentials
from tests.orchestrator.runs.harness import USER, Service, World, answer, shape

WHOLE = ["status:queued", "status:starting", "status:running", "session_started", "message_delta", "completed"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def assert_nothing_left(world: World) -> None:
    assert world.runtime.containers == {}
    assert world.relay.grants == {}
    assert list(world.paths.runtime_dir.iterdir()) == []


async def test_a_run_from_query_to_answer(world: World) -> None:
    async with world.service() as service:
        run = await service.submit("say hi", metadata={"ticket": 7})
        container = await service.container()
        assert (container.spec.control_dir / "prompt").read_text() == "say hi"
        grant = world.relay.grants[run.run_id]
        answer(container, "hello")
        record = await service.finished(run.run_id)
        assert (record.outcome, record.final_text, record.exit_code) == ("completed", "hello", 0)
        assert record.usage["tokens"] == {"input": 1, "output": 2}
        assert record.metadata == {"ticket": 7}
        assert record.envelope() == (
            f"[Subagent ID: {run.subagent_id} - Use this ID to continue this conversation] hello"
        )
        events = await service.events(run.run_id)
        assert shape(events) == WHOLE
        assert [event.seq for event in events] == list(range(1, len(WHOLE) + 1))
        assert {event.source for event in events if event.kind == "status"} == {"orchestrator"}
        assert_nothing_left(world)
        assert grant.api_key == "real-key"
        assert "real-key" not in repr(container.spec.env) + repr(container.spec.argv)
        assert container.spec.env["ECHO_KEY"]
        assert container.spec.env["ECHO_URL"] == "http://127.0.0.1:8080"


async def test_the_next_run_of_a_subagent_resumes_its_session(world: World) -> None:
    async with world.service() as service:
        first = await service.submit()
        container = await service.container()
        answer(container, session="native-1")
        await service.finished(first.run_id)
        second = await service.submit(subagent_id=first.subagent_id)
        again = await service.container()
        assert again.spec.argv[-2:] == ["--resume", "native-1"]
        assert again.spec.home == container.spec.home
        assert again.spec.workspace == container.spec.workspace
        answer(again, session="native-1")
        await service.finished(second.run_id)
        [subagent] = await service.runs.list_subagents(user_id=USER)
        assert subagent.backend_session_id == "native-1"
        assert subagent.run_ids == (first.run_id, second.run_id)


async def test_runs_and_subagents_are_found_by_the_beginning_of_their_id(world: World) -> None:
    async with world.service() as service:
        runs = [await service.submit() for _ in range(3)]
        for run in runs:
            for length in (8, 32):
                found = await service.runs.list_runs(RunFilter(user_id=USER, prefix=run.run_id[:length]))
                assert [one.run_id for one in found] == [run.run_id]
                [subagent] = await service.runs.list_subagents(user_id=USER, prefix=run.subagent_id[:length])
                assert subagent.subagent_id == run.subagent_id
        for nothing in ("_", "%", runs[0].run_id + "0", runs[0].run_id[1:]):
            assert await service.runs.list_runs(RunFilter(user_id=USER, prefix=nothing)) == []
            assert await service.runs.list_subagents(user_id=USER, prefix=nothing) == []
        assert await service.runs.list_runs(RunFilter(user_id="bob", prefix=runs[0].run_id[:8])) == []
        for run in runs:
            await service.runs.cancel(run.run_id, user_id=USER)


async def test_runs_are_listed_by_outcome_and_time(world: World) -> None:
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        await service.runs.cancel(first.run_id, user_id=USER)
        await service.finished(first.run_id)

        async def found(**wanted: Any) -> list[str]:
            return [run.run_id for run in await service.runs.list_runs(RunFilter(user_id=USER, **wanted))]

        assert await found(outcome="cancelled") == [first.run_id]
        assert await found(outcome="completed") == []
        assert await found(since=second.created_at) == [second.run_id]
        assert await found(until=second.created_at) == [first.run_id]
        assert await found(since=first.created_at, until="9999") == [second.run_id, first.run_id]
        await service.runs.cancel(second.run_id, user_id=USER)


async def test_a_parser_is_told_which_conversation_goes_on_and_what_it_has_used(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[Resumed | None] = []

    def parser_for(adapter: EchoAdapter, resumed: Resumed | None) -> StreamParser:
        reported.append(resumed)
        return adapter.parser()

    monkeypatch.setattr(EchoAdapter, "parser_for", parser_for)
    async with world.service() as service:
        other = await service.submit()
        answer(await service.container(), session="another")
        await service.finished(other.run_id)
        subagent_id = None
        for _ in range(3):
            run = await service.submit(subagent_id=subagent_id)
            subagent_id = run.subagent_id
            answer(await service.container(), session="native")
            await service.finished(run.run_id)
        failing = await service.submit(subagent_id=subagent_id)
        (await service.container()).exit(1)
        await service.finished(failing.run_id)
        last = await service.submit(subagent_id=subagent_id)
        container = await service.container()
    async with world.service() as service:  # the restarted service tells it the same
        answer(container, session="native")
        await service.finished(last.run_id)
    tokens = [resumed.tokens for resumed in reported if resumed is not None]
    assert reported[:2] == [None, None]
    assert {resumed.session_id for resumed in reported if resumed is not None} == {"native"}
    assert [(counts.input, counts.output, counts.cache_read) for counts in tokens] == [
        (1, 2, None),
        (2, 4, None),
        (3, 6, None),
        (3, 6, None),
        (3, 6, None),
    ]


async def test_words_for_the_gateway_come_last(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EchoAdapter, "gateway_argv", lambda _, base_url: ["--at", base_url])
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert container.spec.argv == [
            "podmentor-entry",
            "echo-cli",
            "--cwd",
            "/workspace",
            "--at",
            "http://127.0.0.1:8080",
        ]
        answer(container)
        await service.finished(run.run_id)


class Choosing(EchoAdapter):
    def model_argv(self, model: str) -> list[str]:
        return ["--model", model]

    def model_env(self, model: str) -> dict[str, str]:
        return {"ECHO_MODEL": model}


@pytest.mark.parametrize(
    ("asked", "configured", "reported"), [("big", "small", "big"), (None, "small", "small"), (None, None, None)]
)
async def test_the_model_is_the_requests_else_the_configured_one(
    tmp_path: Path, asked: str | None, configured: str | None, reported: str | None
) -> None:
    backends = {"echo": {"model": configured}}
    world = World(tmp_path, external_agent={"backends": backends})
    async with world.service() as service:
        service.adapters["echo"] = Choosing()
        run = await service.submit(model=asked)
        container = await service.container()
        assert container.spec.argv[4:] == ([] if reported is None else ["--model", reported])
        assert container.spec.env.get("ECHO_MODEL", "theirs") == (reported or "theirs")
        answer(container)
        assert (await service.finished(run.run_id)).model == reported


async def test_an_adapter_that_cannot_choose_a_model_refuses_one(world: World) -> None:
    async with world.service() as service:
        with pytest.raises(InvalidRequestError, match="the adapter of echo cannot choose a model"):
            await service.submit(model="big")


async def test_a_session_in_which_nothing_was_said_is_not_resumed(world: World) -> None:
    async with world.service() as service:
        first = await service.submit()
        container = await service.container()
        container.say(session="dead")
        container.say(fail="no")
        container.exit(1)
        await service.finished(first.run_id)
        await service.submit(subagent_id=first.subagent_id)
        assert "--resume" not in (await service.container()).spec.argv


async def test_without_a_credential_nothing_is_spawned(world: World) -> None:
    world.credentials = FakeCredentials(api_key=None)
    async with world.service() as service:
        run = await service.submit()
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "auth_required"
        assert "api_key" in record.error["message"]
        assert world.runtime.created == []
        assert_nothing_left(world)


async def test_a_missing_image_and_a_failing_podman_end_the_run_with_the_reason(world: World) -> None:
    async with world.service() as service:
        world.runtime.has_image = False
        record = await service.finished((await service.submit()).run_id)
        assert record.error is not None
        assert record.error["reason"] == "image_missing"
        assert "podmentor images build" in record.error["message"]
        world.runtime.has_image = True
        world.runtime.fail_create = SandboxError("no space left on device")
        record = await service.finished((await service.submit()).run_id)
        assert record.error is not None
        assert record.error["reason"] == "sandbox_failed"
        assert_nothing_left(world)


@pytest.mark.parametrize("ignores_int", [False, True])
async def test_cancel_while_it_runs(world: World, ignores_int: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.runs.teardown.teardown.INTERRUPT_SECONDS", 0.05)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.ignores_int = ignores_int
        container.say(session="s")
        container.say(text="half")
        await service.until(run.run_id, "message_delta")
        await service.runs.cancel(run.run_id, user_id=USER)
        record = await service.finished(run.run_id)
        assert record.outcome == "cancelled"
        assert container.signals == (["INT", "KILL"] if ignores_int else ["INT"])
        assert shape(await service.events(run.run_id))[-2:] == ["message_delta", "error"]
        again = await service.runs.cancel(run.run_id, user_id=USER)
        assert again.outcome == "cancelled"
        assert_nothing_left(world)


async def test_cancel_while_it_waits(world: World) -> None:
    world.config = world.config.model_copy(update={"runs": world.config.runs.model_copy(update={"max_concurrent": 1})})
    async with world.service() as service:
        first = await service.submit()
        container = await service.container()
        second, third = await service.submit(), await service.submit()
        await service.until(third.run_id, "status", phase="queued", position=1)
        assert (await service.runs.get(third.run_id, user_id=USER)).queue_position == 1
        await service.runs.cancel(second.run_id, user_id=USER)
        record = await service.finished(second.run_id)
        assert record.outcome == "cancelled"
        assert shape(await service.events(second.run_id)) == ["status:queued", "error"]
        await service.until(third.run_id, "status", phase="queued", position=0)
        answer(container)
        await service.finished(first.run_id)
        answer(await service.container())
        await service.finished(third.run_id)


@pytest.mark.parametrize("place", ["store", "audit", "enqueue"])
async def test_a_run_whose_caller_goes_away_while_it_is_accepted_can_be_cancelled(
    world: World, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    async with world.service() as service:
        reached, go_on = asyncio.Event(), asyncio.Event()
        owner, name = {
            "store": (service.runs._store, "insert_run"),
            "audit": (service.runs._audit, "note"),
            "enqueue": (service.supervisor, "_append_position"),
        }[place]
        real = getattr(owner, name)

        async def held(*args: Any, **options: Any) -> Any:
            first, stored = not reached.is_set(), await real(*args, **options)
            reached.set()
            if first:
                await go_on.wait()
            return stored

        monkeypatch.setattr(owner, name, held)
        submitting = asyncio.create_task(service.submit())
        await reached.wait()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        [run] = await service.runs.list_runs(RunFilter(user_id=USER))
        assert (await service.runs.cancel(run.run_id, user_id=USER)).state == "queued"
        go_on.set()
        assert (await service.finished(run.run_id)).outcome == "cancelled"
        assert_nothing_left(world)


async def test_a_run_whose_caller_went_away_is_done(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.service() as service:
        reached, real = asyncio.Event(), service.supervisor._append_position

        async def held(*args: Any) -> None:
            reached.set()
            await asyncio.sleep(0)
            await real(*args)

        monkeypatch.setattr(service.supervisor, "_append_position", held)
        submitting = asyncio.create_task(service.submit())
        await reached.wait()
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        answer(await service.container())
        [run] = await service.runs.list_runs(RunFilter(user_id=USER))
        assert (await service.finished(run.run_id)).outcome == "completed"


async def test_cancel_between_stored_and_queued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not wait for its turn to end."""
    world = World(tmp_path, runs={"max_concurrent": 1})
    async with world.service() as service:
        await service.submit()
        await service.container()
        reached, go_on = asyncio.Event(), asyncio.Event()

        async def slow(_event: str, **_facts: object) -> None:
            reached.set()
            await go_on.wait()

        monkeypatch.setattr(world.audit, "note", slow)
        submitting = asyncio.create_task(service.submit())
        await reached.wait()
        monkeypatch.undo()
        run, _ = await service.runs.list_runs(RunFilter(user_id=USER))
        await service.runs.cancel(run.run_id, user_id=USER)
        go_on.set()
        await submitting
        assert (await service.finished(run.run_id)).outcome == "cancelled"
        assert service.supervisor.counts() == {"queued": 0, "running": 1}


async def test_cancel_while_the_container_is_being_made(world: World) -> None:
    world.runtime.hold_create = asyncio.Event()
    async with world.service() as service:
        run = await service.submit()
        await service.until(run.run_id, "status", phase="starting")
        await service.runs.cancel(run.run_id, user_id=USER)
        record = await service.finished(run.run_id)
        assert record.outcome == "cancelled"
        assert_nothing_left(world)


async def test_the_clocks(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(wall_clock_seconds=0.3))
        (await service.container()).say(session="s")
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "timeout"
        assert record.error["details"]["limit_seconds"] == 0.3
        run = await service.submit(limits=LimitsRequest(idle_seconds=0.2))
        (await service.container()).say(session="s")
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "idle_timeout"
        assert_nothing_left(world)


async def test_a_cli_that_prints_nothing_meets_the_start_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, external_agent={"backends": {"echo": {}}, "default_limits": {"start_seconds": 0.2}})
    async with world.service() as service:
        run = await service.submit()
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "start_timeout"
        assert_nothing_left(world)


async def test_a_cli_that_answers_and_does_not_exit_has_completed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "LINGER_SECONDS", 0.1)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        container.say(done="all done")
        record = await service.finished(run.run_id)
        assert (record.outcome, record.final_text) == ("completed", "all done")
        assert container.signals == ["KILL"]
        assert_nothing_left(world)


async def test_too_much_output_ends_the_run_and_keeps_what_was_printed(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=10_000))
        container = await service.container()
        for _ in range(200):
            container.say(text="x" * 100)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "output_exceeded"
        assert record.error["details"]["limit_bytes"] == 10_000
        kinds = [event.kind for event in await service.events(run.run_id)]
        assert kinds.count("message_delta") == 200
        assert_nothing_left(world)


async def test_a_crash_of_the_cli_is_a_typed_error_with_its_last_words(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        container.write(b"segmentation fault", "stderr")
        container.exit(139)
        record = await service.finished(run.run_id)
        assert record.outcome == "failed"
        assert record.exit_code == 139
        assert record.error is not None
        assert "segmentation fault" in record.error["details"]["stderr"]
        assert "status:diagnostic" in shape(await service.events(run.run_id))


async def test_an_oom_kill_is_memory_exceeded(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        container.exit(137, oom_killed=True)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "memory_exceeded"
        assert record.error["details"]["enforcement"] == "cgroup"


async def test_the_queue_has_an_end(tmp_path: Path) -> None:
    world = World(tmp_path, runs={"max_concurrent": 1, "max_queued": 1})
    async with world.service() as service:
        await service.submit()
        await service.container()
        await service.submit()
        with pytest.raises(QueueFullError):
            await service.submit()


async def test_the_queue_s_end_holds_for_runs_that_come_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, runs={"max_concurrent": 1, "max_queued": 5})
    async with world.service() as service:
        await service.submit()
        await service.container()
        answers = await asyncio.gather(*(service.submit(f"task {n}") for n in range(30)), return_exceptions=True)
        assert sum(isinstance(one, RunRecord) for one in answers) == 5
        assert sum(isinstance(one, QueueFullError) for one in answers) == 25
        assert service.supervisor.counts() == {"queued": 5, "running": 1}


async def test_a_place_in_the_queue_comes_back_when_the_run_is_not_accepted(tmp_path: Path) -> None:
    world = World(tmp_path, runs={"max_queued": 1})
    async with world.service() as service:
        with pytest.raises(InvalidRequestError):
            await service.submit(" ")
        given_up = asyncio.create_task(service.submit())
        await asyncio.sleep(0)
        with pytest.raises(QueueFullError):
            await service.submit()
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        await service.submit()


async def test_ten_at_once_all_end_well(world: World) -> None:
    world.runtime.on_start = answer
    async with world.service() as service:
        runs = [await service.submit(f"task {i}") for i in range(10)]
        records = [await service.finished(run.run_id) for run in runs]
        assert {record.outcome for record in records} == {"completed"}
        for run in runs:
            assert shape(await service.events(run.run_id))[-4:] == WHOLE[-4:]
        assert_nothing_left(world)


async def test_a_stopping_service_takes_no_runs(world: World) -> None:
    async with world.service() as service:
        await service.supervisor.stop(drain=False)
        with pytest.raises(ShuttingDownError):
            await service.submit()


async def test_a_full_disk_delays_events_and_loses_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        await service.until(run.run_id, "session_started")
        append, refused = service.journal.append, asyncio.Event()

        async def full(*args: Any, **kwargs: Any) -> None:
            if not refused.is_set():
                refused.set()
                raise StorageError("the database cannot be used: database or disk is full")
            await append(*args, **kwargs)

        monkeypatch.setattr(service.journal, "append", full)
        monkeypatch.setattr("orchestrator.runs.stream.journal.FIRST_PAUSE", 0.01)
        container.say(text="a")
        await asyncio.wait_for(refused.wait(), 10)
        container.say(done="a")
        container.exit(0)
        record = await service.finished(run.run_id)
        assert record.outcome == "completed"
        assert shape(await service.events(run.run_id)) == WHOLE


@pytest.mark.parametrize("method", ["feed", "close"])
async def test_a_bug_in_a_parser_ends_the_run_and_its_sandbox(
    world: World, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def crash(self: EchoParser, *args: object) -> list[AgentEvent]:
        raise ZeroDivisionError

    monkeypatch.setattr(EchoParser, method, crash)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        if method == "close":
            container.exit(0)
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert record.error["reason"] == "sandbox_failed"
        assert "ZeroDivision" not in str(record.error)
        assert_nothing_left(world)


async def test_what_finished_runs_leave_behind_is_told(world: World) -> None:
    async with world.service() as service:
        record = await service.submit()
        container = await service.container()
        assert await service.supervisor.leftovers() == [], "what a run uses is no leftover"
        answer(container)
        await service.finished(record.run_id)
        assert await service.supervisor.leftovers() == []
        stray = "0" * 32
        world.paths.control_dir(stray).mkdir()
        await world.runtime.create(replace(container.spec, run_id=stray))
        world.relay.grants[stray] = None  # type: ignore[assignment]  # only the name counts
        found = await service.supervisor.leftovers()
        assert found == [f"{what} of {stray}" for what in ("container", "control directory", "gateway")]


class FullDisk:
    """The database of a service refuses to be written, for as long as it is said to be full."""

    def __init__(self, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
        self._call = service.journal._database.call
        self.full = False
        self.refused = asyncio.Event()
        monkeypatch.setattr(service.journal._database, "call", self.call)
        monkeypatch.setattr("orchestrator.runs.stream.journal.FIRST_PAUSE", 0.01)

    async def call(self, work: Any, **options: Any) -> Any:
        def refusing(connection: sqlite3.Connection) -> Any:
            before = connection.total_changes
            result = work(connection)
            if self.full and connection.total_changes != before:
                raise sqlite3.OperationalError("database or disk is full")
            return result

        try:
            return await self._call(refusing, **options)
        except StorageError:
            self.refused.set()
            raise


async def test_a_disk_that_is_full_at_the_end_delays_the_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async with world.service() as service:
        disk = FullDisk(service, monkeypatch)
        run = await service.submit()
        container = await service.container()
        container.say(session="s")
        container.say(text="a")
        await service.until(run.run_id, "message_delta")
        disk.full = True
        container.say(done="a")
        container.exit(0)
        await asyncio.wait_for(disk.refused.wait(), 10)
        assert (await service.runs.get(run.run_id, user_id=USER)).state == "running"
        disk.full = False
        assert (await service.finished(run.run_id)).outcome == "completed"
        assert shape(await service.events(run.run_id)) == WHOLE
        [conversation] = await service.runs.list_subagents(user_id=USER)
        assert conversation.backend_session_id == "s"
    assert_nothing_left(world)


async def test_a_run_can_be_cancelled_although_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, runs={"max_concurrent": 1})
    async with world.service() as service:
        disk = FullDisk(service, monkeypatch)
        running, waiting = await service.submit(), await service.submit()
        container = await service.container()
        monkeypatch.setattr("orchestrator.runs.supervisor.ENDING_SECONDS", 0.01)
        disk.full = True
        await service.runs.cancel(waiting.run_id, user_id=USER)
        await service.runs.cancel(running.run_id, user_id=USER)
        await asyncio.wait_for(container.ended.wait(), 10)
        disk.full = False
        for run in (running, waiting):
            assert (await service.finished(run.run_id)).outcome == "cancelled"
    assert_nothing_left(world)


async def test_a_run_whose_place_could_not_be_noted_does_not_wait_for_a_restart(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.service() as service:
        append = service.journal.append

        async def full(run_id: str, entries: Any, *args: Any, **kwargs: Any) -> None:
            if entries[0].event.data().get("phase") == "queued":
                raise StorageError("the disk is full")
            await append(run_id, entries, *args, **kwargs)

        monkeypatch.setattr(service.journal, "append", full)
        run = await service.submit()
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"


async def test_a_run_that_cannot_be_read_when_its_turn_comes_ends(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.service() as service:
        read, refused = service.store.run, asyncio.Event()

        async def locked(run_id: str, **options: Any) -> Any:
            task = asyncio.current_task()
            if task is not None and task.get_name().startswith("supervisor:run") and not refused.is_set():
                refused.set()
                raise StorageError("another process keeps the database locked; end it")
            return await read(run_id, **options)

        monkeypatch.setattr(service.store, "run", locked)
        run = await service.submit()
        record = await service.finished(run.run_id)
        assert record.error is not None
        assert "locked" in record.error["message"]


async def test_a_runs_row_is_read_once_when_its_turn_comes_and_carried_from_there(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers: list[str] = []
    async with world.service() as service:
        read = service.store.run

        async def counted(run_id: str, **options: Any) -> Any:
            task = asyncio.current_task()
            readers.append("" if task is None else task.get_name())
            return await read(run_id, **options)

        monkeypatch.setattr(service.store, "run", counted)
        run = await service.submit()
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"
    assert [name for name in readers if "run" in name.partition(":")[2] or name.startswith("run ")] == [
        f"supervisor:run {run.run_id[:8]}"
    ]
