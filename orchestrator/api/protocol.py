"""aiohttp's server, but for the pages that it answers by itself: these are problems like all other errors.

What no handler and no middleware ever meets: a request that is not HTTP, a line or a header that is too long, an
expectation that nobody can meet.
"""

import logging

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from orchestrator.api.context import request_id_of
from orchestrator.api.middleware import access_log, problem_answer, set_headers
from orchestrator.errors import InvalidRequestError

log = logging.getLogger(__name__)


class Runner(web.AppRunner):
    """An AppRunner whose server answers every error as a problem."""

    async def _make_server(self) -> web.Server:
        made = await super()._make_server()
        handle = made.request_handler

        async def guarded(request: web.BaseRequest) -> web.StreamResponse:
            try:
                return await handle(request)
            except web.HTTPException as error:  # raised before the first middleware
                return problem_answer(request, error)

        return _Server(guarded, request_factory=made.request_factory, **self._kwargs)


class _Server(web.Server):
    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answer what could not be parsed, and close the connection; raises ConnectionError behind a begun answer."""
        if status != 400 or request.writer.output_size > 0:
            return super().handle_error(request, status, exc, message)
        if isinstance(exc, LineTooLong):
            what = f"the request line or a header is too long: at most {self.max_line_size} bytes are taken"
        else:
            what = "the request is not well-formed HTTP/1.1"
        log.debug("request %s cannot be parsed", request_id_of(request), exc_info=exc)
        response = problem_answer(request, InvalidRequestError(what))
        set_headers(request, response)  # signals are sent for routed requests only
        response.force_close()
        access_log.info("- - %d 0 ms %s", response.status, request_id_of(request))
        return response
