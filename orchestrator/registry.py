"""Adapters by name, found through the entry points ``podmentor.adapters``.

Loading an adapter executes its code, so only the names that the configuration enables are loaded; listing what is
installed loads nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from orchestrator.adapterkit.bridge import OneshotBridge, StreamBridge
from orchestrator.contract.adapter import AgentAdapter, BaseAdapter, Capabilities, StreamParser, tool_name
from orchestrator.errors import ConfigError

__all__ = ["ADAPTER_REGISTRY", "GROUP", "AdapterRegistry", "complete", "load_adapters", "tool_name"]

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
    enabled: Iterable[str],
    *,
    oneshot: Collection[str] = (),
    registry: Mapping[str, type[AgentAdapter]] = ADAPTER_REGISTRY,
) -> dict[str, BaseAdapter]:
    """One adapter object for each enabled name, with every optional member there (see ``complete``).

    ``oneshot``: names for which the plain mode is wanted.  Raises ConfigError for a name that is not installed (naming
    those that are), for an adapter that does not keep the contract (naming what it lacks), and where a plain mode is
    wanted and there is none.
    """
    return {name: _make(name, registry, oneshot=name in oneshot) for name in dict.fromkeys(enabled)}


def complete(cls: type[AgentAdapter]) -> type[BaseAdapter]:
    """The class with a default for every optional member that it lacks, so that one with only the documented members
    works (C1, C2); the class itself when nothing is missing."""
    members: dict[str, Any] = {}
    if not _brings(cls, "parser"):
        members["parser"] = _bridge
    if not _brings(cls, "capabilities"):
        members["capabilities"] = Capabilities(
            streaming=cls.supports_stream_json,
            resume=cls.supports_resume,
            byo_subscription=bool(getattr(cls, "supports_byo_subscription", False)),
        )
    if issubclass(cls, BaseAdapter):
        return cast("type[BaseAdapter]", type(cls.__name__, (cls,), members)) if members else cls
    return cast("type[BaseAdapter]", type(cls.__name__, (cls, BaseAdapter), members))


def _bridge(adapter: AgentAdapter) -> StreamParser:
    """A new parser for one run, made from ``parse_stream`` or ``parse_oneshot``."""
    return StreamBridge(adapter) if adapter.supports_stream_json else OneshotBridge(adapter)


def _make(name: str, registry: Mapping[str, type[AgentAdapter]], *, oneshot: bool) -> BaseAdapter:
    try:
        cls = registry[name]
    except KeyError:
        known = ", ".join(registry) or "none"
        raise ConfigError(f"no adapter is installed for the backend {name!r}; installed: {known}") from None
    if oneshot:
        cls = getattr(cls, "oneshot", None) or cls
        if getattr(cls, "supports_stream_json", False):
            raise ConfigError(f"the backend {name!r} has no plain mode: remove `oneshot: true` from its config")
    if problems := _problems(name, cls):
        raise ConfigError(f"the adapter {name!r} ({cls.__name__}) does not keep the contract: {'; '.join(problems)}")
    try:
        return complete(cls)()
    except Exception as error:
        raise ConfigError(f"the adapter {name!r} ({cls.__name__}) cannot be made without arguments: {error}") from error


def _problems(name: str, cls: Any) -> list[str]:
    out = [f"{member} must be a string" for member in _TEXTS if not isinstance(getattr(cls, member, None), str)]
    out += [f"{member} must be True or False" for member in _FLAGS if not isinstance(getattr(cls, member, None), bool)]
    out += [f"{member}() is missing" for member in _METHODS if not callable(getattr(cls, member, None))]
    if out:
        return out
    if cls.name != name:
        out.append(f"its name is {cls.name!r}")
    transport = getattr(cls, "transport", "subprocess")
    if transport not in {"subprocess", "http"}:
        out.append(f"transport must be 'subprocess' or 'http', not {transport!r}")
    elif transport == "http" and not _brings(cls, "call_http"):
        out.append("call_http() is missing, which transport 'http' needs")
    elif transport == "subprocess" and not _brings(cls, "parser"):
        wanted = "parse_stream" if cls.supports_stream_json else "parse_oneshot"
        if not _brings(cls, wanted):
            out.append(f"it has nothing to read its output with: parser() or {wanted}()")
    return out


def _brings(cls: type, member: str) -> bool:
    """Whether the class has the member itself, and not only BaseAdapter's default of it."""
    own = getattr(cls, member, None)
    return own is not None and own is not getattr(BaseAdapter, member)
