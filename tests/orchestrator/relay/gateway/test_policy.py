import hashlib
import string
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote_plus

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from orchestrator.contract.adapter import GatewayRoute
from orchestrator.contract.gateway import GatewayGrant
from orchestrator.relay.gateway.policy import CREDENTIAL_HEADERS, Decision, Forward, Local, Refuse, decide

TOKEN = "tok-0123456789abcdef"
OTHER = "tok-of-another-run-987"
KEY = "sk-real-secret"
UPSTREAM = "https://api.example.test/base"
ROUTE = GatewayRoute(
    upstream=UPSTREAM,
    key_headers=("x-api-key", "authorization", "x-goog-api-key"),
    path_prefixes=("/v1/messages", "/v1beta/models/"),
)
GRANT = GatewayGrant(
    run_id="r",
    socket_path=Path("/run/r/gateway.sock"),
    token_sha256=hashlib.sha256(TOKEN.encode()).hexdigest(),
    route=ROUTE,
    api_key=KEY,
    expires_at=time.time() + 60,
)
GOOD = (("x-api-key", TOKEN),)


def ask(
    target: str = "/v1/messages",
    headers: tuple[tuple[str, str], ...] = GOOD,
    method: str = "POST",
    grant: GatewayGrant = GRANT,
) -> Decision:
    return decide(method=method, target=target, headers=headers, grant=grant)


def forwarded(decision: Decision) -> Forward:
    assert isinstance(decision, Forward), decision
    return decision


def code(decision: Decision) -> tuple[int, str]:
    assert isinstance(decision, Refuse), decision
    return decision.status, decision.code


@pytest.mark.parametrize(
    ("sent", "goes_on"),
    [
        (("x-api-key", TOKEN), ("x-api-key", KEY)),
        (("X-Api-Key", TOKEN), ("x-api-key", KEY)),
        (("Authorization", f"Bearer {TOKEN}"), ("authorization", f"Bearer {KEY}")),
        (("authorization", f"bearer   {TOKEN}"), ("authorization", f"Bearer {KEY}")),
        (("x-goog-api-key", TOKEN), ("x-goog-api-key", KEY)),
    ],
)
def test_the_key_takes_the_tokens_place_in_the_same_header(sent: tuple[str, str], goes_on: tuple[str, str]) -> None:
    decision = forwarded(ask(headers=(sent, ("content-type", "application/json"))))
    assert decision.url == UPSTREAM + "/v1/messages"
    assert decision.headers == (("content-type", "application/json"), goes_on, ("accept-encoding", "identity"))


@pytest.mark.parametrize(
    "headers",
    [
        (),
        (("x-api-key", OTHER),),
        (("x-api-key", ""),),
        (("x-api-key", f"Bearer {TOKEN}"),),
        (("authorization", TOKEN),),
        (("authorization", f"Basic {TOKEN}"),),
        (("api-key", TOKEN),),
        (("cookie", f"x-api-key={TOKEN}"),),
        (("x-api-key", KEY),),
    ],
)
def test_without_the_runs_token_nothing_goes_on(headers: tuple[tuple[str, str], ...]) -> None:
    assert code(ask(headers=headers)) == (401, "token_refused")


def test_the_token_counts_only_in_the_headers_of_the_route() -> None:
    grant = GatewayGrant(
        run_id="r",
        socket_path=GRANT.socket_path,
        token_sha256=GRANT.token_sha256,
        api_key=KEY,
        expires_at=GRANT.expires_at,
        route=GatewayRoute(upstream=UPSTREAM, key_headers=("authorization",), path_prefixes=("/v1/messages",)),
    )
    assert code(ask(grant=grant)) == (401, "token_refused")


def test_a_foreign_credential_beside_the_good_one_is_left_out() -> None:
    decision = forwarded(
        ask(headers=(*GOOD, ("authorization", "Bearer sk-foreign"), ("x-api-key", "sk-foreign"), ("cookie", "s=1")))
    )
    assert decision.headers == (("x-api-key", KEY), ("accept-encoding", "identity"))


def test_hop_by_hop_and_forwarding_headers_are_left_out() -> None:
    dropped = [
        ("Host", "evil"),
        ("Connection", "close, X-Named"),
        ("X-Named", "1"),
        ("Keep-Alive", "1"),
        ("TE", "trailers"),
        ("Trailer", "x"),
        ("Transfer-Encoding", "chunked"),
        ("Proxy-Authorization", "Basic x"),
        ("Proxy-Connection", "x"),
        ("Forwarded", "for=1"),
        ("X-Forwarded-For", "1"),
        ("X-Forwarded-Host", "1"),
        ("Via", "x"),
        ("Content-Length", "3"),
        ("Expect", "100-continue"),
        ("Accept-Encoding", "gzip"),
        ("Range", "bytes=0-3"),
        ("X-HTTP-Method-Override", "TRACE"),
    ]
    kept = (("Anthropic-Version", "2023-06-01"), ("User-Agent", "claude-cli"))
    decision = forwarded(ask(headers=(*GOOD, *dropped, *kept)))
    assert decision.headers == (*kept, ("x-api-key", KEY), ("accept-encoding", "identity"))


@pytest.mark.parametrize(
    ("target", "url"),
    [
        ("/v1/messages?beta=true", "/v1/messages?beta=true"),
        ("/v1/messages/count_tokens", "/v1/messages/count_tokens"),
        ("/v1/messages/", "/v1/messages/"),
        ("/v1/messages?", "/v1/messages"),
        ("/v1/messages?a=%2e%2e/%2F&b=//", "/v1/messages?a=%2e%2e/%2F&b=//"),
        (
            "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
            "/v1beta/models/gemini-3.8-flash:streamGenerateContent?alt=sse",
        ),
        ("/v1beta/models/g:x?key=foreign&alt=sse", "/v1beta/models/g:x?alt=sse"),
        ("/v1beta/models/g:x?%6bey=foreign", "/v1beta/models/g:x"),
        ("/v1beta/models/g:x?KEY=foreign&a=1;key=foreign&b=2", "/v1beta/models/g:x?b=2"),
        ("/v1beta/models/g:x?access_token=foreign&$key=f", "/v1beta/models/g:x"),
        (f"/v1/messages?a={TOKEN}&b=1", "/v1/messages?b=1"),
        (f"/v1/messages?a=%74{TOKEN[1:]}&b=1", "/v1/messages?b=1"),
    ],
)
def test_path_and_query_go_on_as_they_are_but_for_credentials(target: str, url: str) -> None:
    assert forwarded(ask(target)).url == UPSTREAM + url


@pytest.mark.parametrize(
    ("target", "refusal"),
    [
        ("/v1/messagesx", (404, "path_refused")),
        ("/v1", (404, "path_refused")),
        ("/V1/messages", (404, "path_refused")),
        ("/v1/%6dessages", (404, "path_refused")),
        ("/v1beta/models", (404, "path_refused")),
        ("/v1/organizations", (404, "path_refused")),
        ("/v1/messages/../organizations", (403, "target_refused")),
        ("/v1/messages/./x", (403, "target_refused")),
        ("/v1/messages/..;/x", (403, "target_refused")),
        ("/v1/messages/%2e%2e/organizations", (403, "target_refused")),
        ("/v1/messages/%2E./organizations", (403, "target_refused")),
        ("/v1/messages%2f..%2forganizations", (403, "target_refused")),
        ("/v1/messages/%252e%252e/x", (403, "target_refused")),
        ("/v1/messages/%5c..%5cx", (403, "target_refused")),
        ("/v1/messages/..%3b/organizations", (403, "target_refused")),
        ("/v1/messages/%c0%ae%c0%ae%c0%afx", (403, "target_refused")),
        ("/v1/messages/%C1%9Cx", (403, "target_refused")),
        ("/v1/messages/\\..\\x", (403, "target_refused")),
        ("/v1/messages/%00", (403, "target_refused")),
        ("/v1/messages/%zz", (403, "target_refused")),
        ("//v1/messages", (403, "target_refused")),
        ("//evil.test/v1/messages", (403, "target_refused")),
        ("/v1/messages//x", (403, "target_refused")),
        ("/v1/messages#frag", (403, "target_refused")),
        (f"/v1/messages/{TOKEN}", (403, "target_refused")),
        ("http://evil.test/v1/messages", (403, "target_refused")),
        ("https://user:pw@api.example.test/v1/messages", (403, "target_refused")),
        ("api.example.test:443", (403, "target_refused")),
        ("@evil.test/v1/messages", (403, "target_refused")),
        ("*", (403, "target_refused")),
        ("", (403, "target_refused")),
        ("/v1/messages\r\nHost: evil", (403, "target_refused")),
        ("/v1/messages x", (403, "target_refused")),
        ("/v1/messages/é", (403, "target_refused")),
    ],
)
def test_other_paths_hosts_and_disguises_are_refused(target: str, refusal: tuple[int, str]) -> None:
    assert code(ask(target)) == refusal


@pytest.mark.parametrize("method", ["CONNECT", "TRACE", "OPTIONS", "post", "PROPFIND"])
def test_other_methods_are_refused(method: str) -> None:
    assert code(ask(method=method)) == (403, "method_refused")


@pytest.mark.parametrize("method", ["HEAD", "GET"])
@pytest.mark.parametrize("target", ["/", "/?x=1"])
def test_a_look_at_the_base_url_is_answered_here_and_needs_no_token(method: str, target: str) -> None:
    assert ask(target, (), method) == Local()
    assert code(ask(target, GOOD, "POST")) == (404, "path_refused")


def test_a_change_of_protocol_is_refused() -> None:
    assert code(ask(headers=(*GOOD, ("Connection", "upgrade"), ("Upgrade", "websocket")))) == (426, "upgrade_refused")


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\x00", "\udcff"])
def test_header_values_that_cannot_stand_in_a_header_are_refused(value: str) -> None:
    assert code(ask(headers=(*GOOD, ("x-note", value)))) == (400, "header_refused")


def test_neither_key_nor_token_is_in_the_repr() -> None:
    decision = ask()
    assert KEY not in repr(decision)
    assert KEY not in repr(GRANT)


pieces = st.sampled_from(
    [
        "/",
        "v1",
        "messages",
        "/v1/messages",
        "/v1beta/models/",
        "..",
        ".",
        "%2e",
        "%2F",
        "%5c",
        "\\",
        ";",
        "?",
        "&",
        "=",
        "key",
        "%6bey",
        "#",
        "@",
        ":",
        "http://",
        "evil.test",
        TOKEN,
        TOKEN[:8],
        TOKEN[8:],
        KEY,
        " ",
        "\r\n",
        "\x00",
        "%",
        "+",
        "é",
        "access_token",
    ]
)
targets = st.one_of(
    st.lists(pieces, max_size=10).map("".join),
    st.lists(pieces, max_size=8).map(lambda parts: "/v1/messages" + "".join(parts)),
    st.text(max_size=40).map(lambda text: "/v1/messages?" + text),
)
names = st.one_of(
    st.sampled_from(
        [
            "x-api-key",
            "Authorization",
            "X-Goog-Api-Key",
            "Connection",
            "Host",
            "Cookie",
            "X-Forwarded-For",
            "Proxy-Authorization",
            "api-key",
        ]
    ),
    st.text(string.ascii_letters + "-", min_size=1, max_size=12),
)
values = st.one_of(
    st.sampled_from(
        [TOKEN, f"Bearer {TOKEN}", f"bearer {OTHER}", OTHER, "", "x-api-key, authorization", f"x {TOKEN} y"]
    ),
    st.text(max_size=20),
)


@settings(max_examples=600, deadline=None, database=None)
@example(target="/v1/messages?" + TOKEN[:8] + "&key=1&" + TOKEN[8:], headers=[], method="GET")
@example(target="/v1/messages", headers=[("connection", "x-api-key")], method="GET")
@given(
    target=targets,
    headers=st.lists(st.tuples(names, values), max_size=6),
    method=st.sampled_from(["GET", "POST", "HEAD", "DELETE", "TRACE"]),
)
def test_whatever_is_asked_a_request_goes_to_the_api_with_the_real_key_alone(
    target: str, headers: list[tuple[str, str]], method: str
) -> None:
    decision = decide(method=method, target=target, headers=(*headers, *GOOD), grant=GRANT)
    if not isinstance(decision, Forward):
        return
    behind = [
        (decision.url.removeprefix(UPSTREAM + prefix), prefix)
        for prefix in ROUTE.path_prefixes
        if decision.url.startswith(UPSTREAM + prefix)
    ]
    assert behind
    assert any(rest == "" or rest[0] in "/?" or prefix.endswith("/") for rest, prefix in behind)
    path, _, query = decision.url.removeprefix(UPSTREAM).partition("?")
    assert ".." not in path.split("/")
    assert "//" not in path
    assert decision.url.isascii()
    assert decision.url.isprintable()
    assert TOKEN not in decision.url
    assert TOKEN not in unquote_plus(decision.url)
    assert not {unquote_plus(part.partition("=")[0]).lower() for part in query.replace(";", "&").split("&")} & {
        "key",
        "access_token",
    }
    credentials = [(name, value) for name, value in decision.headers if name.lower() in CREDENTIAL_HEADERS]
    assert credentials
    assert set(credentials) <= {("x-api-key", KEY), ("authorization", f"Bearer {KEY}"), ("x-goog-api-key", KEY)}
    for name, value in decision.headers:
        assert TOKEN not in value
        assert not name.lower().startswith(("proxy-", "x-forwarded-"))
        assert name.lower() not in {"host", "connection", "cookie", "transfer-encoding", "content-length"}


@settings(max_examples=300, deadline=None, database=None)
@given(
    headers=st.lists(st.tuples(names, values.filter(lambda value: TOKEN not in value)), max_size=6),
    target=targets,
)
def test_without_the_token_nothing_ever_goes_on(headers: list[tuple[str, str]], target: str) -> None:
    assert not isinstance(decide(method="POST", target=target, headers=headers, grant=GRANT), Forward)


LOGIN = "Bearer sk-ant-oat01-of-the-cli"
PASS = replace(GRANT, api_key=None)


def test_pass_through_leaves_the_clis_own_credential_as_it_is_and_asks_for_no_token() -> None:
    sent = (("Authorization", LOGIN), ("anthropic-beta", "oauth-2025-04-20"), ("x-api-key", "own"))
    found = forwarded(ask("/v1/messages?beta=true", sent, grant=PASS))
    assert found.url == f"{UPSTREAM}/v1/messages?beta=true"
    assert set(found.headers) == {*sent, ("accept-encoding", "identity")}
    assert forwarded(ask(headers=(), grant=PASS)).headers == (("accept-encoding", "identity"),)


@pytest.mark.parametrize(
    "target", ["/v1/files", "/v1/messages/../files", "/v1/messages%2f..%2ffiles", "//evil/v1/messages"]
)
def test_pass_through_keeps_the_rules_for_paths(target: str) -> None:
    assert code(ask(target, (("authorization", LOGIN),), grant=PASS))[1] in {"path_refused", "target_refused"}


def test_pass_through_keeps_the_rules_for_methods_and_protocols() -> None:
    assert code(ask(method="CONNECT", grant=PASS))[1] == "method_refused"
    assert code(ask(headers=(("upgrade", "websocket"),), grant=PASS))[1] == "upgrade_refused"


def test_pass_through_lets_no_credential_out_that_is_not_in_the_routes_own_headers() -> None:
    only_bearer = replace(PASS, route=replace(ROUTE, key_headers=("authorization",)))
    sent = (("authorization", LOGIN), ("x-api-key", "foreign"), ("cookie", "a=1"), ("proxy-authorization", "b"))
    found = forwarded(ask("/v1/messages?key=foreign&a=1", sent, grant=only_bearer))
    assert found.url == f"{UPSTREAM}/v1/messages?a=1"
    assert set(found.headers) == {("authorization", LOGIN), ("accept-encoding", "identity")}
