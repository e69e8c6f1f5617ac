"""Small directory trees as values, and overlays of them made by hand (no mount, no root).

A tree is {name: node}; a node is a tree, a ``File`` or a ``Link``.  Whiteouts need root to make, so here a pipe of mode
0 stands for one: ``fake_whiteout`` tells them apart.
"""

# ruff: noqa: PTH101, PTH102, PTH115, PTH118, PTH123, PTH211
# (pathlib cannot hold names that are bytes)
from __future__ import annotations

import os
import random
import stat
from pathlib import Path
from typing import NamedTuple, TypeAlias

from orchestrator.workspace.overlay.diff import is_whiteout


class File(NamedTuple):
    data: bytes
    executable: bool = False


class Link(NamedTuple):
    target: bytes


Tree: TypeAlias = dict[bytes, "Tree | File | Link"]
Node: TypeAlias = "Tree | File | Link"


def fake_whiteout(st: os.stat_result) -> bool:
    return is_whiteout(st) or (stat.S_ISFIFO(st.st_mode) and stat.S_IMODE(st.st_mode) == 0)


def make(directory: bytes | Path, tree: Tree) -> None:
    """Write the tree into an existing directory."""
    for name, node in tree.items():
        put(os.path.join(os.fsencode(directory), name), node)


def put(path: bytes, node: Node) -> None:
    if isinstance(node, dict):
        os.mkdir(path)
        make(path, node)
    elif isinstance(node, Link):
        os.symlink(node.target, path)
    else:
        with open(path, "wb") as file:
            file.write(node.data)
        os.chmod(path, 0o755 if node.executable else 0o644)


def read(directory: bytes | Path) -> Tree:
    """The tree as git sees it: without empty directories."""
    out: Tree = {}
    for entry in os.scandir(os.fsencode(directory)):
        if entry.is_symlink():
            out[entry.name] = Link(os.readlink(entry.path))
        elif entry.is_dir():
            if inner := read(entry.path):
                out[entry.name] = inner
        else:
            with open(entry.path, "rb") as file:
                out[entry.name] = File(file.read(), bool(entry.stat().st_mode & 0o100))
    return out


def without_empty(tree: Tree) -> Tree:
    out: Tree = {}
    for name, node in tree.items():
        kept: Node = without_empty(node) if isinstance(node, dict) else node
        if kept != {}:
            out[name] = kept
    return out


def make_upper(upper: bytes | Path, old: Tree, new: Tree, choice: random.Random) -> None:
    """What the kernel would leave in ``upper`` after an agent turned ``old`` into ``new``.

    There are several ways to the same end, and ``choice`` takes one: copied-up files that did not change, directories
    that were removed and made again (opaque), or changed entry by entry.
    """
    base = os.fsencode(upper)
    for name in old.keys() - new.keys():
        whiteout(os.path.join(base, name))
    for name, node in new.items():
        path = os.path.join(base, name)
        was = old.get(name)
        if not isinstance(node, dict):
            if node != was or choice.random() < 0.3:
                put(path, node)
        elif not isinstance(was, dict):
            put(path, node)
            if was is not None:
                opaque(path)
        elif choice.random() < 0.3:
            put(path, node)
            opaque(path)
        elif node != was or choice.random() < 0.3:
            os.mkdir(path)
            make_upper(path, was, node, choice)


def whiteout(path: bytes | Path) -> None:
    os.mkfifo(path, 0)
    os.chmod(path, 0)


def opaque(path: bytes | Path, value: bytes = b"y") -> None:
    os.setxattr(path, "user.overlay.opaque", value)


def paths(tree: Tree, prefix: bytes = b"") -> dict[bytes, File | Link]:
    """Every file and link by its path."""
    out: dict[bytes, File | Link] = {}
    for name, node in tree.items():
        if isinstance(node, dict):
            out |= paths(node, prefix + name + b"/")
        else:
            out[prefix + name] = node
    return out
