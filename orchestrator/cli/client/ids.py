"""Ids may be given by their beginning, as long as only one begins so."""

import re
from collections.abc import Sequence

from orchestrator.cli.client.api import ApiClient
from orchestrator.errors import InvalidRequestError, NotFoundError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
_SHOWN = 4
"""As many ids are named when several begin alike."""


async def find_run(client: ApiClient, text: str) -> str:
    """The run id that ``text`` is, or is the beginning of.  Raises NotFoundError, InvalidRequestError."""
    _check("run", text)
    page = await client.runs(prefix=text, limit=_SHOWN + 1)
    return _the_one("run", text, [run["run_id"] for run in page["runs"]])


async def find_subagent(client: ApiClient, text: str) -> str:
    """The subagent id that ``text`` is, or is the beginning of.  Raises NotFoundError, InvalidRequestError."""
    _check("subagent", text)
    return _the_one("subagent", text, [one["subagent_id"] for one in await client.subagents(prefix=text)])


def _check(what: str, text: str) -> None:
    if not _PLAIN.match(text):
        raise InvalidRequestError(f"{text!r} is no id of a {what}")


def _the_one(what: str, text: str, found: Sequence[str]) -> str:
    if text in found:
        return text
    if not found:
        raise NotFoundError(f"there is no {what} {text!r}")
    if len(found) > 1:
        shown = ", ".join(sorted(found)[:_SHOWN]) + (", …" if len(found) > _SHOWN else "")
        raise InvalidRequestError(f"{text!r} is the beginning of several {what}s: {shown}")
    return found[0]
