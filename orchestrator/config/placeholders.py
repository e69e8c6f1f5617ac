"""``${env:NAME}`` and ``${secret:NAME}`` in the values of podmentor.yaml.

``$${`` stands for a plain ``${``.  A value that came out of a placeholder is not looked at again: what the
environment holds is data, never more configuration.

The file is read long before the vault can be opened, so ``${secret:NAME}`` first becomes a mark that nothing else can
contain (it is made anew in every process); the service replaces the marks when it starts (``fill``).
"""

import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import SecretStr

from orchestrator.config.models import PLAIN_NAME, BackendConfig, Config
from orchestrator.config.yamltree import Document, KeyPath
from orchestrator.errors import ConfigError

_OPEN = f"\ue000{secrets.token_hex(16)}:"
_MARK = re.compile(re.escape(_OPEN) + r"([A-Za-z0-9._-]+)\ue001")
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}|\$\{")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SECRET = re.compile(PLAIN_NAME)


def may_hold_secret(path: KeyPath) -> bool:
    """Whether ``${secret:…}`` may stand there: only where the value never is shown."""
    key = len(path) >= 3 and path[-3] == "backends" and path[-1] == "api_key"
    variable = len(path) >= 4 and path[-4] == "backends" and path[-2] == "extra_env"
    return key or variable or path[-3:] == ("egress", "upstream_proxy", "password")


def mark(name: str) -> str:
    """What stands in the configuration until the vault has been asked."""
    return f"{_OPEN}{name}\ue001"


def names_in(config: Config) -> dict[str, str]:
    """Every secret that the configuration asks for, with the key that asks first."""
    found: dict[str, str] = {}
    for key, text in _texts(config):
        for name in _MARK.findall(text):
            found.setdefault(name, key)
    return found


def fill(config: Config, values: Mapping[str, str]) -> Config:
    """``config`` with the values in the place of the marks.  Raises ConfigError for one that is not in ``values``."""
    for name, key in names_in(config).items():
        if name not in values:
            raise ConfigError(
                f"{key}: the vault has no secret {name!r} (asked for by ${{secret:{name}}}); "
                f"store it: podmentor vault set {name}"
            )
    backends = {name: _filled(backend, values) for name, backend in config.external_agent.backends.items()}
    block = config.external_agent.model_copy(update={"backends": backends})
    egress = config.egress
    if (proxy := egress.upstream_proxy) is not None and proxy.password is not None:
        password = SecretStr(_replaced(proxy.password.get_secret_value(), values))
        egress = egress.model_copy(update={"upstream_proxy": proxy.model_copy(update={"password": password})})
    return config.model_copy(update={"external_agent": block, "egress": egress})


def _replaced(text: str, values: Mapping[str, str]) -> str:
    return _MARK.sub(lambda match: values[match[1]], text)


def _filled(backend: BackendConfig, values: Mapping[str, str]) -> BackendConfig:
    key = backend.api_key
    return backend.model_copy(
        update={
            "api_key": None if key is None else SecretStr(_replaced(key.get_secret_value(), values)),
            "extra_env": {name: _replaced(text, values) for name, text in backend.extra_env.items()},
        }
    )


def _texts(config: Config) -> Iterator[tuple[str, str]]:
    for name, backend in config.external_agent.backends.items():
        where = f"external_agent.backends.{name}"
        if backend.api_key is not None:
            yield f"{where}.api_key", backend.api_key.get_secret_value()
        for variable, text in backend.extra_env.items():
            yield f"{where}.extra_env.{variable}", text
    if (proxy := config.egress.upstream_proxy) is not None and proxy.password is not None:
        yield "egress.upstream_proxy.password", proxy.password.get_secret_value()


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

    ``${secret:…}`` becomes a mark.  Raises ConfigError, with file, line and key, for an unset
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
    if not may_hold_secret(path):
        raise ConfigError(
            f"{where}: ${{secret:{name}}} may stand only in a backend's "
            "api_key and extra_env, and in egress.upstream_proxy.password"
        )
    return mark(name)
