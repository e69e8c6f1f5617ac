"""Adapters by name, found through the entry points ``podmentor.adapters``.

Loading an adapter executes its code, so only the names that the configuration enables are loaded; listing what is
installed loads nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from orchestrator.contract.adapter import AgentAdapter
from orchestrator.contract.view import AdapterView, brings_parser, tool_name
from orchestrator.errors import ConfigError

__all__ = ["ADAPTER_REGISTRY", "GROUP", "AdapterRegistry", "AdapterView", "load_adapters", "tool_name"]

GROUP: Final = "podmentor.adapters"
_TEXTS: Final = ("name", "binary")
_FLAGS: Final = ("supports_resume", "supports_stream_json")
_METHODS: Final = ("build_argv", "build_env", "parse_stream", "parse_oneshot", "extract_session_id", "probe_auth")


def installed() -> list[EntryPoint]:
    """The entry points of all installed distributions."""
    return list(entry_points(group=GROUP))


class AdapterRegistry(Mapping[str, type[AgentAdapter]]):
    """{name: adapter class} (C26).  A class is loaded when it is asked for, and not before."""

    def __init__(self, find: Callable[[], Iterable[EntryPoint]] = installed) -> None:
        self._find = find

    def __getitem__(self, name: str) -> type[AgentAdapter]:
        """The class.  Raises KeyError, and ConfigError when it is installed but cannot be used."""
        matching = {point.value: point for point in self._find() if point.name == name}
        if not matching:
            raise KeyError(name)
        if len(matching) > 1:
            raise ConfigError(f"the adapter {name!r} is installed more than once: {', '.join(sorted(matching))}")
        (point,) = matching.values()
        try:
            found = point.load()
        except Exception as error:
            raise ConfigError(f"the adapter {name!r} ({point.value}) cannot be loaded: {error}") from error
        if not inspect.isclass(found):
            raise ConfigError(f"the adapter {name!r} ({point.value}) is not a class")
        return cast("type[AgentAdapter]", found)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({point.name for point in self._find()}))

    def __len__(self) -> int:
        return len({point.name for point in self._find()})

    def __contains__(self, name: object) -> bool:
        return any(point.name == name for point in self._find())

    def __repr__(self) -> str:
        return f"<adapters: {', '.join(self)}>"


ADAPTER_REGISTRY: Final[Mapping[str, type[AgentAdapter]]] = AdapterRegistry()


def load_adapters(
    enabled: Iterable[str], *, registry: Mapping[str, type[AgentAdapter]] = ADAPTER_REGISTRY
) -> dict[str, AgentAdapter]:
    """One adapter object for each enabled name.

    Raises ConfigError for a name that is not installed (naming those that are) and for an adapter that does not keep
    the contract (naming what it lacks).
    """
    return {name: _make(name, registry) for name in dict.fromkeys(enabled)}


def _make(name: str, registry: Mapping[str, type[AgentAdapter]]) -> AgentAdapter:
    try:
        cls = registry[name]
    except KeyError:
        known = ", ".join(registry) or "none"
        raise ConfigError(f"no adapter is installed for the backend {name!r}; installed: {known}") from None
    try:
        adapter = cls()
    except Exception as error:
        raise ConfigError(f"the adapter {name!r} ({cls.__name__}) cannot be made without arguments: {error}") from error
    if problems := _problems(name, adapter):
        raise ConfigError(f"the adapter {name!r} ({cls.__name__}) does not keep the contract: {'; '.join(problems)}")
    return adapter


def _problems(name: str, adapter: Any) -> list[str]:
    out = [f"{member} must be a string" for member in _TEXTS if not isinstance(getattr(adapter, member, None), str)]
    out += [f"{member} must be True or False" for member in _FLAGS
            if not isinstance(getattr(adapter, member, None), bool)]  # fmt: skip
    out += [f"{member}() is missing" for member in _METHODS if not callable(getattr(adapter, member, None))]
    if out:
        return out
    view = AdapterView(adapter)
    if adapter.name != name:
        out.append(f"its name is {adapter.name!r}")
    if view.transport not in {"subprocess", "http"}:
        out.append(f"transport must be 'subprocess' or 'http', not {view.transport!r}")
    elif view.transport == "http" and not callable(getattr(adapter, "call_http", None)):
        out.append("call_http() is missing, which transport 'http' needs")
    elif view.transport == "subprocess" and not brings_parser(adapter):
        out.append("it has nothing to read its output with: parser(), parse_stream() or parse_oneshot()")
    return out
