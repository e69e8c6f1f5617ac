"""``${env:NAME}`` and ``${secret:NAME}`` in the values of podmentor.yaml.

``$${`` stands for a plain ``${``.  A value that came out of a placeholder is not looked at again: what the
environment holds is data, never more configuration.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orchestrator.config import secrets
from orchestrator.config.models import PLAIN_NAME
from orchestrator.config.yamltree import Document, KeyPath
from orchestrator.errors import ConfigError

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET = re.compile(PLAIN_NAME)


@dataclass(slots=True)
class Resolution:
    """The data with every placeholder replaced.

    ``missing``: keys that may be without a value and are (key path and variable); their value is None.
    """

    data: Any
    missing: list[tuple[KeyPath, str]] = field(default_factory=list)


class _MissingVariableError(Exception):
    def __init__(self, variable: str) -> None:
        super().__init__(variable)
        self.variable = variable


def may_be_missing(path: KeyPath) -> bool:
    """Whether a value may be absent: the key of one backend must not keep the others from starting."""
    return len(path) >= 3 and path[-1] == "api_key" and path[-3] == "backends"


def resolve(document: Document, env: Mapping[str, str]) -> Resolution:
    """Replace all placeholders of ``document``.

    ``${secret:…}`` becomes a mark (see ``secrets``).  Raises ConfigError, with file, line and key, for an unset
    variable, an unknown kind, and a secret where none may stand.
    """
    out = Resolution(data=None)
    out.data = _walk(document.data, (), document, env, out)
    return out


def _walk(value: Any, path: KeyPath, document: Document, env: Mapping[str, str], out: Resolution) -> Any:
    if isinstance(value, dict):
        return {key: _walk(item, (*path, key), document, env, out) for key, item in value.items()}
    if isinstance(value, list):
        return [_walk(item, (*path, index), document, env, out) for index, item in enumerate(value)]
    if not isinstance(value, str) or "${" not in value:
        return value
    try:
        return _replace(value, path, document, env)
    except _MissingVariableError as error:
        if may_be_missing(path):
            out.missing.append((path, error.variable))
            return None
        raise ConfigError(
            f"{document.where(path)}: environment variable {error.variable} is not set "
            f"(it is asked for by ${{env:{error.variable}}})",
            key=[str(part) for part in path],
            variable=error.variable,
        ) from None


def _replace(text: str, path: KeyPath, document: Document, env: Mapping[str, str]) -> str:
    def one(match: re.Match[str]) -> str:
        if match.group() == "$${":
            return "${"
        inner = match.group(1)
        if inner is None:
            raise ConfigError(f"{document.where(path)}: a ${{ without its }}; write $${{ for a plain ${{")
        kind, _, name = inner.partition(":")
        if kind == "secret":
            return _secret(name, path, document)
        if kind != "env" or not _NAME.match(name):
            shown = f"${{{inner}}}"
            better = f"${{env:{inner}}}" if _NAME.match(inner) else "${env:NAME}"
            where = document.where(path)
            raise ConfigError(f"{where}: {shown} is no placeholder; write {better}, or $${{ for a plain ${{")
        value = env.get(name)
        if not value and may_be_missing(path):
            raise _MissingVariableError(name)  # an empty key is as good as none
        if value is None:
            raise _MissingVariableError(name)
        return value

    return _PLACEHOLDER.sub(one, text)


def _secret(name: str, path: KeyPath, document: Document) -> str:
    where = document.where(path)
    if not _SECRET.fullmatch(name):
        raise ConfigError(f"{where}: a secret's name has letters, digits, '.', '_' and '-', at most 64")
    if not secrets.may_hold_secret(path):
        raise ConfigError(
            f"{where}: ${{secret:{name}}} may stand only in a backend's "
            "api_key and extra_env, and in egress.upstream_proxy.password"
        )
    return secrets.mark(name)
