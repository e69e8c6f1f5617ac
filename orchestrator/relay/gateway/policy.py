"""Decides on one request at a run's gateway: pass it on, answer it here, or refuse it.

Pure.  Three promises hold whatever the request says: a ``Forward`` goes to the route's upstream and below one of its
prefixes; it carries no credential but the real key; the run's token does not leave.  With a grant that has no key
(pass-through) there is no token, and the second promise reads: no credential but the one in the route's own headers.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import unquote, unquote_plus

from orchestrator.contract.gateway import GatewayGrant

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"})
"""TRACE would echo the key, CONNECT would open a tunnel."""

HOP_BY_HOP: Final = frozenset(
    {
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "http2-settings",
    }
)

CREDENTIAL_HEADERS: Final = frozenset(
    {
        "authorization",
        "x-api-key",
        "x-goog-api-key",
        "api-key",
        "x-auth-token",
        "x-access-token",
        "cookie",
        "cookie2",
        "x-amz-security-token",
        "x-goog-iam-authorization-token",
    }
)

DROPPED_HEADERS: Final = (
    HOP_BY_HOP
    | CREDENTIAL_HEADERS
    | frozenset(
        {
            "host",
            "content-length",
            "expect",  # said anew for the connection to the provider
            "accept-encoding",  # always identity, so that answers can be searched for the key
            "range",
            "if-range",  # a key cut in two by a range could not be found
            "forwarded",
            "via",
            "x-real-ip",
            "true-client-ip",
            "x-http-method",
            "x-http-method-override",
            "x-method-override",
        }
    )
)

DROPPED_PREFIXES: Final = ("proxy-", "x-forwarded-", "sec-websocket-")

CREDENTIAL_PARAMETERS: Final = frozenset(
    {
        "key",
        "$key",
        "api_key",
        "api-key",
        "apikey",
        "x-api-key",
        "x-goog-api-key",
        "access_token",
        "oauth_token",
        "authorization",
        "$httpheaders",
        "$httpmethod",
    }
)

_TARGET = re.compile(r"/[!-~]*")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_HIDDEN = re.compile(r"%(?:[01][0-9A-F]|2E|2F|3B|5C|25|7F|C0|C1)", re.IGNORECASE)
"""Escapes that a server behind us may turn into a separator, a dot, another escape or a control character; C0 and C1
begin the longer forms of those that are no UTF-8, and that some decoders read all the same."""


@dataclass(frozen=True, slots=True)
class Forward:
    """Pass the request on with exactly these headers (framing headers are the sender's business)."""

    url: str
    headers: tuple[tuple[str, str], ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Local:
    """Answered here with 200 and no content of interest: CLIs ask for the base URL to see whether it lives."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not passed on.  ``message`` is for a person and quotes nothing of the request."""

    status: int
    code: str
    message: str


Decision = Forward | Local | Refuse
Headers = Sequence[tuple[str, str]]


def decide(*, method: str, target: str, headers: Headers, grant: GatewayGrant) -> Decision:
    """What becomes of the request with this method, this target as it stood in the request line, and these headers."""
    if method not in METHODS:
        return Refuse(403, "method_refused", "this method is not allowed at the gateway")
    if (refusal := _check_headers(headers)) is not None:
        return refusal
    if _TARGET.fullmatch(target) is None:
        return Refuse(403, "target_refused", "only a plain path of the model provider's API may be asked for")
    path, _, query = target.partition("?")
    if path == "/" and method in {"GET", "HEAD"}:
        return Local()
    token: str | None = None
    if grant.api_key is None:
        key_headers = [(name, value) for name, value in headers if name.lower() in grant.route.key_headers]
    else:
        token, key_headers = _check_token(headers, grant.token_sha256, grant.api_key, grant.route.key_headers)
        if token is None:
            return Refuse(401, "token_refused", "the request does not carry the token of this run")
    if (refusal := _check_path(path, grant.route.path_prefixes)) is not None:
        return refusal
    if token is not None and (token in path or token in unquote(path)):
        return Refuse(403, "target_refused", "the token does not belong into the path")
    query = _clean_query(query, token)
    url = f"{grant.route.upstream}{path}?{query}" if query else f"{grant.route.upstream}{path}"
    return Forward(url, (*_clean_headers(headers, token), *key_headers, ("accept-encoding", "identity")))


def _check_headers(headers: Headers) -> Refuse | None:
    """Refuse what cannot be passed on unchanged, and a change of protocol."""
    for name, value in headers:
        if _CONTROL.search(value) is not None or not _encodable(value):
            return Refuse(400, "header_refused", "a header has characters that may not stand in one")
        if name.lower() == "upgrade":
            # 426 makes Codex fall back from its WebSocket to HTTP at once.
            return Refuse(426, "upgrade_refused", "the gateway speaks plain HTTP only; no other protocol")
    return None


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_token(
    headers: Headers, token_sha256: str, api_key: str, wanted: Iterable[str]
) -> tuple[str | None, list[tuple[str, str]]]:
    """The run's token if a key header has it, and such headers with the real key instead; wrong ones are left out."""
    token: str | None = None
    replaced: dict[str, str] = {}
    for name, value in headers:
        lower = name.lower()
        if lower not in wanted:
            continue
        scheme, presented = _split_scheme(lower, value)
        digest = hashlib.sha256(presented.encode()).hexdigest()
        if presented and hmac.compare_digest(digest, token_sha256.lower()):
            token = presented
            replaced[lower] = f"{scheme}{api_key}"
    return token, list(replaced.items())


def _split_scheme(name: str, value: str) -> tuple[str, str]:
    """(``"Bearer "`` or nothing, the token); another scheme gives an empty token."""
    if name != "authorization":
        return "", value.strip()
    scheme, _, rest = value.strip().partition(" ")
    return "Bearer ", rest.strip() if scheme.lower() == "bearer" else ""


def _check_path(path: str, prefixes: Iterable[str]) -> Refuse | None:
    """Refuse a path that could mean another one to the provider, and one below no prefix."""
    parts = re.split("[/;]", path)
    if (
        "//" in path
        or "\\" in path
        or "#" in path
        or "." in parts
        or ".." in parts
        or _BAD_ESCAPE.search(path) is not None
        or _HIDDEN.search(path) is not None
    ):
        return Refuse(403, "target_refused", "the path is not in its plain form")
    if any(path == prefix or path.startswith(prefix.rstrip("/") + "/") for prefix in prefixes):
        return None
    return Refuse(404, "path_refused", "this path is not part of the API that the run may use")


def _clean_query(query: str, token: str | None) -> str:
    """The query without parameters that are, or carry, a credential; all else is left byte for byte."""
    query = query.partition("#")[0]
    kept: list[str] = []
    for group in query.split("&"):
        # Some servers split at ";" too, so a name is looked for behind either.
        names = {unquote_plus(part.partition("=")[0]).strip().lower() for part in group.split(";")}
        if names.isdisjoint(CREDENTIAL_PARAMETERS) and not _spells(token, group):
            kept.append(group)
    cleaned = "&".join(kept)
    # What stood apart could spell the token once the piece between is gone, so nothing is kept then.
    return "" if _spells(token, cleaned) else cleaned


def _spells(token: str | None, text: str) -> bool:
    return token is not None and (token in text or token in unquote_plus(text))


def _clean_headers(headers: Headers, token: str | None) -> list[tuple[str, str]]:
    """The headers that go on, without credentials, hop-by-hop ones and those that the client named as such."""
    named = {
        part.strip().lower() for name, value in headers if name.lower() == "connection" for part in value.split(",")
    }
    return [
        (name, value)
        for name, value in headers
        if (lower := name.lower()) not in DROPPED_HEADERS
        and lower not in named
        and not lower.startswith(DROPPED_PREFIXES)
        and (token is None or (token not in value and token not in name))
    ]
