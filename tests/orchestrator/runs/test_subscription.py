"""Runs that use their user's own subscription: egress, the lease, the login, and what is said when it fails."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.contract.accounts import HomeKey
from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.runs import RunRecord
from orchestrator.credentials import CredentialChain, Homes, Subscription, TechnicalUser
from orchestrator.errors import ConflictError
from orchestrator.events import Error
from orchestrator.runs.accounts import Accounts
from tests.fakes.adapter import EchoAdapter
from tests.fakes.runtime import FakeContainer
from tests.orchestrator.runs.harness import USER, Service, World, answer
from tests.orchestrator.runs.test_supervisor import assert_nothing_left

KEY = HomeKey(USER, "echo")
FILE = ".echo/login.json"
LOGIN = '{"token": "made-up"}'


class SubscribedEcho(EchoAdapter):
    supports_byo_subscription = True
    subscription_gateway: ClassVar[GatewayRoute | None] = GatewayRoute(
        upstream="http://127.0.0.1:9", key_headers=("authorization",), path_prefixes=("/v1/chat",)
    )
    credential_files = (FILE,)

    def gateway_argv(self, base_url: str) -> list[str]:
        return ["--at", base_url]

    def build_env(self, *, creds: Any, home: Path | None) -> dict[str, str]:
        env = super().build_env(creds=creds, home=home)
        if creds.api_key is None:
            del env["ECHO_KEY"]
        return env


def world_at(root: Path, *, tier: int = 1, backend: dict[str, Any] | None = None, **config: Any) -> World:
    settings = {"mode": "byo_subscription", **(backend or {})}
    world = World(root, external_agent={"default_sandbox_tier": tier, "backends": {"echo": settings}}, **config)
    world.adapter = SubscribedEcho()
    world.chain = CredentialChain([Subscription(Homes(world.paths.plugin_storage)), TechnicalUser()], world.config)
    return world


@pytest.fixture
def world(tmp_path: Path) -> World:
    return world_at(tmp_path)


async def prime(world: World, user_id: str = USER) -> Path:
    home = await Homes(world.paths.plugin_storage).allocate(HomeKey(user_id, "echo"))
    (home / ".echo").mkdir(exist_ok=True)
    (home / FILE).write_text(LOGIN)
    return home


def accounts_of(service: Service) -> Accounts:
    async def nobody(*_: object) -> Any:
        raise AssertionError

    return Accounts(
        config=service.world.config,
        adapters=service.adapters,
        homes=service.homes,
        runs=service.runs,
        prober=nobody,
        audit=service.world.audit,
    )


async def failed(service: Service, run: RunRecord) -> dict[str, Any]:
    record = await service.finished(run.run_id)
    assert record.error is not None
    return dict(record.error)


def queued(events: list[Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in e.data.items() if k != "phase"} for e in events if e.data.get("phase") == "queued"]


# --- egress ---------------------------------------------------------------------------------------------------------


async def test_c19_a_primed_home_is_mounted_and_no_key_is_anywhere(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert container.spec.home == home
        assert "ECHO_KEY" not in container.spec.env
        assert container.spec.env["ECHO_URL"] == "http://127.0.0.1:8080"
        assert container.spec.argv[-2:] == ["--at", "http://127.0.0.1:8080"]
        grant = world.relay.grants[run.run_id]
        assert grant.api_key is None
        assert grant.route == SubscribedEcho.subscription_gateway
        answer(container)
        record = await service.finished(run.run_id)
        assert (record.outcome, record.credential_source) == ("completed", "byo_subscription")
        assert_nothing_left(world)
        assert await service.homes.leases() == {}
    assert (home / FILE).read_text() == LOGIN


async def test_tier_0_goes_to_the_provider_directly(tmp_path: Path) -> None:
    world = world_at(tmp_path, tier=0)
    await prime(world)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert "ECHO_URL" not in container.spec.env
        assert "--at" not in container.spec.argv
        assert world.relay.grants == {}
        answer(container)
        await service.finished(run.run_id)


async def test_another_base_url_is_kept_to_in_every_tier(tmp_path: Path) -> None:
    world = world_at(tmp_path, tier=0, backend={"base_url": "http://127.0.0.1:7"})
    await prime(world)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert world.relay.grants[run.run_id].route.upstream == "http://127.0.0.1:7"
        assert world.relay.grants[run.run_id].route.path_prefixes == ("/v1/chat",)
        answer(container)
        await service.finished(run.run_id)


class Ungated(SubscribedEcho):
    """Its subscription cannot be sent through the gateway."""

    subscription_gateway: ClassVar[GatewayRoute | None] = None
    default_allowed_egress: ClassVar[list[str]] = ["api.example.com", "auth.example.com"]


async def test_a_subscription_without_a_gateway_goes_through_the_proxy_to_the_providers_hosts(world: World) -> None:
    world.adapter = Ungated()
    await prime(world)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert world.relay.grants == {}
        assert "ECHO_URL" not in container.spec.env
        assert "--at" not in container.spec.argv
        assert container.spec.env["HTTPS_PROXY"] == "http://127.0.0.1:8118"
        assert world.relay.egress[run.run_id].rules == ("api.example.com", "auth.example.com")
        container.say(session="s1")
        await service.until(run.run_id, "session_started")
    world.relay.egress.clear()
    async with world.service() as service:  # the next one opens the same way
        answer(container)
        assert (await service.finished(run.run_id)).outcome == "completed"
        assert world.relay.rules[-1] == ("api.example.com", "auth.example.com")
        assert world.relay.history == []
    assert_nothing_left(world)


async def test_with_a_gateway_the_hosts_that_renew_a_login_are_open_too(world: World) -> None:
    adapter = SubscribedEcho()
    adapter.default_allowed_egress = Ungated.default_allowed_egress  # type: ignore[misc]
    world.adapter = adapter
    await prime(world)
    async with world.service() as service:
        run = await service.submit()
        answer(await service.container())
        assert (await service.finished(run.run_id)).egress == ("api.example.com", "auth.example.com")
        assert world.relay.history[0].api_key is None


async def test_a_key_in_the_place_of_a_subscription_closes_the_hosts_again(tmp_path: Path) -> None:
    """Nobody has connected an account: the technical user's key is used, and with it the gateway alone."""
    world = world_at(tmp_path, backend={"api_key": "real-key"})
    world.adapter = Ungated()
    async with world.service() as service:
        run = await service.submit()
        assert run.egress == ("api.example.com", "auth.example.com")
        await service.runs.allow_egress(
            run.run_id, host="pypi.org", port=None, user_id=USER, privileged=False, actor=USER
        )
        container = await service.container()
        assert world.relay.egress[run.run_id].rules == ("pypi.org",)
        assert world.relay.grants[run.run_id].api_key == "real-key"
        answer(container)
        assert (await service.finished(run.run_id)).egress == ("pypi.org",)


@pytest.mark.parametrize("tier", [0, 1])
async def test_a_subscription_never_goes_past_the_operators_base_url(tmp_path: Path, tier: int) -> None:
    world = world_at(tmp_path, tier=tier, backend={"base_url": "http://127.0.0.1:7"})
    world.adapter = Ungated()
    await prime(world)
    async with world.service() as service:
        error = await failed(service, await service.submit())
        assert error["reason"] == "sandbox_failed"
        assert "base_url is set for echo" in error["message"]
        assert world.runtime.created == []
        assert await service.homes.leases() == {}


async def test_c19_without_a_primed_home_the_key_is_next_and_then_nothing(tmp_path: Path) -> None:
    world = world_at(tmp_path)
    async with world.service() as service:
        run = await service.submit()
        error = await failed(service, run)
        assert error["reason"] == "auth_required"
        assert "podmentor login echo" in error["message"]
        assert world.runtime.created == []
    world = world_at(tmp_path, backend={"api_key": "real-key"})
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        assert world.relay.grants[run.run_id].api_key == "real-key"
        assert container.spec.home.parent == world.paths.subagent_dir(run.subagent_id)
        answer(container)
        await service.finished(run.run_id)


# --- one at a time --------------------------------------------------------------------------------------------------


async def test_two_runs_on_one_home_wait_for_each_other_and_say_so(world: World) -> None:
    await prime(world)
    await prime(world, "bob")
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        container = await service.container()
        other = await service.submit(user_id="bob")
        others_box = await service.container()
        assert others_box.spec.run_id == other.run_id
        assert len(world.runtime.created) == 2
        record = await service.runs.get(second.run_id, user_id=USER)
        assert (record.state, record.queue_position) == ("queued", 0)
        assert queued(await service.events(second.run_id)) == [{"position": 0, "waiting_for": "home"}]
        answer(container)
        assert (await service.finished(first.run_id)).outcome == "completed"
        container = await service.container()
        assert container.spec.run_id == second.run_id
        answer(container)
        answer(others_box)
        assert (await service.finished(second.run_id)).outcome == "completed"
    assert_nothing_left(world)


async def test_more_at_once_when_so_configured(tmp_path: Path) -> None:
    world = world_at(tmp_path, runs={"max_concurrent_per_home": 2})
    await prime(world)
    async with world.service() as service:
        runs = [await service.submit() for _ in range(3)]
        containers = [await service.container(), await service.container()]
        assert queued(await service.events(runs[2].run_id)) == [{"position": 0, "waiting_for": "home"}]
        for container in containers:
            answer(container)
        answer(await service.container())
        for run in runs:
            assert (await service.finished(run.run_id)).outcome == "completed"


async def test_a_lease_lives_through_a_crash_with_its_run_and_ends_with_it(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(first.run_id, "session_started")
    world.relay.grants.clear()  # the relay is gone too
    async with world.service() as service:
        assert await service.homes.leases() == {first.run_id: KEY}
        assert (await service.runs.get(second.run_id, user_id=USER)).state == "queued"
        assert len(world.runtime.created) == 1
        async with asyncio.timeout(10):
            while len(world.relay.history) < 2:  # noqa: ASYNC110 -- opened again beside the rest
                await asyncio.sleep(0)
        (home / FILE).write_text('{"tok')  # the CLI is killed in the middle of writing
        async with asyncio.timeout(10):
            while first.run_id not in world.relay.grants:  # noqa: ASYNC110  # a task beside the run's grants again
                await asyncio.sleep(0)
        container.exit(137)
        await service.finished(first.run_id)
        assert [(grant.run_id, grant.api_key) for grant in world.relay.history] == [(first.run_id, None)] * 2
        assert (home / FILE).read_text() == LOGIN
        container = await service.container()
        assert container.spec.run_id == second.run_id
        answer(container)
        await service.finished(second.run_id)
        assert await service.homes.leases() == {}


async def test_a_crash_that_takes_the_container_too_leaves_no_lease(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        first = await service.submit()
        container = await service.container()
        container.say(session="s1")
        await service.until(first.run_id, "session_started")
    world.runtime.containers.clear()
    (home / FILE).write_text("")
    async with world.service() as service:
        assert (await failed(service, first))["reason"] == "lost"
        assert await service.homes.leases() == {}
        assert (home / FILE).read_text() == LOGIN
        run = await service.submit()
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"


async def test_a_lease_of_a_run_that_nobody_knows_is_ended_at_the_start(world: World) -> None:
    await prime(world)
    await Homes(world.paths.plugin_storage).enter("f" * 32, KEY, (FILE,))
    async with world.service() as service:
        assert await service.homes.leases() == {}
        run = await service.submit()
        answer(await service.container())
        await service.finished(run.run_id)


async def test_a_start_that_fails_gives_the_lease_back(world: World) -> None:
    await prime(world)
    world.runtime.has_image = False
    async with world.service() as service:
        run = await service.submit()
        assert (await failed(service, run))["reason"] == "image_missing"
        assert await service.homes.leases() == {}
        world.runtime.has_image = True
        run = await service.submit()
        answer(await service.container())
        assert (await service.finished(run.run_id)).outcome == "completed"


async def test_a_run_that_waited_without_an_account_takes_its_turn_at_the_account_connected_since(
    tmp_path: Path,
) -> None:
    world = world_at(tmp_path, backend={"api_key": "real-key"}, runs={"max_concurrent": 2})
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        containers = {
            container.spec.run_id: container for container in (await service.container(), await service.container())
        }
        third, fourth = await service.submit(), await service.submit()
        home = await prime(world)
        answer(containers[first.run_id])
        container = await service.container()
        assert (container.spec.run_id, container.spec.home) == (third.run_id, home)
        answer(containers[second.run_id])
        await service.until(fourth.run_id, "status", waiting_for="home")
        assert len(world.runtime.created) == 3
        answer(container)
        container = await service.container()
        assert (container.spec.run_id, container.spec.home) == (fourth.run_id, home)
        answer(container)
        assert (await service.finished(fourth.run_id)).outcome == "completed"


async def test_a_cancelled_run_that_waits_for_the_account_ends_at_once(world: World) -> None:
    await prime(world)
    async with world.service() as service:
        first, second = await service.submit(), await service.submit()
        container = await service.container()
        await service.runs.cancel(second.run_id, user_id=USER)
        assert (await failed(service, second))["reason"] == "cancelled"
        answer(container)
        await service.finished(first.run_id)


async def test_a_run_never_uses_an_account_that_it_did_not_wait_for(world: World) -> None:
    await prime(world)
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        stored = await service.store.run(run.run_id)
        driver = service.supervisor._new_driver(stored, None)

        async def unchecked(mount: object, home: object) -> None:
            raise AssertionError("it does not come that far")

        with pytest.raises(ConflictError, match="while this run was starting"):
            await driver._launcher.launch(
                stored, None, grants=driver._grants, check_disk=unchecked, on_sandbox=lambda _: None
            )
        answer(container)
        await service.finished(run.run_id)


# --- what is said ---------------------------------------------------------------------------------------------------


class Refusing(SubscribedEcho):
    reason: Any = "auth_rejected"

    def parser(self) -> Any:
        parser = super().parser()
        reason = self.reason

        def on_object(obj: dict[str, Any]) -> list[Any]:
            return [Error(reason=reason, message="Check the key.", details={"cli_message": obj["said"]})]

        parser.on_object = on_object  # type: ignore[attr-defined]
        return parser


@pytest.mark.parametrize("reason", ["auth_required", "auth_rejected", "credit_exhausted", "rate_limited", "cli_failed"])
async def test_an_ending_about_the_account_says_what_to_do_about_it(world: World, reason: str) -> None:
    await prime(world)
    adapter = Refusing()
    adapter.reason = reason
    world.adapter = adapter
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        container.say(said="OAuth token has expired")
        container.exit(1)
        error = await failed(service, run)
        assert error["reason"] == reason
        if reason in {"auth_required", "auth_rejected"}:
            assert f"podmentor login echo --user {USER}" in error["message"]
        if reason == "cli_failed":
            assert error["message"] == "Check the key."
        else:
            assert "account" in error["message"]
            assert "OAuth token has expired" in error["message"]
            assert error["details"]["source"] == "byo_subscription"
        assert json.dumps(error) == json.dumps(dict((await service.events(run.run_id))[-1].data))


# --- disconnecting --------------------------------------------------------------------------------------------------


async def test_disconnecting_when_nothing_runs_removes_at_once_and_twice_is_fine(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        accounts = accounts_of(service)
        assert (await accounts.get(user_id=USER, backend="echo")).connected
        for _ in range(2):
            record = await accounts.disconnect(user_id=USER, backend="echo", mode=None, timeout=10)
            assert (record.connected, record.disconnecting) == (False, False)
        assert not home.exists()
        run = await service.submit()
        assert (await failed(service, run))["reason"] == "auth_required"
        await accounts.aclose()


async def begun(service: Service) -> tuple[RunRecord, FakeContainer]:
    run = await service.submit()
    container = await service.container()
    container.say(session="s1")
    await service.until(run.run_id, "session_started")
    return run, container


async def test_a_run_that_begins_during_the_question_is_noticed(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await prime(world)
    async with world.service() as service:
        run, container = await begun(service)
        real, answers = service.homes.leases, iter([dict[str, HomeKey]()])

        async def leases() -> Mapping[str, HomeKey]:
            return await real() if (early := next(answers, None)) is None else early

        monkeypatch.setattr(service.homes, "leases", leases)
        with pytest.raises(ConflictError, match=r"1 run\(s\) use this account") as caught:
            await accounts_of(service).disconnect(user_id=USER, backend="echo", mode=None, timeout=0)
        assert caught.value.details["run_ids"] == [run.run_id]
        assert await service.homes.asked_removals() == []
        answer(container)
        await service.finished(run.run_id)


async def test_disconnecting_during_a_run_must_say_how(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        accounts = accounts_of(service)
        run, container = await begun(service)
        with pytest.raises(ConflictError) as caught:
            await accounts.disconnect(user_id=USER, backend="echo", mode=None, timeout=0)
        assert caught.value.details == {"run_ids": [run.run_id]}
        assert (await accounts.get(user_id=USER, backend="echo")).run_ids == (run.run_id,)
        record = await accounts.disconnect(user_id=USER, backend="echo", mode="wait", timeout=0)
        assert (record.connected, record.disconnecting, record.run_ids) == (False, True, (run.run_id,))
        late = await service.submit()
        assert (await failed(service, late))["reason"] == "auth_required"
        assert home.exists()
        container.say(text="hi")
        container.say(done="hi")
        container.exit(0)
        assert (await service.finished(run.run_id)).outcome == "completed"
        record = await accounts.disconnect(user_id=USER, backend="echo", mode="wait", timeout=10)
        assert not record.disconnecting
        assert not home.exists()
        await accounts.aclose()


async def test_disconnecting_may_end_the_run(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        accounts = accounts_of(service)
        run, _ = await begun(service)
        record = await accounts.disconnect(user_id=USER, backend="echo", mode="cancel", timeout=15)
        assert not record.disconnecting
        assert not home.exists()
        assert (await service.finished(run.run_id)).outcome == "cancelled"
        await accounts.aclose()


async def test_a_removal_that_was_asked_for_is_done_by_the_next_service(world: World) -> None:
    home = await prime(world)
    async with world.service() as service:
        accounts = accounts_of(service)
        run, container = await begun(service)
        await accounts.disconnect(user_id=USER, backend="echo", mode="wait", timeout=0)
        await accounts.aclose()
    assert home.exists()
    async with world.service() as service:
        accounts = accounts_of(service)
        await accounts.start()
        assert (await accounts.list_accounts(user_id=USER))[0].disconnecting
        with pytest.raises(ConflictError):
            await accounts.connect(user_id=USER, backend="echo")
        container.say(done="hi")
        container.exit(0)
        await service.finished(run.run_id)
        assert await accounts._tasks.join(timeout=10)
        assert not home.exists()
        await accounts.aclose()
