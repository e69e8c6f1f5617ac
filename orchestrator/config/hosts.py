"""Host patterns, as they stand in allow-lists: what one may say, and when it says too much.  Pure.

``api.example.org`` is that host, ``*.example.org`` every host below it (not itself); ``:PORT`` behind either means
that port only, without it 443 and 80 are meant.  An address is named as it is: ``192.0.2.7``, ``[2001:db8::7]:8443``.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Final, TypeAlias

import idna
from publicsuffixlist import PublicSuffixList

DEFAULT_PORTS: Final = (443, 80)
MAX_HOST: Final = 253
ALSO_SHARED: Final = frozenset(
    {
        "amazonaws.com",
        "core.windows.net",
        "nip.io",
        "sslip.io",
        "storage.googleapis.com",
    }
)
"""Domains below which anybody can get a name, or a name for any address, and that the Public Suffix List lacks."""

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NO_NAME = "must be a host name such as api.example.com, without scheme or path"
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMERIC = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class HostPattern:
    """One line of an allow-list.  ``host`` is normalised; ``port`` None: the default ports."""

    host: str
    wildcard: bool = False
    port: int | None = None

    @property
    def ports(self) -> tuple[int, ...]:
        """The ports that it allows: its own, or 443 and 80."""
        return DEFAULT_PORTS if self.port is None else (self.port,)

    @property
    def address(self) -> Address | None:
        """The address that it names, when it is no host name."""
        return None if self.wildcard else as_address(self.host)

    def matches_host(self, host: str) -> bool:
        """Whether a normalised host is meant, whatever the port."""
        return host.endswith(f".{self.host}") if self.wildcard else host == self.host

    def covers(self, other: HostPattern) -> bool:
        """Whether everything that ``other`` allows is allowed by this one as well."""
        if other.wildcard:
            hosts = self.wildcard and (other.host == self.host or self.matches_host(other.host))
        else:
            hosts = self.matches_host(other.host)
        return hosts and set(other.ports) <= set(self.ports)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'*.' if self.wildcard else ''}{host}{'' if self.port is None else f':{self.port}'}"


def as_address(host: str) -> Address | None:
    """The address that a normalised host is."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def normalise_host(text: str) -> str:
    """A host name in lower-case ASCII without a final dot, or an address in its shortest form, without brackets.

    Raises: ValueError for what is neither; also for numbers that some resolvers take for an address (``127.1``,
    ``0x7f000001``), since the name that was checked would not be the host that is reached.
    """
    if text.startswith("[") or text.count(":") > 1:
        return _ipv6(text)
    host = text.removesuffix(".")
    if not host.isascii():
        try:
            host = idna.encode(host, uts46=True).decode()
        except idna.IDNAError:
            raise ValueError("is not a host name") from None
    host = host.lower()
    if not host or len(host) > MAX_HOST or not all(_LABEL.fullmatch(label) for label in host.split(".")):
        raise ValueError(_NO_NAME)
    if _NUMERIC.fullmatch(host.rpartition(".")[2]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            raise ValueError("is an address in an unusual form; write it as in 192.0.2.7") from None
    return host


def _ipv6(text: str) -> str:
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = ipaddress.IPv6Address(inner)
    except ValueError:
        raise ValueError("is not an address such as [2001:db8::7]") from None
    if address.scope_id is not None:
        raise ValueError("must not name a network interface")
    return str(address)


def parse_pattern(text: str) -> HostPattern:
    """One line of an allow-list.  Raises: ValueError, also for one that is too broad; the message says what to do."""
    host, port = split_port(text)
    if host == "*":
        raise ValueError("is too broad: it would allow everything; name the hosts, or use tier 0")
    if not host.startswith("*"):
        return HostPattern(normalise_host(host), port=port)
    if not host.startswith("*.") or "*" in host[1:]:
        raise ValueError("may have a star only as its whole first part, as in *.example.com")
    domain = normalise_host(host[2:])
    if as_address(domain) is not None:
        raise ValueError("is too broad: an address has no names below it")
    if "." not in domain:
        raise ValueError("is too broad: name at least the domain, as in *.example.com")
    if _is_shared(domain):
        raise ValueError(f"is too broad: anybody can have a name below {domain}; name the hosts")
    return HostPattern(domain, wildcard=True, port=port)


def _is_shared(domain: str) -> bool:
    """Whether anybody can have a name below ``domain``, so that a wildcard there would allow everybody."""
    return domain in ALSO_SHARED or _public_suffixes().is_public(domain)


@cache
def _public_suffixes() -> PublicSuffixList:
    """The Public Suffix List as it was installed; read (20 ms, 3 MiB) when the first wildcard is checked."""
    return PublicSuffixList(accept_unknown=False)


def split_port(text: str) -> tuple[str, int | None]:
    """Host and port of ``HOST``, ``HOST:PORT``, ``[IPV6]`` or ``[IPV6]:PORT``.  Raises: ValueError."""
    if "/" in text:
        raise ValueError(_NO_NAME)
    if text.startswith("["):
        host, bracket, rest = text.partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError("is not an address such as [2001:db8::7]")
        host += bracket
        number = rest[1:] if rest else None
    elif text.count(":") == 1:
        host, _, number = text.partition(":")
    else:
        host, number = text, None
    if number is None:
        return host, None
    if not _PORT.fullmatch(number) or not 0 < int(number) < 65536:
        raise ValueError("has a port that is not between 1 and 65535")
    return host, int(number)


def direct_pattern(text: str) -> str:
    """A line of a ``no_proxy`` list in its normal form: a host, ``*.DOMAIN``, an address or a network such as
    10.0.0.0/8.  Raises: ValueError.
    """
    if "/" in text:
        try:
            return str(ipaddress.ip_network(text))
        except ValueError:
            raise ValueError("is not a network such as 10.0.0.0/8") from None
    if text.startswith("*."):
        return f"*.{normalise_host(text[2:])}"
    return normalise_host(text)


def is_direct(host: str, patterns: Iterable[str]) -> bool:
    """Whether one of the ``direct_pattern``s names a normalised host.  This machine itself is always reached directly:
    to another, ``localhost`` would mean the other one."""
    address = as_address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    for pattern in patterns:
        if "/" in pattern:
            if address is not None and address in ipaddress.ip_network(pattern):
                return True
        elif host == pattern or (pattern.startswith("*.") and address is None and host.endswith(pattern[1:])):
            return True
    return False


def egress_pattern(text: str) -> str:
    """``text`` as a pattern in its normal form.  Raises: ValueError."""
    return str(parse_pattern(text))
