"""What pydantic says about the configuration, in words: file, line, key, and the nearest known name for a typo."""

import difflib
import types
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from orchestrator.config.yamltree import Document, KeyPath
from orchestrator.errors import ConfigError


def known_keys(model: type[BaseModel], path: KeyPath) -> list[str]:
    """The names allowed inside ``path``; empty where any name may stand (a mapping) or nothing can."""
    here: Any = model
    for part in path:
        here = _step(here, part)
        if here is None:
            return []
    return list(here.model_fields) if _is_model(here) else []


def _step(here: Any, part: str | int) -> Any:
    if _is_model(here):
        found = here.model_fields.get(str(part))
        return _bare(found.annotation) if found is not None else None
    if get_origin(here) is dict:
        return _bare(get_args(here)[1])
    if get_origin(here) is list:
        return _bare(get_args(here)[0])
    return None


def _bare(annotation: Any) -> Any:
    """The type without ``| None`` and without Annotated."""
    if get_origin(annotation) is Annotated:
        return _bare(get_args(annotation)[0])
    if get_origin(annotation) in {Union, types.UnionType}:
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        return _bare(rest[0]) if len(rest) == 1 else annotation
    return annotation


def _is_model(here: Any) -> bool:
    return isinstance(here, type) and issubclass(here, BaseModel)


def nearest(name: str, known: list[str]) -> str | None:
    """The known name that ``name`` was probably meant to be."""
    plain = {key.replace("-", "_").lower(): key for key in known}
    found = difflib.get_close_matches(name.replace("-", "_").lower(), plain, n=1, cutoff=0.6)
    return plain[found[0]] if found else None


def config_error(error: ValidationError, *, model: type[BaseModel], document: Document, prefix: KeyPath) -> ConfigError:
    """One ConfigError with a line for every problem.  Values are never quoted: they may be secrets.

    ``prefix``: where in the file the ``external_agent`` block stands, when it is not at the top.
    """
    lines: list[str] = []
    for problem in error.errors(include_url=False, include_input=False, include_context=False):
        path: KeyPath = tuple(problem["loc"])
        shown = in_file(path, prefix)
        lines.append(f"{document.where(shown)}: {_words(problem['type'], problem['msg'], path, model)}")
    return ConfigError("\n".join(lines), problems=lines)


def in_file(path: KeyPath, prefix: KeyPath) -> KeyPath:
    """A path of the model as a path of the file."""
    if path and path[-1] == "[key]":
        path = path[:-1]
    return (*prefix, *path[1:]) if prefix and path[:1] == ("external_agent",) else path


def _words(kind: str, message: str, path: KeyPath, model: type[BaseModel]) -> str:
    if kind == "extra_forbidden":
        known = known_keys(model, path[:-1])
        guess = nearest(str(path[-1]), known)
        return f"unknown key; did you mean {guess}?" if guess else f"unknown key; known here: {', '.join(known)}"
    if kind == "string_type":
        return "must be text (put it in quotes)"
    if kind in {"model_type", "dict_type", "model_attributes_type"}:
        return "must be a mapping (key: value)"
    if kind == "list_type":
        return "must be a list"
    if kind == "string_pattern_mismatch" and path[-1:] == ("[key]",):
        return "a name has letters, digits, '.', '_' and '-', begins with a letter or digit, and is at most 64 long"
    text = message.removeprefix("Value error, ").removeprefix("Input ")
    return text[:1].lower() + text[1:]
