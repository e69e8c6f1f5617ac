import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from orchestrator.scripted import ScriptedProvider, anthropic, responses
from orchestrator.scripted.server import PROTOCOLS, Gate, of_request
from orchestrator.scripted.steps import Fail
from orchestrator.scripted.wire import Ask, WireProtocol


@pytest.fixture
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with ScriptedProvider() as running:
        yield running


def ask(prompt: str = "hi", *, tools: tuple[str, ...] = ("Bash",), **more: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "user", "content": prompt}],
        "tools": [{"name": name} for name in tools],
        **more,
    }


def reported(stream: str) -> str:
    """The text of a stream."""
    events = [json.loads(line[6:]) for line in stream.split("\n") if line.startswith("data: ")]
    return "".join(event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta")


async def post(
    client: aiohttp.ClientSession, url: str, body: Any, *, key: str | None = None
) -> tuple[int, dict[str, Any]]:
    async with client.post(url, json=body, headers={"x-api-key": key} if key else {}) as response:
        return response.status, await response.json()


async def test_it_serves_the_loopback_only() -> None:
    async with ScriptedProvider() as provider:
        assert provider.base_url.startswith("http://127.0.0.1:")


async def test_a_stream(client: aiohttp.ClientSession, provider: ScriptedProvider) -> None:
    async with client.post(f"{provider.base_url}/v1/messages?beta=true", json=ask(stream=True)) as response:
        assert response.headers["content-type"] == "text/event-stream"
        text = await response.text()
    assert reported(text) == "Hello from the scripted provider. There is nothing else to do."
    assert text.endswith('data: {"type": "message_stop"}\n\n')


async def test_without_a_stream_the_answer_comes_whole(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    status, body = await post(client, f"{provider.base_url}/v1/messages", ask())
    assert status == 200
    assert body["content"][0]["text"].startswith("Hello")
    assert body["stop_reason"] == "end_turn"


async def test_the_path_chooses_before_the_prompt_before_the_default(client: aiohttp.ClientSession) -> None:
    async with ScriptedProvider(scenario="500") as provider:
        url = f"{provider.base_url}/v1/messages"
        assert (await post(client, url, ask()))[0] == 500
        assert (await post(client, url, ask("scenario: 403")))[0] == 403
        assert (await post(client, f"{provider.base_url}/s/429/v1/messages", ask("scenario: 403")))[0] == 429
        assert [request.scenario for request in provider.requests] == ["500", "403", "429"]


async def test_requests_are_remembered_with_their_key(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    url = f"{provider.base_url}/s/text/v1/messages?beta=true"
    await post(client, url, ask("one"), key="k1")
    async with client.post(url, json=ask("two"), headers={"Authorization": "Bearer k2"}) as response:
        await response.read()
    await post(client, url, ask("three"))
    seen = provider.requests
    assert [(request.method, request.path, request.key) for request in seen] == [
        ("POST", "/s/text/v1/messages", "k1"),
        ("POST", "/s/text/v1/messages", "k2"),
        ("POST", "/s/text/v1/messages", None),
    ]
    assert seen[0].body["messages"][0]["content"] == "one"
    assert seen[0].headers["x-api-key"] == "k1"


@pytest.mark.parametrize(("key", "status"), [("right", 200), ("wrong", 401), (None, 401)])
async def test_only_the_right_key_is_let_in(client: aiohttp.ClientSession, key: str | None, status: int) -> None:
    async with ScriptedProvider(api_key="right") as provider:
        got, body = await post(client, f"{provider.base_url}/v1/messages", ask(), key=key)
        assert got == status
        assert provider.requests[-1].scenario == ("text" if status == 200 else None)
    if status == 401:
        assert body["error"]["type"] == "authentication_error"


async def test_a_stream_waits_at_its_gate(client: aiohttp.ClientSession, provider: ScriptedProvider) -> None:
    async with client.post(f"{provider.base_url}/s/gate/v1/messages", json=ask(stream=True)) as response:
        await provider.reached("gate")
        first = await response.content.readuntil(b'"ate. "}}\n\n')
        assert reported(first.decode()) == "Before the gate. "
        await provider.release("gate")
        assert reported((await response.read()).decode()) == "Behind the gate."


async def test_slow_goes_step_by_step(client: aiohttp.ClientSession, provider: ScriptedProvider) -> None:
    async with client.post(f"{provider.base_url}/s/slow/v1/messages", json=ask(stream=True)) as response:
        for number in range(1, 6):
            await provider.reached("slow")
            await provider.release("slow", times=1)
            assert f"Sentence {number} of 5. " in reported(
                (await response.content.readuntil(b'of 5. "}}\n\n')).decode()
            )


async def test_a_gate_that_is_never_reached_times_out() -> None:
    async with ScriptedProvider() as provider:
        with pytest.raises(TimeoutError):
            await provider.reached("nowhere", timeout=0.01)


async def test_it_can_end_while_a_stream_waits(client: aiohttp.ClientSession) -> None:
    async with ScriptedProvider() as provider:
        response = await client.post(f"{provider.base_url}/s/hang/v1/messages", json=ask(stream=True))
        await provider.reached("hang")
    with pytest.raises(aiohttp.ClientError):
        await response.read()


async def test_a_client_that_goes_away_frees_its_gate(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    response = await client.post(f"{provider.base_url}/s/gate/v1/messages", json=ask(stream=True))
    await provider.reached("gate")
    response.close()
    status, _ = await post(client, f"{provider.base_url}/v1/messages", ask())
    assert status == 200


@pytest.mark.parametrize("scenario", ["cut", "torn"])
async def test_a_cut_stream_breaks_behind_its_text(
    client: aiohttp.ClientSession, provider: ScriptedProvider, scenario: str
) -> None:
    async with client.post(f"{provider.base_url}/s/{scenario}/v1/messages", json=ask(stream=True)) as response:
        text = await response.content.readuntil(b'breaks"}}\n\n')
        assert reported(text.decode()) == "This answer breaks"
        with pytest.raises(aiohttp.ClientPayloadError):
            await response.read()


async def test_a_cut_answer_without_a_stream_is_no_answer(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    with pytest.raises(aiohttp.ClientError):
        await post(client, f"{provider.base_url}/s/cut/v1/messages", ask())


async def test_the_path_chooses_the_protocol(client: aiohttp.ClientSession) -> None:
    body = {"model": "m", "input": "hi", "tools": [{"type": "function", "name": "exec_command"}]}
    async with ScriptedProvider(api_key="right") as provider:
        url = f"{provider.base_url}/v1/responses"
        async with client.post(url, json=body, headers={"Authorization": "Bearer right"}) as response:
            answer = await response.json()
        async with client.post(url, json=body, headers={"x-api-key": "right"}) as response:
            assert response.status == 401
            refused = await response.json()
    assert answer["output"][0]["content"][0]["text"].startswith("Hello")
    assert refused["error"]["code"] == "invalid_api_key"


async def test_a_broken_stream_ends_with_an_error_event(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    async with client.post(f"{provider.base_url}/s/broken/v1/messages", json=ask(stream=True)) as response:
        assert '"overloaded_error"' in (await response.text()).rstrip().split("\n")[-1]
    assert (await post(client, f"{provider.base_url}/s/broken/v1/messages", ask()))[0] == 529


async def test_a_busy_provider_says_when_to_come_back(
    client: aiohttp.ClientSession, provider: ScriptedProvider
) -> None:
    async with client.post(f"{provider.base_url}/s/busy/v1/messages", json=ask()) as response:
        assert response.status == 429
        assert response.headers["retry-after"] == "1"


async def test_the_small_routes(client: aiohttp.ClientSession, provider: ScriptedProvider) -> None:
    status, body = await post(client, f"{provider.base_url}/v1/messages/count_tokens", ask())
    assert (status, body) == (200, {"input_tokens": 900})
    async with client.get(f"{provider.base_url}/v1/models") as response:
        assert (await response.json())["data"][0]["id"] == "scripted"
    async with client.head(provider.base_url) as response:
        assert response.status == 404


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/messages"),
        ("POST", "/v1/models"),
        ("POST", "/v1/files"),
        ("POST", "/x/v1/messages"),
        ("GET", "/v1/messages/count_tokens"),
    ],
)
async def test_other_paths_are_not_there(
    client: aiohttp.ClientSession, provider: ScriptedProvider, method: str, path: str
) -> None:
    async with client.request(method, f"{provider.base_url}{path}") as response:
        assert response.status == 404


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[]", b'{"messages": 7}'])
async def test_a_body_that_is_no_request_is_refused(
    client: aiohttp.ClientSession, provider: ScriptedProvider, body: bytes
) -> None:
    async with client.post(f"{provider.base_url}/v1/messages", data=body) as response:
        assert response.status == 400
        assert (await response.json())["error"]["type"] == "invalid_request_error"


async def test_it_can_be_paced_for_people(client: aiohttp.ClientSession) -> None:
    async with ScriptedProvider(pace=0.001) as paced:
        response = await client.post(f"{paced.base_url}/v1/messages", json=ask(stream=True))
        assert reported(await response.text()).startswith("Hello")


async def test_a_gate_is_closed_until_it_is_released() -> None:
    gate = Gate()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    await gate.release(None)
    await waiter
    await gate.wait()  # open for all to come


async def test_so_many_pass_as_are_let_through() -> None:
    gate = Gate()
    waiters = [asyncio.create_task(gate.wait()) for _ in range(3)]
    await gate.reached()
    await gate.release(2)
    done, pending = await asyncio.wait(waiters, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    while len(done) < 2:
        done, pending = await asyncio.wait(waiters, timeout=5, return_when=asyncio.FIRST_COMPLETED)
    await gate.reached()
    assert len(pending) == 1
    await gate.release(1)
    await asyncio.wait_for(asyncio.gather(*waiters), 5)


async def test_a_pass_given_beforehand_is_used_once() -> None:
    gate = Gate()
    await gate.release(1)
    await gate.wait()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    waiter.cancel()
    await asyncio.wait([waiter])


async def test_a_gate_can_be_closed_again() -> None:
    gate = Gate()
    await gate.release(None)
    await gate.hold()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    assert not waiter.done()
    waiter.cancel()
    await asyncio.wait([waiter])


async def test_a_stream_that_went_away_waits_no_more() -> None:
    gate = Gate()
    waiter = asyncio.create_task(gate.wait())
    await gate.reached()
    waiter.cancel()
    await asyncio.wait([waiter])
    reached = asyncio.create_task(gate.reached())
    second = asyncio.create_task(gate.wait())
    await asyncio.wait_for(reached, 5)
    second.cancel()
    await asyncio.wait([second])


@pytest.mark.parametrize(
    ("method", "path", "protocol"),
    [
        ("POST", "/v1/messages", anthropic),
        ("POST", "/v1/messages/count_tokens", anthropic),
        ("GET", "/v1/models", anthropic),
        ("POST", "/v1/responses", responses),
        ("GET", "/v1/messages", None),
        ("POST", "/v1/messages/", None),
        ("GET", "/", None),
    ],
)
def test_a_request_finds_its_protocol(method: str, path: str, protocol: WireProtocol | None) -> None:
    assert of_request(method, path) is protocol


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_each_refuses_a_body_that_is_no_request(protocol: WireProtocol) -> None:
    with pytest.raises(ValueError, match=r".+"):
        protocol.read_conversation(Ask(path="/", body={}))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 429, 500, 502, 503, 529])
def test_each_words_every_error(protocol: WireProtocol, status: int) -> None:
    assert "error" in protocol.error_body(Fail(status))
    assert "the reason" in str(protocol.error_body(Fail(status, "the reason")))
