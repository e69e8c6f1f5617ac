"""The connection to the model provider: verified TLS, no proxies or cookies, nothing decoded, nothing followed."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import aiohttp

from orchestrator.relay.limits import Limits

KIBI: Final = 1024


def open_session(limits: Limits, ca_file: Path | None = None) -> aiohttp.ClientSession:
    """The one session of a relay.  ``ca_file``: trust these authorities instead of the system's.

    Blocks while the certificates are read, so call it before there is traffic.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            ssl=ssl.create_default_context(cafile=ca_file),
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


def describe(error: BaseException, url: str) -> str:
    """One sentence on why the provider could not be reached: its host and the reason, nothing of the request."""
    parts = urlsplit(url)
    host = f"{parts.hostname}:{parts.port}" if parts.port else str(parts.hostname)
    return f"the model provider at {host} could not be reached: {_reason(error)}"


def _reason(error: BaseException) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            inner = error.certificate_error
            detail = inner.verify_message if isinstance(inner, ssl.SSLCertVerificationError) else "not accepted"
            return f"its certificate was refused ({detail})"
        case aiohttp.ClientConnectorDNSError():
            return "its name is not known"
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
        case socket.gaierror():
            return "its name is not known"
        case OSError() if error.errno:
            return os.strerror(error.errno).lower()
        case _:
            return "the connection broke off"
