import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config.hosts import (
    HostPattern,
    as_address,
    direct_pattern,
    egress_pattern,
    is_direct,
    normalise_host,
    parse_pattern,
)

LABEL = st.from_regex(r"[a-z]([a-z0-9-]{0,10}[a-z0-9])?", fullmatch=True)
NAME = st.lists(LABEL, min_size=1, max_size=4).map(".".join)
PATTERN = st.builds(
    HostPattern, NAME.map(lambda name: f"{name}.example"), st.booleans(), st.none() | st.integers(1, 65535)
)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("API.Example.com", "api.example.com"),
        ("api.example.com.", "api.example.com"),
        ("api.example.com:8443", "api.example.com:8443"),
        ("*.Example.com", "*.example.com"),
        ("*.example.com:22", "*.example.com:22"),
        ("gitlab", "gitlab"),
        ("_dmarc.example.com", "_dmarc.example.com"),
        ("münchen.example", "xn--mnchen-3ya.example"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.7:8080", "192.0.2.7:8080"),
        ("[2001:DB8:0::7]", "[2001:db8::7]"),
        ("2001:db8::7", "[2001:db8::7]"),
        ("[2001:db8::7]:8443", "[2001:db8::7]:8443"),
    ],
)
def test_patterns_have_a_normal_form(text: str, normal: str) -> None:
    assert egress_pattern(text) == normal
    assert egress_pattern(normal) == normal


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("*", "too broad"),
        ("*:443", "too broad"),
        ("*.com", "too broad"),
        ("*.com.", "too broad"),
        ("*.co.uk", "anybody can have a name"),
        ("*.GitHub.io", "anybody can have a name"),
        ("*.amazonaws.com", "anybody can have a name"),
        ("*.storage.googleapis.com", "anybody can have a name"),
        ("*.eu-west-1.compute.amazonaws.com", "anybody can have a name"),
        ("*.kobe.jp", "anybody can have a name"),
        ("*.公司.cn", "anybody can have a name"),
        ("*.192.0.2.7", "no names below"),
        ("*.2.7", "unusual form"),
        ("*.*.example.com", "a star only"),
        ("a*.example.com", "must be a host name"),
        ("*example.com", "a star only"),
        ("api.*.com", "must be a host name"),
        ("https://api.example.com", "must be a host name"),
        ("api.example.com/path", "must be a host name"),
        ("user@api.example.com", "must be a host name"),
        ("", "must be a host name"),
        (".", "must be a host name"),
        ("..", "must be a host name"),
        ("a..b", "must be a host name"),
        (".example.com", "must be a host name"),
        ("-a.example", "must be a host name"),
        ("a" * 64 + ".example", "must be a host name"),
        (".".join(["a" * 60] * 5), "must be a host name"),
        ("a b.example", "must be a host name"),
        ("a.example\n", "must be a host name"),
        ("a.example\0", "must be a host name"),
        ("127.1", "unusual form"),
        ("2130706433", "unusual form"),
        ("0x7f000001", "unusual form"),
        ("0x7f.1", "unusual form"),
        ("0177.0.0.1", "unusual form"),
        ("1.2.3.4.5", "unusual form"),
        ("256.0.0.1", "unusual form"),
        ("fe80::1%eth0", "network interface"),
        ("[fe80::1%25eth0]", "network interface"),
        ("[192.0.2.7]", "not an address"),
        ("[2001:db8::7", "not an address"),
        ("[2001:db8::7]8443", "not an address"),
        ("a.example:", "port"),
        ("a.example:0", "port"),
        ("a.example:65536", "port"),
        ("a.example:+80", "port"),
        ("a.example:\uff18\uff10", "port"),
        ("\ud800.example", "not a host name"),
    ],
)
def test_what_is_no_pattern_or_too_broad_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_pattern(text)


SHARED = """
ac.uk co.uk gov.uk me.uk org.uk com.au net.au org.au com.br com.cn co.in co.jp ne.jp or.jp co.kr com.mx co.nz com.sg
com.tr com.tw co.za amazonaws.com appspot.com azureedge.net azurewebsites.net blogspot.com cloudapp.net cloudfront.net
core.windows.net blob.core.windows.net deno.dev duckdns.org firebaseapp.com fly.dev github.io githubusercontent.com
gitlab.io herokuapp.com netlify.app ngrok.app ngrok.io ngrok-free.app nip.io onrender.com pages.dev r2.dev repl.co
run.app s3.amazonaws.com sslip.io storage.googleapis.com surge.sh trycloudflare.com vercel.app web.app workers.dev
"""


@pytest.mark.parametrize("domain", SHARED.split())
def test_no_update_of_the_public_suffix_list_loses_a_shared_domain(domain: str) -> None:
    with pytest.raises(ValueError, match="anybody can have a name"):
        parse_pattern(f"*.{domain}")
    assert str(parse_pattern(f"mine.{domain}")) == f"mine.{domain}"


@pytest.mark.parametrize("domain", ["python.org", "corp.example", "mirror.internal", "github.com", "city.kobe.jp"])
def test_a_wildcard_below_a_domain_with_one_owner_is_fine(domain: str) -> None:
    assert str(parse_pattern(f"*.{domain}")) == f"*.{domain}"


@given(st.text(max_size=40))
def test_a_normal_form_stays_as_it_is_and_never_widens(text: str) -> None:
    try:
        host = normalise_host(text)
    except ValueError:
        return
    assert normalise_host(host) == host
    assert host == host.lower()
    assert host.isascii()
    assert not set(host) & set(" /\\@?#%*[]\r\n\t\0")


@given(st.ip_addresses())
def test_an_address_names_itself(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> None:
    pattern = parse_pattern(f"[{address}]" if address.version == 6 else str(address))
    assert pattern.address == address
    assert as_address(pattern.host) == address


@given(PATTERN)
def test_a_pattern_is_written_as_it_is_read(pattern: HostPattern) -> None:
    assert parse_pattern(str(pattern)) == pattern
    assert pattern.covers(pattern)


@pytest.mark.parametrize(
    ("wide", "narrow", "covered"),
    [
        ("*.example.com", "a.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "*.b.example.com", True),
        ("*.example.com", "example.com", False),
        ("*.example.com", "badexample.com", False),
        ("*.b.example.com", "*.example.com", False),
        ("a.example.com", "*.example.com", False),
        ("a.example.com", "a.example.com:443", True),
        ("a.example.com", "a.example.com:80", True),
        ("a.example.com", "a.example.com:22", False),
        ("a.example.com:443", "a.example.com", False),
        ("a.example.com:443", "a.example.com:443", True),
        ("192.0.2.7", "192.0.2.8", False),
    ],
)
def test_what_a_pattern_covers(wide: str, narrow: str, *, covered: bool) -> None:
    assert parse_pattern(wide).covers(parse_pattern(narrow)) is covered


@given(PATTERN, PATTERN, NAME, st.integers(1, 65535))
def test_covering_means_that_no_host_is_gained(wide: HostPattern, narrow: HostPattern, name: str, port: int) -> None:
    host = f"{name}.{narrow.host}" if narrow.wildcard else narrow.host
    if wide.covers(narrow) and narrow.matches_host(host):
        assert wide.matches_host(host)
        assert set(narrow.ports) <= set(wide.ports)


@pytest.mark.parametrize(
    ("pattern", "host", "direct"),
    [
        ("a.example", "a.example", True),
        ("a.example", "b.a.example", False),
        ("*.a.example", "b.a.example", True),
        ("*.a.example", "c.b.a.example", True),
        ("*.a.example", "a.example", False),
        ("*.a.example", "ba.example", False),
        ("10.0.0.0/8", "10.9.8.7", True),
        ("10.0.0.0/8", "11.9.8.7", False),
        ("10.0.0.0/8", "2001:db8::1", False),
        ("10.0.0.0/8", "ten.example", False),
        ("2001:db8::/32", "2001:db8::1", True),
        ("*.example", "192.0.2.7", False),
        ("192.0.2.7", "192.0.2.7", True),
    ],
)
def test_what_is_reached_without_the_networks_proxy(pattern: str, host: str, *, direct: bool) -> None:
    assert is_direct(host, [direct_pattern(pattern)]) is direct
    assert not is_direct(host, [])


def test_this_machine_is_never_reached_through_another() -> None:
    assert all(is_direct(host, []) for host in ("localhost", "127.0.0.1", "127.9.9.9", "::1"))
