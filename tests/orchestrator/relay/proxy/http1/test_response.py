import pytest

from orchestrator.relay.proxy.http1.body import Chunked, Length, NoBody, UntilEnd
from orchestrator.relay.proxy.http1.message import WireError
from orchestrator.relay.proxy.http1.response import Answer, AnswerFilter, AnswerReader, answer


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\r\n" for text in [*texts, ""]).encode("latin-1")


def answers(data: bytes, method: str = "GET", size: int = 0) -> tuple[list[Answer], bytes]:
    reader = AnswerReader(method)
    heads: list[Answer] = []
    for start in range(0, len(data), size or len(data)):
        piece = data[start : start + (size or len(data))]
        heads += reader.feed(piece)
        if heads and not heads[-1].interim:
            return heads, reader.rest + data[start + len(piece) :]
    return heads, b""


@pytest.mark.parametrize(
    ("fields", "method", "status", "body"),
    [
        (["Content-Length: 5"], "GET", "200 OK", Length(5)),
        (["Transfer-Encoding: chunked"], "GET", "200 OK", Chunked()),
        ([], "GET", "200 OK", UntilEnd()),
        (["Content-Length: 5"], "HEAD", "200 OK", Length(0, announced=5)),
        ([], "HEAD", "200 OK", NoBody()),
        ([], "GET", "204 No Content", NoBody()),
        (["Content-Length: 5"], "GET", "304 Not Modified", Length(0, announced=5)),
        ([], "GET", "200", UntilEnd()),
        ([], "GET", "403 gr\xfcn", UntilEnd()),
    ],
)
def test_answers_are_read(fields: list[str], method: str, status: str, body: object) -> None:
    [head], rest = answers(lines(f"HTTP/1.1 {status}", "Server: x", *fields) + b"body", method)
    assert (head.status, head.body, rest) == (int(status[:3]), body, b"body")
    assert head.fields == (("Server", "x"),)
    assert b"Connection: close\r\n" in head.render()


def test_an_answer_is_written_for_one_connection() -> None:
    data = lines(
        "HTTP/1.0 200 OK",
        "Connection: keep-alive, X-Hop",
        "Keep-Alive: 5",
        "X-Hop: 1",
        "Set-Cookie: a=b",
        "Proxy-Authenticate: Basic",
        "Upgrade: h2c",
        "Content-Length: 2",
    )
    [head], _ = answers(data)
    assert head.render() == lines("HTTP/1.1 200 ", "Set-Cookie: a=b", "Content-Length: 2", "Connection: close")


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_interim_answers_come_before_the_last(size: int) -> None:
    data = lines("HTTP/1.1 100 Continue") + lines("HTTP/1.1 103 Early", "Link: x") + lines("HTTP/1.1 200 OK") + b"rest"
    heads, rest = answers(data, size=size)
    assert [head.status for head in heads] == [100, 103, 200]
    assert heads[0].render() == lines("HTTP/1.1 100 ")
    assert rest == b"rest"


@pytest.mark.parametrize(
    "data",
    [
        lines("HTTP/1.1 200 OK", "Content-Length: 3", "Transfer-Encoding: chunked"),
        lines("HTTP/1.1 200 OK", "Content-Length: 3", "Content-Length: 3"),
        lines("HTTP/1.1 200 OK", "Transfer-Encoding: gzip"),
        lines("HTTP/1.1 101 Switching"),
        lines("HTTP/2 200"),
        lines("HTTP/1.1 20 OK"),
        lines("HTTP/1.1 2000 OK"),
        lines("ICY 200 OK"),
        b"SSH-2.0-OpenSSH_9\r\n\r\n",
        b"HTTP/1.1 200 OK\n\n",
        lines("HTTP/1.1 200 OK", " folded: x"),
        b"HTTP/1.1 200 " + b"x" * 70000,
    ],
)
def test_an_answer_that_is_not_understood_is_not_passed_on(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        answers(data)
    assert caught.value.status == 502


@pytest.mark.parametrize("size", [1, 9, 1000])
def test_an_answer_goes_to_the_client_up_to_its_end(size: int) -> None:
    data = lines("HTTP/1.1 100 Continue") + lines("HTTP/1.1 200 OK", "Content-Length: 4") + b"bodyHTTP/1.1 200 OK"
    passing = AnswerFilter("GET")
    out = b""
    for start in range(0, len(data), size):
        assert passing.done == out.endswith(b"body")
        out += passing.feed(data[start : start + size])
    assert out == lines("HTTP/1.1 100 ") + lines("HTTP/1.1 200 ", "Content-Length: 4", "Connection: close") + b"body"
    assert passing.clean_end()


def test_an_answer_that_breaks_off_does_not_end_well() -> None:
    passing = AnswerFilter("GET")
    assert not passing.clean_end()
    passing.feed(lines("HTTP/1.1 100 Continue"))
    assert not passing.clean_end()
    passing.feed(lines("HTTP/1.1 200 OK", "Content-Length: 4"))
    assert not passing.clean_end()


def test_the_proxys_own_answer_cannot_be_written_into() -> None:
    data = answer(403, "evil\r\nX: \u00e9 denied", "what to do\n", code="egress_denied")
    [head], rest = answers(data)
    assert (head.status, rest) == (403, b"podmentor: evil??X: ? denied\nwhat to do\n")
    assert dict(head.fields)["X-Podmentor-Refusal"] == "egress_denied"
    assert data.startswith(b"HTTP/1.1 403 podmentor: evil??X: ? denied\r\n")
