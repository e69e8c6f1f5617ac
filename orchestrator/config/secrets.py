"""``${secret:NAME}``: from the text of podmentor.yaml to the vault's values.

The file is read long before the vault can be opened, so a placeholder first becomes a mark that nothing else can
contain (it is made anew in every process); the service replaces the marks when it starts.
"""

import re
import secrets
from collections.abc import Iterator, Mapping

from pydantic import SecretStr

from orchestrator.config.models import BackendConfig, Config
from orchestrator.config.yamltree import KeyPath
from orchestrator.errors import ConfigError

_OPEN = f"\ue000{secrets.token_hex(16)}:"
_MARK = re.compile(re.escape(_OPEN) + r"([A-Za-z0-9._-]+)\ue001")


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
