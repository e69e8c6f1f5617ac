"""What a run may reach: from the configuration, narrowed by the request, widened while it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest

from orchestrator.config.models import Config
from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.egress import EgressReport
from orchestrator.contract.runs import RunRecord
from orchestrator.errors import (
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
    SandboxError,
    StorageError,
)
from orchestrator.runs.launch.egress import _apply_egress_policy, added_rule, resolve_egress, route_of, settle_egress
from tests.fakes.adapter import EchoAdapter
from tests.orchestrator.runs.harness import USER, Service, World, answer, shape


class Reaching(EchoAdapter):
    default_allowed_egress: ClassVar[list[str]] = ["api.example.com", "auth.example.com"]


def config(**backend: Any) -> Config:
    return Config.model_validate({"external_agent": {"default_sandbox_tier": 1, "backends": {"echo": backend}}})


UNVERSIONED = GatewayRoute(
    upstream="https://api.openai.com/v1", key_headers=("authorization",), path_prefixes=("/chat/completions",)
)
VERSIONED = GatewayRoute(upstream="https://a", key_headers=("x-api-key",), path_prefixes=("/v1/x", "/v1beta/x"))
BARE = GatewayRoute(upstream="https://a", key_headers=("x-api-key",), path_prefixes=("/chat",))


@pytest.mark.parametrize(
    ("route", "base_url", "upstream"),
    [
        (VERSIONED, "https://proxy.example/anthropic", "https://proxy.example/anthropic"),
        (VERSIONED, "https://api.anthropic.com/v1", "https://api.anthropic.com"),
        (VERSIONED, "https://generativelanguage.googleapis.com/v1beta/", "https://generativelanguage.googleapis.com"),
        (VERSIONED, "https://v1/v1x", "https://v1/v1x"),
        (UNVERSIONED, "https://openrouter.ai/api", "https://openrouter.ai/api/v1"),
        (UNVERSIONED, "https://openrouter.ai/api/v1", "https://openrouter.ai/api/v1"),
        (UNVERSIONED, "https://g.example/v1beta/openai", "https://g.example/v1beta/openai"),
        (UNVERSIONED, "http://127.0.0.1:4000", "http://127.0.0.1:4000/v1"),
        (BARE, "https://peer.example/v1", "https://peer.example/v1"),
    ],
)
def test_a_base_url_may_end_in_the_version_or_not(
    route: GatewayRoute, base_url: str, upstream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EchoAdapter, "gateway", route)
    found = route_of(EchoAdapter(), subscription=False, tier=1, base_url=base_url)
    assert found is not None
    assert found.upstream == upstream


# --- the rules ------------------------------------------------------------------------------------------------------


class Ungated(Reaching):
    """Its requests cannot be sent through the gateway."""

    gateway: ClassVar[GatewayRoute | None] = None


SUBSCRIBED = {"mode": "byo_subscription"}


@pytest.mark.parametrize(
    ("backend", "rules"),
    [
        (SUBSCRIBED, ("api.example.com", "auth.example.com")),
        ({**SUBSCRIBED, "allowed_egress": None}, ("api.example.com", "auth.example.com")),
        ({"allowed_egress": ["*.example.org:8443", "PyPI.org"]}, ("*.example.org:8443", "pypi.org")),
        ({"allowed_egress": ["a.example", "a.example."]}, ("a.example",)),
        ({"allowed_egress": []}, ()),
        ({**SUBSCRIBED, "allowed_egress": []}, ()),
    ],
)
def test_c3_c23_the_backends_list_then_the_adapters(backend: dict[str, Any], rules: tuple[str, ...]) -> None:
    """C3, C23: per backend, else the adapter's default, for a run that goes to its provider through the proxy."""
    assert resolve_egress(config(**backend), Reaching(), tier=1, asked=None) == rules


@pytest.mark.parametrize("mode", ["technical_user", "byo_key"])
def test_c3_c23_with_a_key_the_adapters_hosts_are_no_second_way_to_the_provider(mode: str) -> None:
    """The gateway is the first one; what an operator has listed holds as it is."""
    assert resolve_egress(config(mode=mode), Reaching(), tier=1, asked=None) == ()
    assert resolve_egress(config(mode=mode), Ungated(), tier=1, asked=None) == ("api.example.com", "auth.example.com")
    listed = config(mode=mode, allowed_egress=["api.example.com"])
    assert resolve_egress(listed, Reaching(), tier=1, asked=None) == ("api.example.com",)
    assert Reaching.default_allowed_egress == ["api.example.com", "auth.example.com"]


@pytest.mark.parametrize(
    ("backend", "accepted", "subscription", "settled"),
    [
        (SUBSCRIBED, ("api.example.com",), True, ("api.example.com",)),
        (SUBSCRIBED, ("api.example.com", "auth.example.com:443"), False, ()),
        ({"allowed_egress": ["api.example.com"]}, ("api.example.com",), False, ("api.example.com",)),
        (SUBSCRIBED, ("other.example",), True, ()),
        ({}, None, False, None),
    ],
)
def test_c23_what_the_run_uses_has_the_last_word(
    backend: dict[str, Any], accepted: tuple[str, ...] | None, *, subscription: bool, settled: tuple[str, ...] | None
) -> None:
    assert settle_egress(config(**backend), Reaching(), accepted, subscription=subscription) == settled


def test_an_adapter_without_a_list_reaches_nothing() -> None:
    """C23: built in is nothing."""
    assert resolve_egress(config(), EchoAdapter(), tier=1, asked=None) == ()


def test_tier_0_has_no_proxy() -> None:
    """C29: tier 0 keeps working without what tier 1 needs."""
    assert resolve_egress(config(allowed_egress=["a.example"]), Reaching(), tier=0, asked=None) is None
    with pytest.raises(InvalidRequestError, match="tier 1 only"):
        resolve_egress(config(), Reaching(), tier=0, asked=["api.example.com"])


@pytest.mark.parametrize(
    ("asked", "rules"),
    [
        ([], ()),
        (["api.example.com"], ("api.example.com",)),
        (["API.example.com:443"], ("api.example.com:443",)),
        (["x.example.org", "*.deep.example.org"], ("x.example.org", "*.deep.example.org")),
    ],
)
def test_a_request_narrows(asked: list[str], rules: tuple[str, ...]) -> None:
    """C23: the run may narrow."""
    wide = config(allowed_egress=["api.example.com", "*.example.org"])
    assert resolve_egress(wide, Reaching(), tier=1, asked=asked) == rules


@pytest.mark.parametrize(
    "asked", ["evil.example", "*.example.com", "api.example.com:22", "*.org", "*", "example.org", "https://a.example"]
)
def test_a_request_does_not_widen(asked: str) -> None:
    wide = config(allowed_egress=["api.example.com", "*.example.org"])
    with pytest.raises(InvalidRequestError, match="egress: "):
        resolve_egress(wide, Reaching(), tier=1, asked=["api.example.com", asked])


def test_who_may_not_widen_is_told_what_is_there_and_who_may() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        resolve_egress(config(), Reaching(), tier=1, asked=["pypi.org"])
    assert "pypi.org is not covered by what is configured (nothing)" in caught.value.message
    assert "allowed_egress of this backend" in caught.value.message
    assert caught.value.details == {"asked": "pypi.org", "allowed": []}


def test_the_variables_send_everything_but_loopback_to_the_proxy() -> None:
    """C22: ``_apply_egress_policy(allowed, env)``."""
    before = {"PATH": "/bin", "https_proxy": "http://elsewhere:1", "NO_PROXY": "*"}
    env = _apply_egress_policy(["a.example"], before)
    proxy = "http://127.0.0.1:8118"
    assert env == {
        "PATH": "/bin",
        "HTTPS_PROXY": proxy,
        "HTTP_PROXY": proxy,
        "ALL_PROXY": proxy,
        "NO_PROXY": "localhost,127.0.0.1,::1",
        "https_proxy": proxy,
        "http_proxy": proxy,
        "all_proxy": proxy,
        "no_proxy": "localhost,127.0.0.1,::1",
    }
    assert before["NO_PROXY"] == "*"
    assert _apply_egress_policy([], {"PATH": "/bin"})["HTTPS_PROXY"] == proxy
    assert _apply_egress_policy(None, before) == before


@pytest.mark.parametrize(
    ("host", "port", "privileged", "rule"),
    [
        ("PyPI.org", None, False, "pypi.org"),
        ("pypi.org", 8443, False, "pypi.org:8443"),
        ("10.0.0.1", 8080, True, "10.0.0.1:8080"),
        ("2001:db8::7", 443, True, "[2001:db8::7]:443"),
        ("[2001:db8::7]", None, True, "[2001:db8::7]"),
    ],
)
def test_one_host_may_be_added(host: str, port: int | None, *, privileged: bool, rule: str) -> None:
    assert str(added_rule(config(), host, port, privileged=privileged)) == rule


@pytest.mark.parametrize(
    ("host", "privileged", "error"),
    [
        ("*.example.org", True, InvalidRequestError),
        ("*", True, InvalidRequestError),
        ("a.example:443", True, InvalidRequestError),
        ("https://a.example/", True, InvalidRequestError),
        ("127.1", True, InvalidRequestError),
        ("127.0.0.1", False, ForbiddenError),
        ("192.0.2.7", False, ForbiddenError),
        ("::1", False, ForbiddenError),
    ],
)
def test_patterns_may_not_be_added_and_addresses_by_admins_only(
    host: str, *, privileged: bool, error: type[Exception]
) -> None:
    with pytest.raises(error):
        added_rule(config(), host, None, privileged=privileged)


def test_the_configuration_may_leave_it_to_admins() -> None:
    strict = Config.model_validate({"egress": {"allow_by": "admin"}})
    with pytest.raises(ForbiddenError, match="allow_by"):
        added_rule(strict, "pypi.org", None, privileged=False)
    assert str(added_rule(strict, "pypi.org", None, privileged=True)) == "pypi.org"


# --- runs -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path)
    world.config = config(allowed_egress=["a.example", "*.example.org"])
    return world


async def allow(service: Service, run: RunRecord, host: str = "pypi.org", **over: Any) -> RunRecord:
    values: dict[str, Any] = {"port": None, "user_id": USER, "privileged": False, "actor": USER}
    return await service.runs.allow_egress(run.run_id, host=host, **{**values, **over})


async def test_a_run_in_tier_1_has_its_proxy_from_before_its_start_to_its_end(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        assert run.egress == ("a.example", "*.example.org")
        container = await service.container()
        grant = world.relay.egress[run.run_id]
        assert grant.rules == run.egress
        assert grant.socket_path == world.paths.control_dir(run.run_id) / "egress.sock"
        assert grant.expires_at == pytest.approx(world.relay.grants[run.run_id].expires_at, abs=5)
        assert container.spec.env["HTTPS_PROXY"] == container.spec.env["all_proxy"] == "http://127.0.0.1:8118"
        assert container.spec.env["ECHO_URL"] == "http://127.0.0.1:8080"
        answer(container)
        await service.finished(run.run_id)
        assert await world.relay.granted() == set()


async def test_a_run_in_tier_0_has_none(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(tier=0, privileged=True)
        assert run.egress is None
        container = await service.container()
        assert world.relay.egress == {}
        assert "HTTPS_PROXY" not in container.spec.env
        with pytest.raises(ConflictError, match="tier 0"):
            await allow(service, run)
        answer(container)
        await service.finished(run.run_id)


async def test_a_request_narrows_what_its_run_reaches(world: World) -> None:
    async with world.service() as service:
        run = await service.submit(egress=("x.example.org",))
        answer(await service.container())
        assert (await service.finished(run.run_id)).egress == ("x.example.org",)
        assert world.relay.rules == [("x.example.org",)]
        with pytest.raises(InvalidRequestError, match="not covered"):
            await service.submit(egress=("evil.example",))


async def test_a_host_is_allowed_while_the_run_goes_on_and_stays_so_over_a_restart(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        await service.until(run.run_id, "status", phase="starting")
        record = await allow(service, run, "PyPI.org")
        assert record.egress == ("a.example", "*.example.org", "pypi.org")
        assert world.relay.egress[run.run_id].rules == record.egress
        assert (await allow(service, run, "pypi.org")).egress == record.egress
        assert (await allow(service, run, "pypi.org", port=8443)).egress == (*record.egress, "pypi.org:8443")
    world.relay.egress.clear()
    async with world.service() as service:
        answer(container)
        await service.finished(run.run_id)
        assert world.relay.rules[-1] == ("a.example", "*.example.org", "pypi.org", "pypi.org:8443")
        reported = [
            event.data for event in await service.events(run.run_id) if event.data.get("phase") == "egress_allowed"
        ]
        assert reported == [
            {"phase": "egress_allowed", "host": "pypi.org", "port": None},
            {"phase": "egress_allowed", "host": "pypi.org", "port": 8443},
        ]
    noted = [event for event in world.audit.events if event["event"] == "egress.host_added"]
    assert noted[0] == {
        "event": "egress.host_added",
        "actor": USER,
        "user_id": USER,
        "backend": "echo",
        "run_id": run.run_id,
        "host": "pypi.org",
    }


async def test_a_host_that_is_allowed_while_the_run_waits_or_starts_holds_from_its_start(world: World) -> None:
    async with world.service() as service:
        first = await service.submit()
        container = await service.container()
        second = await service.submit(subagent_id=first.subagent_id)
        await allow(service, second)
        assert second.run_id not in world.relay.egress
        answer(container)
        answer(await service.container())
        await service.finished(second.run_id)
        assert world.relay.rules == [first.egress, (*(first.egress or ()), "pypi.org")]


async def test_who_may_allow_and_when(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        with pytest.raises(NotFoundError):
            await allow(service, run, user_id="mallory")
        with pytest.raises(ForbiddenError):
            await allow(service, run, "10.0.0.1")
        record = await allow(service, run, "10.0.0.1", port=8080, user_id=None, privileged=True, actor="root")
        assert record.egress == ("a.example", "*.example.org", "10.0.0.1:8080")
        answer(container)
        await service.finished(run.run_id)
        with pytest.raises(ConflictError, match="has finished"):
            await allow(service, run)


async def test_there_is_an_end_to_allowing(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        for number in range(64):
            await allow(service, run, f"h{number}.example")
        with pytest.raises(ConflictError, match="64 hosts"):
            await allow(service, run, "one-more.example")
        assert (await allow(service, run, "h0.example")).egress is not None
        answer(container)
        await service.finished(run.run_id)


async def test_what_cannot_be_audited_is_not_allowed(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        world.audit.failure = StorageError("full")
        with pytest.raises(StorageError):
            await allow(service, run)
        world.audit.failure = None
        answer(container)
        assert (await service.finished(run.run_id)).egress == ("a.example", "*.example.org")


async def test_a_proxy_that_cannot_be_opened_ends_the_run(world: World) -> None:
    world.relay.failure = SandboxError("no socket")
    async with world.service() as service:
        record = await service.finished((await service.submit()).run_id)
    assert record.error is not None
    assert (record.error["reason"], record.error["message"]) == ("sandbox_failed", "no socket")


async def test_a_run_that_is_taken_over_goes_on_without_a_proxy_that_cannot_be_opened(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
    world.relay.failure = SandboxError("no socket")
    async with world.service() as service:
        answer(container)
        assert (await service.finished(run.run_id)).outcome == "completed"


# --- reports --------------------------------------------------------------------------------------------------------


def denied(run: RunRecord, **over: Any) -> EgressReport:
    values: dict[str, Any] = {"verdict": "denied", "host": "evil.example", "port": 443, "reason": "no", "count": 2}
    return EgressReport(run_id=run.run_id, **{**values, **over})


async def test_a_denial_is_an_event_of_the_run_and_a_line_of_the_audit_log(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        await world.relay.report(denied(run))
        event = await service.until(run.run_id, "status", phase="egress_denied")
        assert event.source == "orchestrator"
        assert event.data == {
            "phase": "egress_denied",
            "host": "evil.example",
            "port": 443,
            "reason": "no",
            "count": 2,
        }
        answer(container)
        await service.finished(run.run_id)
    [noted] = world.audit.of("egress.")
    assert noted == {
        "event": "egress.denied",
        "user_id": USER,
        "backend": "echo",
        "run_id": run.run_id,
        "host": "evil.example",
        "port": 443,
        "count": 2,
        "reason": "no",
    }


async def test_a_connection_is_a_line_of_the_audit_log_alone(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        await world.relay.report(denied(run, verdict="allowed", reason="", bytes_up=5, bytes_down=6))
        answer(container)
        await service.finished(run.run_id)
        assert "status:egress_denied" not in shape(await service.events(run.run_id))
    [noted] = world.audit.of("egress.")
    assert noted == {
        "event": "egress.allowed",
        "user_id": USER,
        "backend": "echo",
        "run_id": run.run_id,
        "host": "evil.example",
        "port": 443,
        "count": 2,
        "bytes_up": 5,
        "bytes_down": 6,
    }


async def test_the_last_reports_come_before_the_end(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        container = await service.container()
        world.relay.last_words.append(denied(run))
        answer(container)
        await service.finished(run.run_id)
        assert shape(await service.events(run.run_id))[-2:] == ["status:egress_denied", "completed"]


async def test_a_report_about_a_run_that_is_gone_is_dropped(world: World) -> None:
    async with world.service() as service:
        run = await service.submit()
        answer(await service.container())
        await service.finished(run.run_id)
        seen = len(await service.events(run.run_id))
        await world.relay.report(denied(run))
        assert len(await service.events(run.run_id)) == seen
        assert world.audit.events[-1]["event"] == "egress.denied"
        await service.runs.delete_subagent(run.subagent_id, user_id=USER)
        await world.relay.report(denied(run))
