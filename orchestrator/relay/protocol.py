"""What the service and the relay say to each other: one JSON object per line over a Unix socket.  Pure.

A request is ``{"id": n, "op": "...", ...}``; its answer ``{"id": n, "ok": true, ...}`` or
``{"id": n, "ok": false, "code": "...", "error": "sentence"}``.  The first request is ``hello`` with the version:
a relay outlives services, so the two may come from different builds.

| op | request | answer |
| --- | --- | --- |
| hello | version | version, pid |
| configure | network (as ``network_to_wire``) | ; of all runs, from the next connection on |
| grant | grant (as ``grant_to_wire``) | |
| grant_egress | grant (likewise) | |
| revoke | run_id | relay, reports: number of the newest one not taken yet, or 0 |
| granted | | runs: [run_id] |
| totals | | totals: gateway and egress, of all runs since the start |
| subscribe | | relay: an id of this process; from then on reports are pushed to this connection alone |
| taken | number | ; reports up to that number need not be kept any more |
| shutdown | | ; the relay then ends |

A push has no id: ``{"push": "egress", "relay": id, "lost": n, "reports": [[number, report], ...]}``.  Numbers begin
with 1 in each relay process; what was not taken is pushed again to the next subscriber.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from orchestrator.config.hosts import direct_pattern, parse_pattern
from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.egress import EgressGrant, EgressReport, Network, UpstreamProxy
from orchestrator.contract.gateway import GatewayGrant, RelayTotals, Traffic
from orchestrator.errors import InvalidRequestError
from orchestrator.system.socket_paths import SOCKET_PATH_MAX, socket_path_bytes

VERSION: Final = 1
"""Raised with every change to the messages."""
MAX_LINE: Final = 1024 * 1024
"""Bytes of one message."""

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY = re.compile(r"[!-~]+")
_PREFIX = re.compile(r"/[A-Za-z0-9._~:@!$&'()*+,;=/-]*")
_HEADERS: Final = frozenset({"x-api-key", "authorization", "x-goog-api-key"})


def socket_name() -> str:
    """Name of the control socket: the version is in it, so that relays of two versions can live side by side."""
    return f"relay-v{VERSION}.sock"


def encode(message: dict[str, Any]) -> bytes:
    """The message as one line of JSON, its end included."""
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """The message of one line.

    Raises: InvalidRequestError when it is not a JSON object; the message quotes nothing, since a line may hold a key.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        raise InvalidRequestError("not a line of JSON") from None
    if not isinstance(message, dict):
        raise InvalidRequestError("not a JSON object")
    return message


def grant_to_wire(grant: GatewayGrant | EgressGrant) -> dict[str, Any]:
    """The grant as JSON values, a key included."""
    return {**asdict(grant), "socket_path": str(grant.socket_path)}


def grant_from_wire(value: object) -> GatewayGrant:
    """The grant back, checked.

    Raises: InvalidRequestError naming the field; never quoting a value.
    """
    try:
        fields: dict[str, Any] = dict(value)  # type: ignore[call-overload]  # anything else raises below
        route = fields["route"]
        grant = GatewayGrant(
            run_id=str(fields["run_id"]),
            socket_path=Path(fields["socket_path"]),
            token_sha256=str(fields["token_sha256"]),
            route=GatewayRoute(
                upstream=str(route["upstream"]),
                key_headers=tuple(route["key_headers"]),
                path_prefixes=tuple(str(prefix) for prefix in route["path_prefixes"]),
                longest_wait=None if route["longest_wait"] is None else float(route["longest_wait"]),
            ),
            api_key=None if fields["api_key"] is None else str(fields["api_key"]),
            expires_at=float(fields["expires_at"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidRequestError("the grant lacks a field or has one of the wrong type") from None
    check_grant(grant)
    return grant


def check_grant(grant: GatewayGrant) -> None:
    """Refuse a grant that cannot be honoured safely.

    Raises: InvalidRequestError naming the field; never quoting the key.
    """
    _check_place(grant.run_id, grant.socket_path)
    if _SHA256.fullmatch(grant.token_sha256) is None:
        raise InvalidRequestError("token_sha256 is not a SHA-256 in lower-case hex")
    if grant.api_key is not None and _KEY.fullmatch(grant.api_key) is None:
        raise InvalidRequestError("api_key is empty or has characters that may not stand in a header")
    if not grant.route.key_headers or not _HEADERS.issuperset(grant.route.key_headers):
        raise InvalidRequestError(f"key_headers must be among {', '.join(sorted(_HEADERS))}")
    _check_upstream(grant.route.upstream)
    if not grant.route.path_prefixes or not all(
        _PREFIX.fullmatch(prefix) and ".." not in prefix and "//" not in prefix for prefix in grant.route.path_prefixes
    ):
        raise InvalidRequestError("path_prefixes must be plain paths that begin with a slash")


def egress_from_wire(value: object) -> EgressGrant:
    """The grant back, checked.  Raises: InvalidRequestError naming the field."""
    try:
        fields: dict[str, Any] = dict(value)  # type: ignore[call-overload]  # anything else raises below
        grant = EgressGrant(
            run_id=str(fields["run_id"]),
            socket_path=Path(fields["socket_path"]),
            rules=tuple(str(rule) for rule in fields["rules"]),
            expires_at=float(fields["expires_at"]),
        )
    except (KeyError, TypeError, ValueError):
        raise InvalidRequestError("the grant lacks a field or has one of the wrong type") from None
    check_egress(grant)
    return grant


def check_egress(grant: EgressGrant) -> None:
    """Refuse a grant that cannot be honoured.  Raises: InvalidRequestError naming the field."""
    _check_place(grant.run_id, grant.socket_path)
    for rule in grant.rules:
        try:
            parse_pattern(rule)
        except ValueError as error:
            raise InvalidRequestError(f"rules: {rule!r} {error}") from None


def network_to_wire(network: Network) -> dict[str, Any]:
    """The network settings as JSON values, a password included."""
    return {**asdict(network), "ca_file": None if network.ca_file is None else str(network.ca_file)}


def network_from_wire(value: object) -> Network:
    """The settings back.  Raises: InvalidRequestError, quoting nothing."""
    try:
        fields: dict[str, Any] = dict(value)  # type: ignore[call-overload]  # anything else raises below
        proxy = None if fields["proxy"] is None else UpstreamProxy(**fields["proxy"])
        if proxy is not None:
            proxy = replace(proxy, no_proxy=tuple(direct_pattern(pattern) for pattern in proxy.no_proxy))
        return Network(proxy=proxy, ca_file=None if fields["ca_file"] is None else Path(fields["ca_file"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidRequestError("the network lacks a field or has one of the wrong type") from None


def report_to_wire(report: EgressReport) -> dict[str, Any]:
    """The report as JSON values."""
    return asdict(report)


def report_from_wire(value: dict[str, Any]) -> EgressReport:
    """The report back.  Raises: InvalidRequestError."""
    try:
        return EgressReport(**value)
    except TypeError:
        raise InvalidRequestError("the report lacks a field or has one too many") from None


def totals_to_wire(totals: RelayTotals) -> dict[str, Any]:
    """The counts as JSON values."""
    return asdict(totals)


def totals_from_wire(value: dict[str, Any]) -> RelayTotals:
    """The counts back.  Raises: InvalidRequestError."""
    try:
        return RelayTotals(gateway=Traffic(**value["gateway"]), egress=Traffic(**value["egress"]))
    except (KeyError, TypeError):
        raise InvalidRequestError("the totals lack a field or have one too many") from None


def _check_place(run_id: str, socket_path: Path) -> None:
    if _RUN_ID.fullmatch(run_id) is None:
        raise InvalidRequestError("run_id is not a plain name")
    if not socket_path.is_absolute() or socket_path_bytes(socket_path) > SOCKET_PATH_MAX:
        raise InvalidRequestError(f"socket_path must be absolute and at most {SOCKET_PATH_MAX} bytes long")


def _check_upstream(upstream: str) -> None:
    try:
        parts = urlsplit(upstream)
        good = (
            parts.scheme in {"http", "https"}
            and bool(parts.hostname)
            and parts.port != 0
            and parts.username is None
            and parts.password is None
            and not parts.query
            and not parts.fragment
            and not upstream.endswith(("/", "?", "#"))
            and _KEY.fullmatch(upstream) is not None
            and "\\" not in upstream
        )
    except ValueError:
        good = False
    if not good:
        raise InvalidRequestError("upstream must be an http(s) URL without userinfo, query or trailing slash")
