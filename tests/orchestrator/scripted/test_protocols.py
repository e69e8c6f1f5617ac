import pytest

from orchestrator.scripted import anthropic, responses
from orchestrator.scripted.protocols import PROTOCOLS, of_request
from orchestrator.scripted.steps import Fail
from orchestrator.scripted.wire import Ask, WireProtocol


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
