import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.hosts import Address
from orchestrator.relay.proxy.rules import Allow, Deny, Rules, internal_kind, unmapped

RULES = Rules.of(["api.example.com", "*.example.org", "git.example.net:22", "git.example.net:2222", "192.0.2.7:8080"])


@pytest.mark.parametrize(
    ("host", "port"),
    [
        ("api.example.com", 443),
        ("api.example.com", 80),
        ("API.EXAMPLE.COM.", 443),
        ("a.example.org", 443),
        ("a.b.example.org", 443),
        ("git.example.net", 22),
        ("git.example.net", 2222),
        ("192.0.2.7", 8080),
    ],
)
def test_what_a_rule_names_may_be_asked_for(host: str, port: int) -> None:
    assert RULES.decide(host, port) == Allow(host.lower().rstrip("."), port)


@pytest.mark.parametrize(
    ("host", "port", "reason"),
    [
        ("example.com", 443, "not on this run's allow-list"),
        ("x.api.example.com", 443, "not on this run's allow-list"),
        ("api.example.com.evil.example", 443, "not on this run's allow-list"),
        ("example.org", 443, "not on this run's allow-list"),
        ("badexample.org", 443, "not on this run's allow-list"),
        ("api.example.com", 22, "port 22 of this host is not allowed, only 80 and 443"),
        ("git.example.net", 443, "port 443 of this host is not allowed, only 22 and 2222"),
        ("192.0.2.7", 443, "port 443"),
        ("192.0.2.8", 8080, "an address may only be used"),
        ("[2001:db8::7]", 443, "an address may only be used"),
        ("2001:db8::7", 443, "an address may only be used"),
        ("127.1", 443, "unusual form"),
        ("0x7f.1", 443, "unusual form"),
        ("2130706433", 443, "unusual form"),
        ("api.example.com\0.evil.example", 443, "must be a host name"),
        ("api.example.com/", 443, "must be a host name"),
        ("api.example.com..", 443, "must be a host name"),
        ("", 443, "must be a host name"),
        ("fe80::1%lo", 443, "network interface"),
    ],
)
def test_everything_else_is_denied_with_a_reason(host: str, port: int, reason: str) -> None:
    decision = RULES.decide(host, port)
    assert isinstance(decision, Deny)
    assert reason in decision.reason
    assert decision.host.isprintable()


INTERNAL = [
    ("127.0.0.1", "loopback"),
    ("127.255.255.254", "loopback"),
    ("0.0.0.0", "unspecified"),
    ("0.1.2.3", "unspecified"),
    ("10.1.2.3", "private"),
    ("172.16.0.1", "private"),
    ("172.31.255.255", "private"),
    ("192.168.1.1", "private"),
    ("100.64.0.1", "carrier"),
    ("100.100.100.200", "carrier"),
    ("169.254.169.254", "link-local"),
    ("169.254.170.2", "link-local"),
    ("168.63.129.16", "metadata"),
    ("192.0.0.192", "reserved"),
    ("192.88.99.1", "reserved"),
    ("198.18.0.1", "private"),
    ("224.0.0.1", "multicast"),
    ("239.1.2.3", "multicast"),
    ("240.0.0.1", "reserved"),
    ("255.255.255.255", "reserved"),
    ("::", "unspecified"),
    ("::1", "loopback"),
    ("fe80::1", "link-local"),
    ("fec0::1", "private"),
    ("fc00::1", "private"),
    ("fd00:ec2::254", "private"),
    ("ff02::1", "multicast"),
    ("::7f00:1", "reserved"),
    ("::c000:207", "reserved"),
    ("::ffff:0:7f00:1", "reserved"),
    ("::ffff:127.0.0.1", "loopback"),
    ("::ffff:169.254.169.254", "link-local"),
    ("::ffff:10.0.0.1", "private"),
    ("64:ff9b::7f00:1", "loopback"),
    ("64:ff9b::a9fe:a9fe", "link-local"),
    ("64:ff9b:1::1", "reserved"),
    ("2002:7f00:1::", "loopback"),
    ("2002:a00:1::1", "private"),
    ("2002:c000:207::1", "reserved"),
    ("2001::1", "reserved"),
    ("2001:10::1", "reserved"),
    ("100::1", "reserved"),
    ("5f00::1", "reserved"),
    ("4000::1", "reserved"),
]


@pytest.mark.parametrize(("text", "kind"), INTERNAL)
def test_a_name_that_leads_inside_leads_nowhere(text: str, kind: str) -> None:
    refusal = RULES.address_refusal(ipaddress.ip_address(text), 443)
    assert refusal is not None
    assert kind in refusal


@pytest.mark.parametrize(
    "text",
    [
        "1.1.1.1",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.0.2.7",
        "198.51.100.1",
        "203.0.113.9",
        "223.255.255.255",
        "2606:4700::1111",
        "2001:db8::1",
        "2a00:1450::1",
        "::ffff:192.0.2.7",
        "64:ff9b::c000:207",
        "3fff::1",
    ],
)
def test_public_and_documentation_addresses_may_be_connected_to(text: str) -> None:
    assert RULES.address_refusal(ipaddress.ip_address(text), 443) is None


@pytest.mark.parametrize(("text", "_"), INTERNAL)
def test_a_rule_may_name_an_internal_address_at_its_port(text: str, _: str) -> None:
    rules = Rules.of([f"[{text}]:8443" if ":" in text else f"{text}:8443"])
    address = ipaddress.ip_address(text)
    assert rules.address_refusal(address, 8443) is None
    assert rules.address_refusal(address, 443) is not None


def test_a_rule_names_an_address_in_either_writing() -> None:
    mapped, plain = ipaddress.ip_address("::ffff:10.0.0.1"), ipaddress.ip_address("10.0.0.1")
    for rules in (Rules.of(["10.0.0.1"]), Rules.of(["[::ffff:10.0.0.1]"])):
        assert rules.address_refusal(mapped, 443) is None
        assert rules.address_refusal(plain, 443) is None
    assert Rules.of(["10.0.0.1"]).address_refusal(ipaddress.ip_address("64:ff9b::a00:1"), 443) is not None


def test_a_wildcard_rule_names_no_address() -> None:
    assert Rules.of(["*.example.org"]).address_refusal(ipaddress.ip_address("127.0.0.1"), 443) is not None


@given(st.ip_addresses(v=4))
def test_what_python_knows_to_be_internal_is_internal(address: ipaddress.IPv4Address) -> None:
    documentation = any(
        address in ipaddress.ip_network(network) for network in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")
    )
    if not address.is_global and not documentation:
        assert internal_kind(address) is not None


@given(st.ip_addresses(v=6))
def test_the_same_holds_for_the_new_addresses(address: ipaddress.IPv6Address) -> None:
    documentation = any(address in ipaddress.ip_network(network) for network in ("2001:db8::/32", "3fff::/20"))
    embedding = any(address in ipaddress.ip_network(network) for network in ("::ffff:0:0/96", "64:ff9b::/96"))
    if not address.is_global and not documentation and not embedding:
        assert internal_kind(address) is not None


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "64:ff9b::"]))
def test_an_address_within_an_address_counts(address: ipaddress.IPv4Address, prefix: str) -> None:
    inside = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(address))
    assert internal_kind(inside) == internal_kind(address)


@given(st.ip_addresses())
def test_unmapping_changes_mapped_addresses_only(address: Address) -> None:
    plain = unmapped(address)
    assert plain == address or (address.version, plain.version) == (6, 4)
    assert unmapped(plain) == plain


@given(st.text(max_size=60), st.integers(1, 65535))
def test_no_rules_no_way_out(host: str, port: int) -> None:
    decision = Rules(()).decide(host, port)
    assert isinstance(decision, Deny)
    assert decision.host.isprintable()


def test_the_allow_list_is_shown_cut() -> None:
    assert Rules(()).shown() == "nothing"
    assert Rules.of(["a.example"]).shown() == "a.example"
    assert Rules.of(["a.example", "b.example:22"]).shown() == "a.example and b.example:22"
    assert Rules.of([f"h{n}.example" for n in range(20)]).shown().endswith("h11.example and 8 more")


def test_the_machines_own_address_needs_a_rule_that_names_it_however_public_it_is() -> None:
    own = ipaddress.ip_address("192.0.2.7")
    assert Rules.of(["*.example.org"]).address_refusal(own, 443) is None
    refusal = Rules.of(["*.example.org"]).address_refusal(own, 443, own=True)
    assert refusal == "its name leads to this machine's own address"
    assert Rules.of(["192.0.2.7"]).address_refusal(own, 443, own=True) is None
