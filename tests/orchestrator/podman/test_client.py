"""Transport and retries over a scripted libpod."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal

import pytest
from tenacity import RetryCallState, wait_none

from orchestrator.errors import RuntimeUnavailableError, SandboxError, TransientSandboxError
from orchestrator.podman import client as client_module
from orchestrator.podman import service as service_module
from orchestrator.podman import transport as transport_module
from orchestrator.podman.client import LibpodClient, answered, call_name
from orchestrator.podman.service import PodmanService
from orchestrator.podman.transport import Reply, Transport, message_of
from tests.fakes.libpod import Answer, FakeLibpod
from tests.fakes.metrics import FakeMetrics

ASK: tuple[Literal["GET"], str] = ("GET", "/thing")
BUSY = Answer.error(500, "database is locked")


@pytest.fixture
async def transport() -> AsyncIterator[Transport]:
    made = Transport(workers=4)
    yield made
    made.aclose()


@pytest.fixture
def client(transport: Transport, libpod: FakeLibpod, tmp_path: Path) -> LibpodClient:
    service = PodmanService(transport, runtime_dir=tmp_path, configured=libpod.socket)
    return LibpodClient(service, transport, wait=wait_none())


async def test_an_answer(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, Answer(200, {"a": [1]}))
    assert await client.call(*ASK, params={"q": "x&y=z"}) == Reply(200, {"a": [1]})
    assert libpod.seen(*ASK)[0].query == {"q": "x&y=z"}


async def test_an_empty_answer(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, Answer(204))
    assert await client.call(*ASK) == Reply(204, None)


@pytest.mark.parametrize("failure", [BUSY, Answer(hang_up=True)])
async def test_passing_failures_are_tried_again(client: LibpodClient, libpod: FakeLibpod, failure: Answer) -> None:
    libpod.script(*ASK, failure, failure, Answer(200, 1))
    assert (await client.call(*ASK)).body == 1


async def test_not_without_end(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, BUSY)
    with pytest.raises(TransientSandboxError):
        await client.call(*ASK)
    assert len(libpod.seen(*ASK)) == 8


async def test_the_pauses_grow_are_bounded_and_differ(client: LibpodClient, libpod: FakeLibpod) -> None:
    usual = LibpodClient(client._service, client._transport)
    libpod.script(*ASK, BUSY, Answer(200, 1))
    assert (await usual.call(*ASK)).body == 1

    def pauses() -> list[float]:
        found = []
        for number in range(1, 9):
            state = RetryCallState(usual.attempts(), None, (), {})
            state.attempt_number = number
            found.append(usual._wait(state))
        return found

    first, second = pauses(), pauses()
    assert first != second
    assert first[0] < 0.2 < first[-1] <= 2.1


async def test_other_failures_are_not(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, Answer.error(500, "broken"))
    with pytest.raises(SandboxError, match="broken") as caught:
        await client.call(*ASK)
    assert answered(caught.value)
    assert len(libpod.seen(*ASK)) == 1


async def test_one_attempt_is_one(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, BUSY)
    with pytest.raises(TransientSandboxError):
        await client.once(*ASK)
    assert len(libpod.seen(*ASK)) == 1


async def test_a_call_that_hangs_is_given_up(
    client: LibpodClient, libpod: FakeLibpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = threading.Event()
    libpod.script(*ASK, Answer(200, wait=release))
    with pytest.raises(RuntimeUnavailableError, match="timed out") as caught:
        await client.once(*ASK, timeout=0.1)
    assert not answered(caught.value)
    release.set()


async def test_a_thread_that_hangs_does_not_hold_the_caller(
    client: LibpodClient, libpod: FakeLibpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever podman-py does with the time limit, ours holds."""
    monkeypatch.setattr(transport_module, "GRACE", 0.05)
    release = threading.Event()

    def hang(*_: object) -> Reply:
        release.wait(10)
        return Reply(200, None)

    transport = client._transport
    await client.call("GET", "/_ping")
    monkeypatch.setattr(transport, "_send", hang)
    with pytest.raises(RuntimeUnavailableError):
        await client.once(*ASK, timeout=0.05)
    release.set()


async def test_a_service_that_restarts_is_found_again(client: LibpodClient, libpod: FakeLibpod) -> None:
    libpod.script(*ASK, Answer(200, 1))
    await client.call(*ASK)
    libpod.stop()
    with pytest.raises(TransientSandboxError, match="connection refused"):
        await client.once(*ASK)
    with pytest.raises(RuntimeUnavailableError, match="no Podman service answers"):
        await client.call(*ASK)
    libpod.start()
    assert (await client.call(*ASK)).body == 1


async def test_calls_go_on_side_by_side(client: LibpodClient, libpod: FakeLibpod) -> None:
    barrier = threading.Barrier(3)

    def meet(_: object) -> Answer:
        barrier.wait(10)
        return Answer(200, 1)

    libpod.script(*ASK, meet)
    replies = await asyncio.gather(*(client.call(*ASK) for _ in range(3)))
    assert [reply.body for reply in replies] == [1, 1, 1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"cause": "a", "message": "b: a", "response": 500}', "b: a"),
        ('{"cause": "a", "message": "", "response": 500}', "a"),
        ("plain", "plain"),
        ("[1]", "[1]"),
        ("{}", "{}"),
    ],
)
def test_messages(text: str, message: str) -> None:
    assert message_of(text) == message


async def test_a_service_that_hangs_is_not_waited_for(
    client: LibpodClient, libpod: FakeLibpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes the call and answers neither that nor a ping; the call's own limit is far away."""
    monkeypatch.setattr(client_module, "PATIENCE_SECONDS", 0.05)
    monkeypatch.setattr(service_module, "PING_SECONDS", 0.1)
    await client.call("GET", "/_ping")
    release = threading.Event()
    libpod.script(*ASK, Answer(200, wait=release))
    libpod.script("GET", "/_ping", Answer(200, wait=release))
    with pytest.raises(RuntimeUnavailableError, match="hangs") as caught:
        await client.once(*ASK, timeout=300)
    assert not answered(caught.value)
    with pytest.raises(RuntimeUnavailableError, match="no Podman service answers"):
        await client.once(*ASK)  # it is looked for anew
    release.set()
    libpod.script("GET", "/_ping", Answer(200, "OK"))
    assert (await client.once(*ASK)).status == 200


async def test_a_service_that_is_only_slow_is_waited_for(
    client: LibpodClient, libpod: FakeLibpod, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "PATIENCE_SECONDS", 0.05)
    await client.call("GET", "/_ping")
    pinged = len(libpod.seen("GET", "/_ping"))
    release = threading.Event()
    libpod.script(*ASK, Answer(200, 1, wait=release))
    asking = asyncio.ensure_future(client.once(*ASK, timeout=300))
    await asyncio.to_thread(libpod.wait_for, "GET", "/_ping", pinged + 3)
    assert not asking.done()
    release.set()
    assert (await asking).body == 1


async def test_calls_that_hang_leave_threads_for_pings_and_for_other_services(
    transport: Transport, libpod: FakeLibpod, tmp_path: Path
) -> None:
    release = threading.Event()
    libpod.script(*ASK, Answer(200, wait=release))
    hanging = [asyncio.ensure_future(transport.call(libpod.socket, *ASK, timeout=60)) for _ in range(4)]
    await asyncio.to_thread(libpod.wait_for, *ASK, 4)
    await transport.call(libpod.socket, "GET", "/_ping", timeout=10, ping=True)
    with FakeLibpod(tmp_path / "other.sock") as other:
        other.script(*ASK, Answer(200, 1))
        assert (await transport.call(other.socket, *ASK, timeout=10)).body == 1
    release.set()
    await asyncio.gather(*hanging)


async def test_calls_errors_and_retries_are_counted(transport: Transport, libpod: FakeLibpod, tmp_path: Path) -> None:
    metrics = FakeMetrics()
    service = PodmanService(transport, runtime_dir=tmp_path, configured=libpod.socket)
    client = LibpodClient(service, transport, wait=wait_none(), metrics=metrics)
    libpod.script("GET", "/containers/abc/json", BUSY, Answer(200, {}))
    await client.call("GET", "/containers/abc/json")
    assert metrics.values == {
        "podman_errors_total{call=containers.json,code=sandbox_busy}": 1,
        "podman_retries_total": 1,
    }
    assert {name: len(found) for name, found in metrics.measured.items()} == {
        "podman_call_seconds{call=containers.json}": 2
    }


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("GET", "/info", "info"),
        ("POST", "/containers/create", "containers.create"),
        ("POST", "/containers/0123abc/start", "containers.start"),
        ("DELETE", "/containers/0123abc", "containers.delete"),
        ("GET", "/containers/json", "containers.json"),
        ("GET", "/images/localhost/podmentor/json:current/json", "images.json"),
        ("GET", "/containers/an-id-as-last-part", "containers"),
        ("GET", "/whatever/an-id", "other"),
    ],
)
def test_names_of_calls_hold_no_ids(method: Literal["GET", "POST", "DELETE"], path: str, name: str) -> None:
    assert call_name(method, path) == name
