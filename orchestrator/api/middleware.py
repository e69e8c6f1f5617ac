"""What surrounds every handler: errors as problems, safe headers, and the guard of the Host header."""

import ipaddress
import logging
import re
import time
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from orchestrator.api.context import STARTED, request_id_of
from orchestrator.api.problems import PROBLEM_TYPE, headers_of, problem, problem_of
from orchestrator.config.models import ServerConfig
from orchestrator.errors import ForbiddenError, InvalidRequestError, PodmentorError

log = logging.getLogger(__name__)
access_log = logging.getLogger("orchestrator.api.access")

_HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(?::\d{1,5})?")
_OWN_ERRORS: Final = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}
_HEADERS: Final = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
}


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Signal handler: the headers of every response, streamed ones too."""
    request[STARTED] = True
    set_headers(request, response)


def set_headers(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Give ``response`` the headers that every answer has."""
    for name, value in _HEADERS.items():
        response.headers.setdefault(name, value)
    response.headers["X-Request-Id"] = request_id_of(request)
    response.headers["Server"] = "podmentor"


@web.middleware
async def errors_as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Outermost: turn whatever is raised into one shape, note the outcome."""
    began = time.monotonic()
    try:
        response = await handler(request)
    except Exception as error:
        if request.get(STARTED):
            raise  # half of an answer is out: the connection is closed, nothing can be put right
        response = problem_answer(request, error)
    spent, path = (time.monotonic() - began) * 1000, request.rel_url.raw_path
    access_log.info("%s %s %d %.0f ms %s", request.method, path, response.status, spent, request_id_of(request))
    return response


def problem_answer(request: web.BaseRequest, error: Exception) -> web.Response:
    """``error`` as a response; what is not meant for callers is logged under the request id instead."""
    request_id = request_id_of(request)
    if isinstance(error, web.RequestPayloadError | ConnectionError):  # the latter: nobody is left to read the answer
        error = InvalidRequestError("the body is not what its headers announce")
    if isinstance(error, PodmentorError):
        if error.status >= 500:
            log.warning("request %s: %s: %s", request_id, error.code, error.message)
        body, status, headers = problem_of(error, request_id), error.status, headers_of(error)
    elif isinstance(error, web.HTTPException):
        code = _OWN_ERRORS.get(error.status, f"http_{error.status}")
        detail = "there is no such route" if error.status == 404 else error.text or error.reason
        body = problem(code=code, status=error.status, detail=detail, request_id=request_id)
        status = error.status
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else {}
    else:
        log.error("request %s failed: %s %s", request_id, request.method, request.rel_url.raw_path, exc_info=error)
        detail = "an error inside podmentor; its log has the details under the request id"
        body = problem(code="internal", status=500, detail=detail, request_id=request_id)
        status, headers = 500, {}
    return web.Response(body=body, status=status, headers=headers, content_type=PROBLEM_TYPE)


def host_guard(server: ServerConfig) -> Middleware:
    """Refuse requests whose Host header is a name that is not ours.

    A page in a browser can make its own name resolve to 127.0.0.1 and so reach this service from the outside; the
    name in the header is then the attacker's.  An IP address cannot be rebound, so addresses are let through when the
    service listens on all of them.  The Unix socket is out of a browser's reach.
    """
    names = {"localhost", "127.0.0.1", "[::1]", *(_as_host(name) for name in (server.host, *server.allowed_hosts))}
    any_address = server.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if _is_tcp(request) and not host_allowed(request.headers.get("Host", ""), names, any_address=any_address):
            raise ForbiddenError("the Host header names another host: add it to server.allowed_hosts if it is yours")
        return await handler(request)

    return guard


def host_allowed(header: str, names: set[str], *, any_address: bool) -> bool:
    """Whether the Host header ``header`` is one of ``names`` (any port), or an address where those are welcome."""
    match = _HOST.fullmatch(header)
    if match is None:
        return False
    name = match["name"].lower().removesuffix(".")
    return name in names or (any_address and _is_address(name.strip("[]")))


def _as_host(name: str) -> str:
    return f"[{name}]" if ":" in name and not name.startswith("[") else name.lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_tcp(request: web.Request) -> bool:
    transport = request.transport
    return transport is None or isinstance(transport.get_extra_info("sockname"), tuple)
