"""Ids may be given by their beginning, as long as only one fits."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.errors import InvalidRequestError, NotFoundError

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")


async def unique(
    what: str,
    text: str,
    *,
    exact: Callable[[str], Awaitable[Any]],
    candidates: Callable[[], Awaitable[list[str]]],
) -> str:
    """The one id that ``text`` means.  Raises NotFoundError, or InvalidRequestError when several fit."""
    if not _PLAIN.match(text):
        raise InvalidRequestError(f"{text!r} is no id of a {what}")
    try:
        await exact(text)
    except NotFoundError:
        found = sorted(set(await candidates()))
    else:
        return text
    if not found:
        raise NotFoundError(f"there is no {what} {text!r}")
    if len(found) > 1:
        some = ", ".join(found[:4]) + (", …" if len(found) > 4 else "")
        raise InvalidRequestError(f"{text!r} fits {len(found)} {what}s: {some}")
    return found[0]
