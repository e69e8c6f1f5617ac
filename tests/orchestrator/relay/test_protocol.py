from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.egress import EgressGrant, EgressReport, Network, UpstreamProxy
from orchestrator.contract.gateway import GatewayGrant
from orchestrator.errors import InvalidRequestError
from orchestrator.relay.protocol import (
    VERSION,
    check_egress,
    check_grant,
    decode,
    egress_from_wire,
    encode,
    grant_from_wire,
    grant_to_wire,
    network_from_wire,
    network_to_wire,
    report_from_wire,
    report_to_wire,
    socket_name,
)

ROUTE = GatewayRoute(
    upstream="https://api.example.test", key_headers=("x-api-key",), path_prefixes=("/v1/messages",), longest_wait=60.0
)
GRANT = GatewayGrant(
    run_id="run-1",
    socket_path=Path("/run/pm/run-1/gateway.sock"),
    token_sha256="ab" * 32,
    route=ROUTE,
    api_key="sk-secret",
    expires_at=12.5,
)


def test_a_grant_survives_the_way_through_json() -> None:
    assert grant_from_wire(decode(encode({"grant": grant_to_wire(GRANT)}))["grant"]) == GRANT


def test_the_version_is_in_the_sockets_name() -> None:
    assert socket_name() == f"relay-v{VERSION}.sock"


@pytest.mark.parametrize("line", [b"", b"sk-secret", b"[1]", b'"sk-secret"', b"\xff", b"[" * 100_000])
def test_a_line_that_is_no_object_is_refused_without_quoting_it(line: bytes) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        decode(line)
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"run_id": ""}, "run_id"),
        ({"socket_path": Path("relative.sock")}, "socket_path"),
        ({"socket_path": Path("/" + "x" * 107)}, "socket_path"),
        ({"token_sha256": "sk-secret"}, "token_sha256"),
        ({"api_key": ""}, "api_key"),
        ({"api_key": "sk-secret\r\nX-Other: 1"}, "api_key"),
        ({"api_key": "sk-secret "}, "api_key"),
        ({"route": replace(ROUTE, key_headers=())}, "key_headers"),
        ({"route": replace(ROUTE, key_headers=("cookie",))}, "key_headers"),  # type: ignore[arg-type]
        ({"route": replace(ROUTE, path_prefixes=())}, "path_prefixes"),
        ({"route": replace(ROUTE, path_prefixes=("v1",))}, "path_prefixes"),
        ({"route": replace(ROUTE, path_prefixes=("/v1/..",))}, "path_prefixes"),
        ({"route": replace(ROUTE, path_prefixes=("/v1?x",))}, "path_prefixes"),
        *(
            ({"route": replace(ROUTE, upstream=upstream)}, "upstream")
            for upstream in (
                "",
                "api.example.test",
                "ftp://x",
                "https://",
                "https://x/",
                "https://x?",
                "https://x?a=1",
                "https://x#",
                "https://u:p@x",
                "https://u@x",
                "https://x\\@y",
                "https://x y",
                "https://x:99999",
                "https://[::1",
                "https://x\n",
            )
        ),
    ],
)
def test_a_grant_that_cannot_be_honoured_safely_is_refused_without_quoting_the_key(
    changes: dict[str, Any], word: str
) -> None:
    with pytest.raises(InvalidRequestError, match=word) as caught:
        check_grant(replace(GRANT, **changes))
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "upstream", ["http://127.0.0.1:8099/s/text", "https://[::1]:8443", "https://api.example.test:443/v1"]
)
def test_upstreams_with_port_and_path_are_fine(upstream: str) -> None:
    check_grant(replace(GRANT, route=replace(ROUTE, upstream=upstream)))


@pytest.mark.parametrize("field", ["run_id", "socket_path", "token_sha256", "api_key", "expires_at", "route"])
def test_a_missing_or_mistyped_field_is_refused(field: str) -> None:
    wire = grant_to_wire(GRANT)
    without = {name: value for name, value in wire.items() if name != field}
    for broken in (without, [wire], None, "sk-secret", {**wire, "expires_at": "sk-secret"}, {**wire, "route": 3}):
        with pytest.raises(InvalidRequestError) as caught:
            grant_from_wire(broken)
        assert "secret" not in caught.value.message


def test_a_grant_without_a_key_stays_one() -> None:
    grant = replace(GRANT, api_key=None)
    assert grant_from_wire(decode(encode({"grant": grant_to_wire(grant)}))["grant"]) == grant


EGRESS = EgressGrant(
    run_id="run-1",
    socket_path=Path("/run/pm/run-1/egress.sock"),
    rules=("*.example.org", "192.0.2.7:22"),
    expires_at=1.5,
)


def test_an_egress_grant_survives_the_way_through_json() -> None:
    assert egress_from_wire(decode(encode({"grant": grant_to_wire(EGRESS)}))["grant"]) == EGRESS


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"socket_path": Path("relative.sock")}, "socket_path"),
        ({"socket_path": Path("/" + "x" * 107)}, "socket_path"),
        ({"rules": ("*",)}, "too broad"),
        ({"rules": ("a.example", "https://a.example")}, "host name"),
    ],
)
def test_an_egress_grant_that_cannot_be_honoured_names_what_is_wrong(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=word):
        check_egress(replace(EGRESS, **changes))
    with pytest.raises(InvalidRequestError, match=word):
        egress_from_wire(grant_to_wire(replace(EGRESS, **changes)))


@pytest.mark.parametrize("value", [None, 1, {}, {"run_id": "r"}, {**grant_to_wire(EGRESS), "rules": 5}])
def test_what_is_no_egress_grant_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequestError):
        egress_from_wire(value)


NETWORK = Network(
    proxy=UpstreamProxy(host="p.example", port=1, username="u", password="sk-secret", no_proxy=("*.a.example", "::1")),
    ca_file=Path("/ca.pem"),
)


@pytest.mark.parametrize("network", [NETWORK, Network()])
def test_network_settings_survive_the_way_through_json(network: Network) -> None:
    assert network_from_wire(decode(encode({"n": network_to_wire(network)}))["n"]) == network


@pytest.mark.parametrize(
    "value",
    [
        None,
        "sk-secret",
        {},
        {"proxy": None},
        {"proxy": {"password": "sk-secret"}, "ca_file": None},
        {"proxy": 3, "ca_file": None},
        {"proxy": None, "ca_file": 3},
        {"proxy": {**network_to_wire(NETWORK)["proxy"], "no_proxy": ["10.0.0.1/8"]}, "ca_file": None},
    ],
)
def test_what_is_no_network_is_refused_without_quoting_it(value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        network_from_wire(value)
    assert "secret" not in caught.value.message


def test_a_report_survives_the_way_through_json() -> None:
    report = EgressReport(run_id="r", verdict="denied", host="a.example", port=443, count=3, reason="no")
    assert report_from_wire(decode(encode(report_to_wire(report)))) == report
    with pytest.raises(InvalidRequestError):
        report_from_wire({"run_id": "r", "more": 1})
