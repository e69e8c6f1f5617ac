"""Decides where a run's connections may go.  Pure.

Two questions are asked, one before a name is looked up and one after: may this host and port be asked for at all
(``Rules.decide``), and may the addresses that its name has turned out to have be connected to
(``Rules.address_refusal``).  A name that leads to an internal address leads nowhere, unless a rule names that address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from orchestrator.config.hosts import Address, HostPattern, as_address, normalise_host, parse_pattern

SHOWN_RULES: Final = 12
"""Of the allow-list, in an answer to the agent."""

_V4: Final = tuple(
    (ipaddress.IPv4Network(network), kind)
    for network, kind in (
        ("0.0.0.0/8", "an unspecified"),
        ("10.0.0.0/8", "a private"),
        ("100.64.0.0/10", "a carrier's internal"),
        ("127.0.0.0/8", "a loopback"),
        ("168.63.129.16/32", "a cloud's metadata"),
        ("169.254.0.0/16", "a link-local"),
        ("172.16.0.0/12", "a private"),
        ("192.0.0.0/24", "a reserved"),
        ("192.88.99.0/24", "a reserved"),
        ("192.168.0.0/16", "a private"),
        ("198.18.0.0/15", "a private"),
        ("224.0.0.0/4", "a multicast"),
        ("240.0.0.0/4", "a reserved"),
    )
)
"""Everything else is public, the documentation ranges included: they lead nowhere."""

_V6: Final = tuple(
    (ipaddress.IPv6Network(network), kind)
    for network, kind in (
        ("::/128", "an unspecified"),
        ("::1/128", "a loopback"),
        ("fc00::/7", "a private"),
        ("fe80::/10", "a link-local"),
        ("fec0::/10", "a private"),
        ("ff00::/8", "a multicast"),
        ("2001::/23", "a reserved"),
    )
)
_V6_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")

_EMBEDDING: Final = (ipaddress.IPv6Network("::ffff:0:0/96"), ipaddress.IPv6Network("64:ff9b::/96"))
"""IPv4-mapped and NAT64: IPv6 addresses that stand for the IPv4 address in their last 32 bits."""
_6TO4: Final = ipaddress.IPv6Network("2002::/16")
"""Stands for one as well, but nobody uses it any more."""


@dataclass(frozen=True, slots=True)
class Allow:
    """May be asked for.  ``host`` is normalised."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Deny:
    """May not.  ``reason`` is a sentence for a person, without its final stop."""

    host: str
    port: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rules:
    """One run's allow-list."""

    patterns: tuple[HostPattern, ...]

    @classmethod
    def of(cls, texts: Iterable[str]) -> Rules:
        """From patterns as text.  Raises: ValueError."""
        return cls(tuple(parse_pattern(text) for text in texts))

    def decide(self, host: str, port: int) -> Allow | Deny:
        """Whether a run may ask for ``host``, as a client wrote it, at ``port``."""
        try:
            name = normalise_host(host)
        except ValueError as error:
            return Deny(_shown(host), port, f"the host {error}")
        named = [pattern for pattern in self.patterns if pattern.matches_host(name)]
        if any(port in pattern.ports for pattern in named):
            return Allow(name, port)
        if named:
            ports = sorted({number for pattern in named for number in pattern.ports})
            return Deny(name, port, f"port {port} of this host is not allowed, only {_listed(map(str, ports))}")
        if as_address(name) is not None:
            return Deny(name, port, "an address may only be used when the allow-list names it; use the host's name")
        return Deny(name, port, "the host is not on this run's allow-list")

    def address_refusal(self, address: Address, port: int, *, own: bool = False) -> str | None:
        """Why a host with this address, ``own`` if it is this machine's, may not be connected to; None: it may."""
        kind = internal_kind(address) or ("this machine's own" if own else None)
        if kind is None:
            return None
        plain = unmapped(address)
        for pattern in self.patterns:
            if port in pattern.ports and (named := pattern.address) is not None and unmapped(named) == plain:
                return None
        return f"its name leads to {kind} address"

    def shown(self) -> str:
        """The allow-list for an answer, cut when it is long."""
        if not self.patterns:
            return "nothing"
        more = len(self.patterns) - SHOWN_RULES
        return _listed([*map(str, self.patterns[:SHOWN_RULES]), *([f"{more} more"] if more > 0 else [])])


def internal_kind(address: Address) -> str | None:
    """What makes an address one that is not on the public network (``a loopback``, ...); None: it is public."""
    if isinstance(address, ipaddress.IPv4Address):
        return next((kind for network, kind in _V4 if address in network), None)
    if any(address in network for network in _EMBEDDING):
        return internal_kind(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _6TO4:
        return internal_kind(ipaddress.IPv4Address((int(address) >> 80) & 0xFFFFFFFF)) or "a reserved"
    if (kind := next((kind for network, kind in _V6 if address in network), None)) is not None:
        return kind
    return None if address in _V6_PUBLIC else "a reserved"


def unmapped(address: Address) -> Address:
    """An IPv4-mapped address as the IPv4 address that a connection to it would go to."""
    mapped = getattr(address, "ipv4_mapped", None)
    return address if mapped is None else mapped


def _shown(host: str) -> str:
    """What an agent wrote, safe to print."""
    return "".join(char if char.isprintable() and char.isascii() else "?" for char in host[:253])


def _listed(items: Iterable[str]) -> str:
    *most, last = list(items)
    return f"{', '.join(most)} and {last}" if most else last
