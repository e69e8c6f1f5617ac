"""What Codex is asked to do, as arguments of its plain tools, as patches, or as JavaScript for ``exec``.  Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

Args = dict[str, Any]
Path = Callable[[str], str]


def run(args: Args, _: Path) -> str:
    """A shell command, as JavaScript; it fails when the command does."""
    return _run(args["command"])


def read(args: Args, _: Path) -> str:
    """A file's content, as JavaScript."""
    return _run(_cat(args))


def write(args: Args, _: Path) -> str:
    """A new file, as JavaScript."""
    return _patch(write_patch(args, _))


def edit(args: Args, _: Path) -> str:
    """Other lines in a file, as JavaScript."""
    return _patch(edit_patch(args, _))


def read_command(args: Args, _: Path) -> Args:
    """A file's content by ``exec_command``, as Codex has no tool of its own for it."""
    return {"cmd": _cat(args)}


def write_patch(args: Args, _: Path) -> str:
    """A new file, as a patch."""
    lines = "".join(f"+{line}\n" for line in args["content"].splitlines())
    return f"*** Begin Patch\n*** Add File: {args['path']}\n{lines}*** End Patch"


def edit_patch(args: Args, _: Path) -> str:
    """Other lines in a file, as a patch; ``old`` and ``new`` are whole lines."""
    old = "".join(f"-{line}\n" for line in args["old"].splitlines())
    new = "".join(f"+{line}\n" for line in args["new"].splitlines())
    return f"*** Begin Patch\n*** Update File: {args['path']}\n@@\n{old}{new}*** End Patch"


def _run(command: str) -> str:
    return (
        f"const r = await tools.exec_command({json.dumps({'cmd': command})}); text(r.output);"
        " if (r.exit_code) throw new Error(`exit code ${r.exit_code}`);"
    )


def _cat(args: Args) -> str:
    return f"cat {shlex.quote(args['path'])}"


def _patch(patch: str) -> str:
    return f"text(JSON.stringify(await tools.apply_patch({json.dumps(patch)})));"
