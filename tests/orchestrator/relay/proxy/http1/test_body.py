import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.relay.proxy.http1.body import Body, BodyError, Chunked, Length, NoBody, UntilEnd


def passed(body: Body, data: bytes, size: int) -> tuple[bytes, bool] | str:
    out = b""
    try:
        for start in range(0, len(data), size):
            out += body.feed(data[start : start + size])
    except BodyError as error:
        return str(error)
    return out, body.done


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks) + end


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_body_ends_where_it_says(size: int) -> None:
    assert passed(Length(5), b"12345GET / HTTP/1.1", size) == (b"12345", True)
    assert passed(Length(0), b"GET /", size) == (b"", True)
    assert passed(Length(0, announced=9), b"x", size) == (b"", True)
    assert passed(NoBody(), b"GET /", size) == (b"", True)
    assert passed(UntilEnd(), b"everything", size) == (b"everything", False)
    data = chunked(b"abc", b"de")
    assert passed(Chunked(), data + b"GET /", size) == (data, True)
    data = chunked(b"abc", end=b"0\r\nX-Sum: 1\r\n\r\n")
    assert passed(Chunked(), data + b"GET /", size) == (data, True)
    data = b"3;name=value\r\nabc\r\n000\r\n\r\n"
    assert passed(Chunked(), data + b"GET /", size) == (data, True)


def test_a_stream_may_end_only_where_the_body_does() -> None:
    assert NoBody().clean_end()
    assert UntilEnd().clean_end()
    assert not Length(1).clean_end()
    half = Chunked()
    half.feed(b"3\r\nab")
    assert not half.clean_end()
    whole = Chunked()
    whole.feed(chunked(b"ab"))
    assert whole.clean_end()


@pytest.mark.parametrize(
    "data",
    [
        b"3\nabc\r\n0\r\n\r\n",
        b"3\r\nabcd\r\n",
        b"3\r\nabc\n0\r\n",
        b"3\r\nabcX\n",
        b"+3\r\nabc\r\n",
        b"0x3\r\nabc\r\n",
        b"-1\r\n",
        b"\r\n",
        b"g\r\n",
        b" 3\r\nabc\r\n",
        b"3;\x00\r\nabc\r\n",
        b"3 x\r\nabc\r\n",
        b"1234567890abcdef\r\n",
        b"3;" + b"x" * 300 + b"\r\n",
        b"0" * 400,
        b"0\r\nbad trailer\r\n\r\n",
        b"0\r\n folded: x\r\n\r\n",
        b"0\r\nX: a\nY: b\r\n\r\n",
        b"0\r\n" + b"X: 1\r\n" * 3000,
    ],
)
@pytest.mark.parametrize("size", [1, 7, 100000])
def test_a_broken_chunk_is_not_passed_on(data: bytes, size: int) -> None:
    assert isinstance(passed(Chunked(), data, size), str)


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.binary(max_size=20), st.integers(1, 30))
def test_any_cutting_passes_the_same(chunks: list[bytes], behind: bytes, size: int) -> None:
    data = chunked(*chunks)
    assert passed(Chunked(), data + behind, size) == (data, True)


@given(st.binary(max_size=60), st.integers(1, 10))
def test_nothing_breaks_it(data: bytes, size: int) -> None:
    whole, cut = passed(Chunked(), data, len(data) or 1), passed(Chunked(), data, size)
    assert isinstance(whole, str) == isinstance(cut, str)
    if not isinstance(whole, str):
        assert whole == cut
        assert data.startswith(whole[0])
