"""Which repo a run works on: what was named, else the one we stand in."""

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class Choice:
    """``value`` goes into the request (None: nothing); ``remark`` is for the user."""

    value: str | None
    remark: str | None = None


def choose(
    asked: str | None,
    *,
    none: bool,
    continued: bool,
    remote: bool,
    cwd: Path,
    names: Mapping[str, Path],
    state_dir: Path | None,
    closed: Path | None = None,
) -> Choice:
    """The repo of a run.

    ``asked``: --repo; ``none``: --no-repo; ``continued``: the run goes on in a subagent, which has its repo already;
    ``remote``: the service sees another file system, so only names make sense; ``closed``: the caller stands in this
    repo, which we cannot enter, so that ``cwd`` is another place.  Raises InvalidRequestError.
    """
    if none or (asked is None and (continued or remote)):
        return Choice(None)
    if asked is not None:
        return _named(asked, remote=remote, cwd=cwd, names=names, state_dir=state_dir)
    if closed is not None:
        raise _unreadable(closed)
    top = work_tree(cwd)
    if top is None:
        return Choice(None, "not in a git repo: the agent begins with an empty workspace (--repo names one)")
    if _holds(top, state_dir):
        return Choice(None, f"{top} holds podmentor's own state, so the agent begins with an empty workspace")
    return Choice(str(top))


def _named(asked: str, *, remote: bool, cwd: Path, names: Mapping[str, Path], state_dir: Path | None) -> Choice:
    if remote or asked in names:
        return Choice(asked)
    path = (cwd / Path(asked).expanduser()).resolve()
    looks_like_path = "/" in asked or asked in {".", ".."} or asked.startswith("~")
    if not looks_like_path and not path.is_dir():
        known = f"; configured are: {', '.join(names)}" if names else ""
        raise InvalidRequestError(f"--repo {asked}: neither a configured repo nor a directory{known}")
    if not path.is_dir():
        raise InvalidRequestError(f"--repo {asked}: {path} is not a directory")
    if path == Path("/"):
        raise InvalidRequestError("--repo /: the whole file system is no repo")
    if _holds(path, state_dir):
        raise InvalidRequestError(f"--repo {asked}: {path} holds podmentor's own state ({state_dir})")
    return Choice(str(path))


def work_tree(start: Path) -> Path | None:
    """The top of the git work tree around ``start``.  Raises InvalidRequestError when we may not look for it."""
    here = start.resolve()
    for place in (here, *here.parents):
        try:
            if place != Path("/") and (place / ".git").exists():
                return place
        except PermissionError:
            raise _unreadable(place) from None
    return None


def _unreadable(place: Path) -> InvalidRequestError:
    who = pwd.getpwuid(os.geteuid()).pw_name
    return InvalidRequestError(
        f"{place} cannot be read by the user {who}, as whom podmentor runs here: copy the repo to a place that it can "
        "read, or run podmentor as the repo's owner (--no-repo begins with an empty workspace)"
    )


def _holds(repo: Path, state_dir: Path | None) -> bool:
    return state_dir is not None and state_dir.resolve().is_relative_to(repo)
