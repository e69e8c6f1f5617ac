"""The connection to the model provider: verified TLS, no cookies, nothing decoded, nothing followed.

No proxy is used but the configured one, whatever the environment says.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from typing import Final, TypedDict
from urllib.parse import urlsplit

import aiohttp
from yarl import URL

from orchestrator.contract.egress import UpstreamProxy
from orchestrator.relay.limits import Limits
from orchestrator.relay.network import credentials, refusal

KIBI: Final = 1024
NO_NAME: Final = "check this machine's DNS, or set egress.upstream_proxy if its network has a proxy"


class ProxyArguments(TypedDict, total=False):
    """What aiohttp wants to know of a proxy."""

    proxy: URL
    proxy_headers: dict[str, str]


def open_session(limits: Limits) -> aiohttp.ClientSession:
    """The one session of a relay.  TLS context and proxy are arguments of each request (``Uplink``)."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=0,  # each run's own limit counts
            # Shorter than any provider's own, so that a connection is not used just when they close it.
            keepalive_timeout=10.0,
        ),
        cookie_jar=aiohttp.DummyCookieJar(),
        skip_auto_headers=("User-Agent", "Content-Type", "Accept", "Accept-Encoding"),
        timeout=aiohttp.ClientTimeout(
            total=None, connect=limits.connect_seconds, sock_read=limits.idle_seconds, ceil_threshold=5
        ),
        auto_decompress=False,
        trust_env=False,
        max_line_size=16 * KIBI,
        max_field_size=64 * KIBI,
    )


def through(proxy: UpstreamProxy | None) -> ProxyArguments:
    """The arguments of a request that goes through ``proxy``: the headers are for CONNECT, which only HTTPS needs."""
    if proxy is None:
        return {}
    return {"proxy": URL.build(scheme="http", host=proxy.host, port=proxy.port), "proxy_headers": credentials(proxy)}


def describe(error: BaseException, url: str, proxy: UpstreamProxy | None = None) -> str:
    """One sentence on why the provider could not be reached: its host, the reason and what the operator can do, nothing
    of the request.  ``proxy``: the one that was to lead there."""
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return f"the model provider at {host} could not be reached: {_proxy_reason(error, proxy) or _reason(error)}"


def _proxy_reason(error: BaseException, proxy: UpstreamProxy | None) -> str:
    """Why the proxy, not the provider, is to blame; empty when it is not."""
    match error:
        case _ if proxy is None:
            return ""
        case aiohttp.ClientHttpProxyError():
            return refusal(error.status, known=proxy.username is not None)
        case aiohttp.ClientConnectorDNSError():
            return "the name of the network's proxy (egress.upstream_proxy) is not known"
        case aiohttp.ClientProxyConnectionError():
            return f"the network's proxy (egress.upstream_proxy) could not be reached: {_reason(error.os_error)}"
        case _:
            return ""


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            inner = error.certificate_error
            detail = inner.verify_message if isinstance(inner, ssl.SSLCertVerificationError) else "not accepted"
            return f"its certificate was refused ({detail}); if this network opens TLS, name its CA in egress.ca_file"
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            return f"its name is not known; {NO_NAME}"
        case aiohttp.ClientConnectorError():
            return _reason(error.os_error)
        case aiohttp.ConnectionTimeoutError():
            return "connecting took too long"
        case asyncio.TimeoutError():
            return "it did not answer in time"
        case aiohttp.ServerDisconnectedError():
            return "it closed the connection without an answer"
        case aiohttp.ClientResponseError():
            return "its answer is not valid HTTP"
        case ssl.SSLError():
            return "TLS failed"
        case OSError() if error.errno:
            return os.strerror(error.errno).lower()
        case _:
            return "the connection broke off"
