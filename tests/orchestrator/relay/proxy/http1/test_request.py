import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.relay.proxy.http1.body import Chunked, Length, NoBody
from orchestrator.relay.proxy.http1.message import MAX_FIELDS, WireError
from orchestrator.relay.proxy.http1.request import MAX_HEAD, Connect, Head, HeadReader, Request
from tests.orchestrator.hang import not_for_ever


def read(data: bytes) -> Head | None:
    return HeadReader().feed(data)


def lines(*texts: str) -> bytes:
    return "".join(f"{text}\r\n" for text in [*texts, ""]).encode("latin-1")


def get(*fields: str, target: str = "http://api.example.com/x", method: str = "GET", version: str = "1.1") -> bytes:
    hosts = [] if any(field.lower().startswith("host:") for field in fields) else ["Host: api.example.com"]
    return lines(f"{method} {target} HTTP/{version}", *hosts, *fields)


@pytest.mark.parametrize(
    ("data", "head"),
    [
        (lines("CONNECT api.example.com:443 HTTP/1.1", "Host: api.example.com:443"), Connect("api.example.com", 443)),
        (lines("CONNECT api.example.com:443 HTTP/1.1", "Host: API.example.com"), Connect("api.example.com", 443)),
        (lines("CONNECT api.example.com:443 HTTP/1.0"), Connect("api.example.com", 443)),
        (lines("CONNECT [2001:db8::7]:443 HTTP/1.1"), Connect("[2001:db8::7]", 443)),
        (lines("CONNECT 127.1:443 HTTP/1.1", "Host: 127.1:443"), Connect("127.1", 443)),
        (lines("CONNECT a.example:443 HTTP/1.1", "Proxy-Connection: keep-alive", "Content-Length: 0"), None),
    ],
)
def test_connect_is_read(data: bytes, head: Head | None) -> None:
    if head is None:
        with pytest.raises(WireError, match="CONNECT has no body"):
            read(data)
    else:
        assert read(data) == head


@pytest.mark.parametrize(
    ("target", "host", "port", "path"),
    [
        ("http://api.example.com/x?y=1", "api.example.com", 80, "/x?y=1"),
        ("http://api.example.com", "api.example.com", 80, "/"),
        ("http://api.example.com?q", "api.example.com", 80, "/?q"),
        ("HTTP://api.example.com/", "api.example.com", 80, "/"),
        ("http://api.example.com:80/", "api.example.com", 80, "/"),
    ],
)
def test_a_whole_url_is_read(target: str, host: str, port: int, path: str) -> None:
    head = read(get(target=target))
    assert isinstance(head, Request)
    assert (head.host, head.port, head.target) == (host, port, path)


def test_a_request_is_written_anew_for_one_connection() -> None:
    head = read(
        get(
            "Accept: */*",
            "Connection: close, X-Once",
            "X-Once: 1",
            "Keep-Alive: timeout=5",
            "TE: trailers",
            "Proxy-Authorization: Basic eA==",
            "Proxy-Connection: keep-alive",
            "Upgrade: websocket",
            "X-Text: grün",
            "Authorization: Bearer t",
            "Content-Length: 3",
            method="POST",
            target="http://api.example.com:8080/x",
        ).replace(b"Host: api.example.com", b"Host: api.example.com:8080")
    )
    assert isinstance(head, Request)
    assert head.render() == lines(
        "POST /x HTTP/1.1",
        "Host: api.example.com:8080",
        "Accept: */*",
        "X-Text: grün",
        "Authorization: Bearer t",
        "Content-Length: 3",
        "Connection: close",
    )


@pytest.mark.parametrize(
    ("fields", "body"),
    [
        ([], NoBody()),
        (["Content-Length: 0"], Length(0)),
        (["Content-Length: 12"], Length(12)),
        (["Transfer-Encoding: chunked"], Chunked()),
        (["Transfer-Encoding:  Chunked "], Chunked()),
    ],
)
def test_the_body_is_what_the_fields_say(fields: list[str], body: object) -> None:
    head = read(get(*fields, method="POST"))
    assert isinstance(head, Request)
    assert head.body == body


SMUGGLING = [
    get("Content-Length: 3", "Transfer-Encoding: chunked"),
    get("Transfer-Encoding: chunked", "Content-Length: 3"),
    get("Content-Length: 3", "Content-Length: 3"),
    get("Content-Length: 3", "Content-Length: 4"),
    get("Content-Length: 3, 3"),
    get("Content-Length: +3"),
    get("Content-Length: 0x3"),
    get("Content-Length: -1"),
    get("Content-Length: 3 "[:-1] + "\x0b"),
    get("Content-Length:"),
    get("Content-Length: 9999999999999999"),
    get("Content-Length: \u00b2"),
    get("content_length: 3"),
    get("Transfer_Encoding: chunked"),
    get("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    get("Transfer-Encoding: chunked, chunked"),
    get("Transfer-Encoding: gzip, chunked"),
    get("Transfer-Encoding: identity"),
    get("Transfer-Encoding: xchunked"),
    get("Transfer-Encoding: \x0bchunked"),
    get("Transfer-Encoding: chunked", version="1.0"),
    get("Transfer-Encoding : chunked"),
    get("Content-Length : 3"),
    get(" Content-Length: 3"),
    get("X: a", " Transfer-Encoding: chunked"),
    get("X: a", "\tfolded"),
    get("X: a\nContent-Length: 3"),
    get("X: a\rContent-Length: 3"),
    get("X: a\0b"),
    get("X: a\x7fb"),
    get(": no name"),
    get("no colon"),
    get("Na me: x"),
    get("Host: api.example.com", "Host: api.example.com"),
    get("Host: api.example.com", "host: evil.example"),
    get("Host: evil.example"),
    get("Host: api.example.com:8080"),
    get("Host: api.example.com, evil.example"),
    lines("GET http://api.example.com/ HTTP/1.1"),
    get().replace(b"\r\n", b"\n"),
    get().replace(b"Host", b"\r\nHost"[1:]),
    b"\r\n" + get(),
    b" " + get(),
    get(target="http://user@api.example.com/"),
    get(target="http://api.example.com@evil.example/"),
    get(target="http://api.example.com#@evil.example/"),
    get(target="http://api.example.com/#x"),
    get(target="http://api.example.com:/"),
    get(target="http://api.example.com:80:81/"),
    get(target="http://api.example.com:99999/"),
    get(target="http:///path"),
    get(target="http:/api.example.com/"),
    get(target="/http://api.example.com/"),
    get(target="//api.example.com/"),
    get(target="*"),
    get(target="https://api.example.com/"),
    get(target="ftp://api.example.com/"),
    get(target="file:///etc/passwd"),
    get(target="http://api.example.com/a b"),
    get(target="http://api.example.com/\tb"),
    get(target="http://api.example.com/\x00"),
    get(target="http://api.example.com/\u00e9"),
    get(method="get"),
    get(method="G@T"),
    get(method=""),
    get(method="TRACE"),
    get(version="2.0"),
    get(version="0.9"),
    get(version="1.2"),
    get(version="1.1 "),
    get(version="1.01"),
    lines("GET http://api.example.com/"),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n",
    b"\x05\x01\x00\n",
    lines("CONNECT api.example.com HTTP/1.1"),
    lines("CONNECT http://api.example.com:443/ HTTP/1.1"),
    lines("CONNECT api.example.com:443/ HTTP/1.1"),
    lines("CONNECT :443 HTTP/1.1"),
    lines("CONNECT a@api.example.com:443 HTTP/1.1"),
    lines("CONNECT 2001:db8::7:443 HTTP/1.1"),
    lines("CONNECT api.example.com:443 HTTP/1.1", "Host: evil.example:443"),
    lines("CONNECT api.example.com:443 HTTP/1.1", "Host: api.example.com:444"),
    lines("CONNECT api.example.com:443 HTTP/1.1", "Content-Length: 5"),
    lines("CONNECT api.example.com:443 HTTP/1.1", "Transfer-Encoding: chunked"),
    lines("CONNECT api.example.com:443 HTTP/1.1", "Host: api.example.com:443", "Host: api.example.com:443"),
]


@pytest.mark.parametrize("data", SMUGGLING)
def test_what_two_readers_could_read_in_two_ways_is_refused(data: bytes) -> None:
    with pytest.raises(WireError) as caught:
        read(data)
    assert 400 <= caught.value.status < 600
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("data", SMUGGLING)
def test_it_is_refused_however_it_is_cut(data: bytes) -> None:
    whole = outcome(data, len(data))
    assert outcome(data, 1) == whole
    assert outcome(data, 7) == whole


def outcome(data: bytes, size: int) -> object:
    reader = HeadReader()
    try:
        for start in range(0, len(data), size):
            if (head := reader.feed(data[start : start + size])) is not None:
                return head, reader.rest + data[start + size :]
    except WireError as error:
        return error.status, error.message
    return None


def test_a_head_is_bounded() -> None:
    padding = "x" * (MAX_HEAD - len(get("X: ")))
    assert read(get(f"X: {padding}")) is not None
    for data in (get(f"X: {padding}x"), b"GET " + b"x" * MAX_HEAD, get(*["X: 1"] * MAX_FIELDS)):
        for size in (1, 4096, len(data)):
            assert outcome(data, size) in {(431, "the head is too large"), (431, "there are too many header fields")}


def test_what_stands_behind_the_head_is_kept() -> None:
    reader = HeadReader()
    assert reader.feed(lines("CONNECT a.example:443 HTTP/1.1") + b"\x16\x03\x01") == Connect("a.example", 443)
    assert reader.rest == b"\x16\x03\x01"


TOKEN = st.text("ABCXYZabcxyz0189-!#$%&'*+.^_`|~", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f"), max_size=30)
FIELD = st.tuples(TOKEN, VALUE)
ANY = st.text(st.characters(max_codepoint=0xFF), max_size=12)


@given(
    st.sampled_from(["GET", "POST", "CONNECT"]),
    st.from_regex(r"(http://)?[a-z.@:0-9#?/\[\]%-]{0,30}", fullmatch=True),
    st.lists(
        FIELD
        | st.tuples(
            st.sampled_from(["Host", "Content-Length", "Transfer-Encoding", "Connection"]),
            st.sampled_from(["a.example", "chunked", "3", "close", "host"]),
        ),
        max_size=5,
    ),
    ANY,
    st.integers(1, 40),
)
def test_any_cutting_gives_the_same(
    method: str, target: str, fields: list[tuple[str, str]], noise: str, size: int
) -> None:
    data = lines(f"{method} {target} HTTP/1.1", "Host: a.example", *(f"{n}: {v}" for n, v in fields)) + noise.encode(
        "latin-1"
    )
    assert outcome(data, size) == outcome(data, len(data))


@given(st.lists(FIELD, max_size=6), st.from_regex(r"/[!-\"$-~]{0,20}", fullmatch=True), st.binary(max_size=20))
def test_what_is_passed_on_is_read_back_as_the_same_one_request(
    fields: list[tuple[str, str]], path: str, behind: bytes
) -> None:
    data = get(*(f"{name}: {value}" for name, value in fields), target=f"http://api.example.com{path}") + behind
    try:
        head = read(data)
    except WireError:
        return
    assert isinstance(head, Request)
    written = head.render()
    assert written.endswith(b"\r\n\r\n")
    assert written.count(b"\r\n\r\n") == 1
    assert not re.search(rb"[^\r]\n|\r[^\n]|\0", written)
    again = read(written.replace(b" /", b" http://api.example.com/", 1))
    assert again == head


@pytest.mark.parametrize("start", [b"X:", b"X: a", b"X", b"Host:"])
@pytest.mark.parametrize("middle", [b" ", b"\t", b" \t", b"a ", b":"])
def test_no_line_takes_long_to_refuse(start: bytes, middle: bytes) -> None:
    fill = middle * (15_000 // len(middle))
    with not_for_ever(), pytest.raises(WireError):
        read(b"GET http://api.example.com/ HTTP/1.1\r\nHost: api.example.com\r\n" + start + fill + b"\0\r\n\r\n")


def test_blanks_around_a_value_are_no_part_of_it() -> None:
    head = read(get("X: \t a  b\t ", "Y:", "Z:   "))
    assert isinstance(head, Request)
    assert head.fields == (("X", "a  b"), ("Y", ""), ("Z", ""))
