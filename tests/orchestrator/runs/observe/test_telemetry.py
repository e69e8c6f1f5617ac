"""What operators get: numbers once, whatever is read again; a trace per run; lines of the audit log."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.egress import EgressReport
from orchestrator.contract.gateway import RelayTotals, Traffic
from orchestrator.contract.runs import LimitsRequest
from orchestrator.errors import StorageError
from tests.orchestrator.runs.harness import USER, World, answer, shape
from tests.orchestrator.runs.test_subscription import accounts_of, prime, world_at

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


# --- numbers --------------------------------------------------------------------------------------------------------


async def test_a_good_run_in_numbers(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        answer(await service.container())
        record = await service.finished(run.run_id)
        events = await service.events(run.run_id)
    numbers = world.metrics
    assert numbers.of("runs_ended") == {"runs_ended_total{backend=echo,outcome=completed,reason=}": 1}
    assert numbers.of("tokens") == {
        f"tokens_total{{backend=echo,kind={kind}}}": count for kind, count in record.usage["tokens"].items() if count
    }
    assert numbers.of("output_bytes") == {"output_bytes_total{backend=echo}": record.usage["output_bytes"]}
    assert sum(numbers.of("events_total").values()) == len(events)
    assert numbers.of("events_total{kind=completed") == {"events_total{kind=completed,source=agent}": 1}
    assert {name: len(values) for name, values in numbers.measured.items() if "journal" not in name} == {
        "queue_wait_seconds{backend=echo}": 1,
        "start_seconds{backend=echo}": 1,
        "run_seconds{backend=echo,outcome=completed}": 1,
    }
    assert numbers.measured["journal_append_seconds"]


async def test_what_a_second_service_reads_again_counts_once(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(session="s1")
        container.say(text="before")
        await service.until(run.run_id, "message_delta")
    async with world.service() as service:
        container.say(text="after")
        container.say(done="x")
        container.exit(0)
        await service.finished(run.run_id)
        events = await service.events(run.run_id)
    assert sum(world.metrics.of("events_total").values()) == len(events)
    assert world.metrics.of("events_total{kind=message_delta") == {"events_total{kind=message_delta,source=agent}": 2}
    assert len(world.metrics.measured["start_seconds{backend=echo}"]) == 1
    assert world.metrics.of("runs_ended") == {"runs_ended_total{backend=echo,outcome=completed,reason=}": 1}


async def test_a_run_that_ends_in_the_line_counts_too(world: World) -> None:
    world.config = world.config.model_copy(update={"runs": world.config.runs.model_copy(update={"max_concurrent": 1})})
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        container = await service.container()
        await service.census.look()
        assert world.metrics.of("runs{") == {
            "runs{state=queued}": 1,
            "runs{state=starting}": 1,
            "runs{state=running}": 0,
        }
        await service.runs.cancel(second.run_id, user_id=USER, actor="user:alice")
        answer(container)
        await service.finished(first.run_id)
    assert world.metrics.of("runs_ended_total{backend=echo,outcome=cancelled") == {
        "runs_ended_total{backend=echo,outcome=cancelled,reason=cancelled}": 1
    }
    assert "run_seconds{backend=echo,outcome=cancelled}" not in world.metrics.measured
    [ended] = [line for line in world.audit.of("run.ended") if line["run_id"] == second.run_id]
    assert (ended["outcome"], ended["duration_ms"], ended["credential_source"]) == ("cancelled", None, None)


async def test_reports_of_the_proxy_are_counted_also_without_their_run(world: World) -> None:
    async with world.service():
        report = EgressReport(run_id="gone", verdict="denied", host="evil.example", port=443, count=3)
        await world.relay.report(report)
        await world.relay.report(
            EgressReport(run_id="gone", verdict="allowed", host="a", port=1, bytes_up=5, bytes_down=6)
        )
    assert world.metrics.of("egress") == {
        "egress_attempts_total{verdict=denied}": 3,
        "egress_attempts_total{verdict=allowed}": 1,
        "egress_bytes_total{direction=up}": 5,
        "egress_bytes_total{direction=down}": 6,
    }


async def test_the_relays_numbers_are_absent_when_nobody_knows_them(world: World) -> None:
    traffic = Traffic(open=2, connections=3, requests=4, refusals=5, failures=6, bytes_up=7, bytes_down=8)
    async with world.service() as service:
        world.relay.counts = RelayTotals(gateway=traffic, egress=traffic)
        await service.census.look()
        assert world.metrics.values["ready"] == world.metrics.values["relay_up"] == 1
        assert world.metrics.values["relay_bytes_total{via=gateway,direction=down}"] == 8
        assert world.metrics.values["relay_open_connections{via=proxy}"] == 2
        world.relay.counts = None
        await service.census.look()
    assert world.metrics.of("relay") == {"relay_up": 0}


async def test_a_relay_that_does_not_answer_is_down_and_holds_up_nothing_else(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.runs.observe.telemetry.RELAY_SECONDS", 0.01)

    async def never() -> None:
        await asyncio.Event().wait()

    async with world.service() as service:
        monkeypatch.setattr(world.relay, "totals", never)
        await service.census.look()
    assert world.metrics.values["relay_up"] == 0
    assert world.metrics.values["runs{state=queued}"] == 0


# --- audit log ------------------------------------------------------------------------------------------------------


async def test_a_run_from_its_submission_to_its_end(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(actor="service:codumentor")
        answer(await service.container())
        await service.finished(run.run_id)
    about = {"user_id": USER, "run_id": run.run_id, "backend": "echo"}
    run_and_tier = {**about, "subagent_id": run.subagent_id, "tier": 0}
    submitted, used, started, ended = world.audit.events
    assert submitted == {
        "event": "run.submitted",
        "actor": "service:codumentor",
        **run_and_tier,
        "workspace": "overlay",
        "repo": None,
    }
    assert used == {"event": "credential.used", **about, "credential_source": "technical_user"}
    assert started.pop("image_id")
    assert started.pop("cli_version")
    assert started == {"event": "run.started", **run_and_tier, "credential_source": "technical_user"}
    assert ended.pop("duration_ms") >= 0
    assert ended == {
        "event": "run.ended",
        **run_and_tier,
        "credential_source": "technical_user",
        "outcome": "completed",
        "reason": None,
        "exit_code": 0,
    }


async def test_neither_prompt_nor_answer_is_a_fact(world: World) -> None:
    async with world.service() as service:
        run = await service.submit("PROMPT-WORD")
        answer(await service.container(), "ANSWER-WORD")
        await service.finished(run.run_id)
    assert "WORD" not in str(world.audit.events) + str(world.traces.traces)


async def test_a_limit_is_a_line_of_its_own_before_the_end(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(limits=LimitsRequest(output_max_bytes=2000))
        container = await service.container()
        container.say(text="x" * 4000)
        record = await service.finished(run.run_id)
    assert record.error is not None
    hit, ended = world.audit.events[-2:]
    used = record.error["details"]["used_bytes"]
    assert hit == {
        "event": "limit.hit",
        "user_id": USER,
        "run_id": run.run_id,
        "backend": "echo",
        "limit": "output_exceeded",
        "allowed": 2000,
        "used": used,
    }
    assert (ended["event"], ended["reason"]) == ("run.ended", "output_exceeded")
    assert world.metrics.of("limit_hits") == {"limit_hits_total{limit=output_exceeded}": 1}


async def test_a_cancel_is_noted_once_with_who_wanted_it(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        await service.container()
        for _ in range(2):
            await service.runs.cancel(run.run_id, user_id=None, actor="admin:root")
        await service.finished(run.run_id)
    [cancel] = world.audit.of("run.cancel")
    assert cancel == {
        "event": "run.cancel",
        "actor": "admin:root",
        "user_id": USER,
        "run_id": run.run_id,
        "backend": "echo",
    }


async def test_no_container_is_made_when_the_start_cannot_be_written_down(world: World) -> None:
    async with world.service() as service:
        world.audit.failure = StorageError("the audit log is full")
        run = await service.submit()
        record = await service.finished(run.run_id)
    assert record.error is not None
    assert (record.outcome, record.error["message"]) == ("failed", "the audit log is full")
    assert (world.runtime.containers, world.relay.grants) == ({}, {})
    assert [line["event"] for line in world.audit.missed] == ["run.submitted", "run.ended"]


async def test_a_run_that_goes_on_ends_as_it_would_when_its_end_cannot_be_written_down(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        world.audit.failure = StorageError("full")
        await world.relay.report(EgressReport(run_id=run.run_id, verdict="denied", host="evil.example", port=1))
        answer(container)
        record = await service.finished(run.run_id)
        assert "status:egress_denied" in shape(await service.events(run.run_id))
    assert record.outcome == "completed"
    assert [line["event"] for line in world.audit.missed] == ["egress.denied", "run.ended"]


async def test_who_deletes_and_who_cleans_up(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        answer(await service.container())
        await service.finished(run.run_id)
        await service.runs.delete_subagent(run.subagent_id, user_id=USER, actor="user:alice")
    assert world.audit.events[-1] == {
        "event": "subagent.deleted",
        "actor": "user:alice",
        "user_id": USER,
        "backend": "echo",
        "subagent_id": run.subagent_id,
    }


async def test_an_account_from_its_login_to_its_removal(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with world.service() as service:
        accounts = accounts_of(service)
        await accounts.connect(user_id=USER, backend="echo", actor="service:codumentor")
        for _ in range(2):
            await accounts.disconnect(user_id=USER, backend="echo", mode="wait", timeout=10, actor="user:alice")
        await accounts.aclose()
    about = {"user_id": USER, "backend": "echo"}
    assert world.audit.of("account.")[:3] == [
        {"event": "account.connect", "actor": "service:codumentor", **about},
        {"event": "account.disconnect", "actor": "user:alice", **about, "mode": "wait"},
        {"event": "account.removed", **about},
    ]


async def test_an_account_is_not_made_or_removed_unnoted(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with world.service() as service:
        home = await prime(world)
        accounts = accounts_of(service)
        world.audit.failure = StorageError("full")
        with pytest.raises(StorageError):
            await accounts.connect(user_id="bob", backend="echo")
        with pytest.raises(StorageError):
            await accounts.disconnect(user_id=USER, backend="echo", mode=None, timeout=10)
        await accounts.aclose()
    assert home.is_dir()
    assert not home.parents[1].joinpath("bob").exists()


# --- traces ---------------------------------------------------------------------------------------------------------


async def test_the_trace_of_a_good_run(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(traceparent=PARENT)
        answer(await service.container())
        record = await service.finished(run.run_id)
    [trace] = world.traces.traces
    assert (trace.run_id, trace.traceparent, trace.failed) == (run.run_id, PARENT, False)
    tokens = {f"podmentor.tokens.{kind}": count for kind, count in record.usage["tokens"].items()}
    assert trace.attributes == {
        "podmentor.run_id": run.run_id,
        "podmentor.backend": "echo",
        "podmentor.tier": 0,
        "podmentor.outcome": "completed",
        **tokens,
    }
    assert [step.name for step in trace.steps] == [
        "queue",
        "credentials",
        "workspace",
        "start",
        "running",
        "teardown",
    ]
    times: list[Any] = [trace.began, *(time for step in trace.steps for time in (step.began, step.ended)), trace.ended]
    assert times == sorted(times)
    assert not any(step.failed for step in trace.steps)


async def test_the_trace_of_a_run_that_could_not_be_started(world: World) -> None:
    async with world.service() as service:
        world.credentials.failure = StorageError("no")
        run = await service.submit()
        await service.finished(run.run_id)
    [trace] = world.traces.traces
    assert trace.failed
    assert trace.attributes["podmentor.reason"] == "sandbox_failed"
    assert [(step.name, step.failed) for step in trace.steps] == [
        ("queue", False),
        ("credentials", True),
        ("teardown", False),
    ]


async def test_the_parent_outlives_the_service(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(traceparent=PARENT)
        container = await service.container()
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
    assert world.traces.traces == []
    async with world.service() as service:
        container.say(done="x")
        container.exit(0)
        await service.finished(run.run_id)
    [trace] = world.traces.traces
    assert trace.traceparent == PARENT
    assert trace.attributes["podmentor.taken_over"] is True
    assert [step.name for step in trace.steps] == ["queue", "running", "teardown"]


async def test_the_same_request_with_another_trace_is_the_same_request(world: World) -> None:
    async with world.service() as service:
        first = await service.submit(idempotency_key="k", traceparent=PARENT, actor="user:alice")
        second = await service.submit(idempotency_key="k", actor="service:x")
        assert first.run_id == second.run_id
        answer(await service.container())
        await service.finished(first.run_id)
    assert len(world.audit.of("run.submitted")) == 1


async def test_without_anybody_who_wants_traces_nothing_is_kept(world: World) -> None:
    world.traces.enabled = False
    async with world.service() as service:
        run = await service.submit()
        answer(await service.container())
        await service.finished(run.run_id)
        assert service.telemetry.steps_taken(run.run_id) == ()
    assert world.traces.traces == []
