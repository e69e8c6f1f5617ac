import ipaddress
import socket
from pathlib import Path

import pytest

from orchestrator.relay.proxy.resolver import MAX_ADDRESSES, FileResolver, SystemResolver, UnknownNameError, hosts_in

TEXT = """\
# a comment
192.0.2.1   one.example ONE-MORE.example.   # and one behind
2001:db8::1 one.example
192.0.2.1   one.example
nonsense    one.example
127.0.0.1
192.0.2.2   bad..name two.example
"""


@pytest.mark.parametrize(
    ("host", "addresses"),
    [
        ("one.example", ["192.0.2.1", "2001:db8::1"]),
        ("one-more.example", ["192.0.2.1"]),
        ("two.example", ["192.0.2.2"]),
        ("comment", []),
        ("example", []),
    ],
)
def test_a_hosts_file_is_read_as_one_knows_it(host: str, addresses: list[str]) -> None:
    assert [str(address) for address in hosts_in(TEXT, host)] == addresses


def test_a_name_has_only_so_many_addresses() -> None:
    text = "\n".join(f"192.0.2.{number} many.example" for number in range(100))
    assert len(hosts_in(text, "many.example")) == MAX_ADDRESSES


async def test_a_hosts_file_is_read_anew_for_every_name(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    resolver = FileResolver(path)
    with pytest.raises(OSError, match="No such file"):
        await resolver.resolve("one.example")
    path.write_text("192.0.2.1 one.example\n")
    assert await resolver.resolve("one.example") == [ipaddress.ip_address("192.0.2.1")]
    path.write_text("192.0.2.9 one.example\n")
    assert await resolver.resolve("one.example") == [ipaddress.ip_address("192.0.2.9")]
    with pytest.raises(UnknownNameError):
        await resolver.resolve("two.example")


async def test_the_system_is_asked_once_and_its_addresses_are_put_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(host: str, port: None, type: int) -> list[tuple[object, ...]]:  # noqa: A002
        asked.append((host, port, type))
        if host == "none.example":
            raise socket.gaierror(-2, "Name or service not known")
        return [
            (socket.AF_INET6, type, 6, "", ("fe80::1%lo", 0, 0, 1)),
            (socket.AF_INET, type, 6, "", ("192.0.2.1", 0)),
            (socket.AF_INET, type, 6, "", ("192.0.2.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    resolver = SystemResolver()
    found = await resolver.resolve("one.example")
    assert [str(address) for address in found] == ["fe80::1", "192.0.2.1"]
    assert asked == [("one.example", None, socket.SOCK_STREAM)]
    with pytest.raises(UnknownNameError):
        await resolver.resolve("none.example")
