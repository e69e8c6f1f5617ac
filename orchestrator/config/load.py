"""Finds podmentor.yaml, reads it strictly, and says what is odd about it.

With no file at all the defaults make ``podmentor run BACKEND`` work for someone who has the backend's key in its usual
variable (ANTHROPIC_API_KEY and so on).
"""

import difflib
import os
import stat
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError

from orchestrator.config import placeholders, yamltree
from orchestrator.config.models import BackendConfig, Config, ExternalAgentConfig
from orchestrator.config.yamltree import Document, KeyPath
from orchestrator.errors import ConfigError

FILE_NAME = "podmentor.yaml"
PLUGIN_MODULE = "codumentor.plugins.external_agent"
PLUGIN_CLASS = "ExternalAgentPlugin"
KNOWN_BACKENDS = ["claude-code", "codex", "opencode", "gemini", "codumentor"]
DEFAULT_BACKEND = "claude-code"
KEY_VARIABLES = {
    "claude-code": "ANTHROPIC_API_KEY",
    "codex": "OPENAI_API_KEY",
    "opencode": "OPENCODE_API_KEY",
    "gemini": "GEMINI_API_KEY",
}
"""Where the key of a backend is looked for when no file says anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """A configuration, the file it came from (None: built-in defaults), and what is odd but no reason to stop."""

    config: Config
    source: Path | None
    warnings: list[str] = field(default_factory=list)


def load(path: Path | None, *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Loaded:
    """The configuration with its source and warnings.

    The first of these counts: ``path``; ``$PODMENTOR_CONFIG``; ``podmentor.yaml`` in ``cwd``;
    ``$XDG_CONFIG_HOME/podmentor/podmentor.yaml``; built-in defaults.  Raises ConfigError.
    """
    env = os.environ if env is None else env
    source = find(path, env=env, cwd=cwd or Path.cwd())
    if source is None:
        return Loaded(config=Config(external_agent=_default_block(env)), source=None)
    loaded = parse(_read(source), name=str(source), env=env)
    warnings = [*loaded.warnings, *_file_warnings(source, loaded.config)]
    return Loaded(config=loaded.config, source=source, warnings=warnings)


def find(path: Path | None, *, env: Mapping[str, str], cwd: Path) -> Path | None:
    """Which file is to be read; None: there is none.  A file that was named must exist (ConfigError)."""
    if path is not None:
        named, by = path, "--config"
    elif env.get("PODMENTOR_CONFIG"):
        named, by = Path(env["PODMENTOR_CONFIG"]), "$PODMENTOR_CONFIG"
    else:
        places = [cwd / FILE_NAME]
        base = env.get("XDG_CONFIG_HOME", "")
        if base.startswith("/"):
            places.append(Path(base) / "podmentor" / FILE_NAME)
        elif env.get("HOME", "").startswith("/"):
            places.append(Path(env["HOME"]) / ".config" / "podmentor" / FILE_NAME)
        return next((place for place in places if place.is_file()), None)
    named = named.expanduser()
    if not named.is_file():
        raise ConfigError(f"{named}: there is no such file (named by {by})")
    return named


def parse(text: str, *, name: str, env: Mapping[str, str]) -> Loaded:
    """The configuration in ``text``; ``name`` is what messages call it.  Raises ConfigError."""
    document = yamltree.parse(text, name=name)
    if document.data is None:
        document.data = {}
    if not isinstance(document.data, dict):
        raise ConfigError(f"{name}:1: must be a mapping (key: value) at the top")
    warnings: list[str] = []
    prefix = _unwrap_plugins(document, warnings)
    resolved = placeholders.resolve(document, env)
    data: dict[str, Any] = resolved.data
    if prefix:
        data["external_agent"] = _at(data, prefix)
        del data["plugins"]
    for path, variable in resolved.missing:
        warnings.append(
            f"{document.where(path)}: {variable} is not set, so this backend has no key of its own",
        )
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        raise config_error(error, model=Config, document=document, prefix=prefix) from None
    block = data.get("external_agent")
    if not isinstance(block, dict) or "backends" not in block:
        default = _default_block(env)
        merged = config.external_agent.model_copy(update={"backends": default.backends})
        config = config.model_copy(update={"external_agent": merged})
    _check_repos(config, document, warnings)
    _check_backends(config, document, prefix, warnings)
    return Loaded(config=config, source=None, warnings=warnings)


def _default_block(env: Mapping[str, str]) -> ExternalAgentConfig:
    """The default backend, and those that a key is set for."""
    keys = {name: env.get(variable) or None for name, variable in KEY_VARIABLES.items()}
    return ExternalAgentConfig(
        backends={
            name: BackendConfig(api_key=SecretStr(key) if key else None)
            for name, key in keys.items()
            if key or name == DEFAULT_BACKEND
        }
    )


def _read(source: Path) -> str:
    try:
        return source.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: not UTF-8 text (byte {error.start})") from None
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read: {error.strerror}") from None


def _unwrap_plugins(document: Document, warnings: list[str]) -> KeyPath:
    """Where the block stands in a file of the ``plugins:`` form; empty when the file has it at the top."""
    if "plugins" not in document.data:
        return ()
    entries = document.data["plugins"]
    if not isinstance(entries, list):
        raise ConfigError(f"{document.where(('plugins',))}: must be a list")
    ours: list[int] = []
    for index, entry in enumerate(entries):
        if isinstance(entry, dict) and entry.get("module") == PLUGIN_MODULE:
            if entry.get("class", PLUGIN_CLASS) != PLUGIN_CLASS:
                raise ConfigError(f"{document.where(('plugins', index, 'class'))}: must be {PLUGIN_CLASS}")
            if unknown := [key for key in entry if key not in {"module", "class", "args"}]:
                where = document.where(("plugins", index, unknown[0]))
                raise ConfigError(f"{where}: unknown key; known here: module, class, args")
            ours.append(index)
        else:
            warnings.append(f"{document.where(('plugins', index))}: another plugin, left to the host it is meant for")
    if not ours:
        raise ConfigError(f"{document.where(('plugins',))}: has no entry with module: {PLUGIN_MODULE}")
    if len(ours) > 1 or "external_agent" in document.data:
        other = ("plugins", ours[1]) if len(ours) > 1 else ("external_agent",)
        raise ConfigError(f"{document.where(other)}: the external agents are configured a second time here")
    entry = entries[ours[0]]
    if entry.get("args") is None:
        entry["args"] = {}
    document.data["plugins"] = [{} if index != ours[0] else entry for index in range(len(entries))]
    return ("plugins", ours[0], "args")


def _at(data: Any, path: KeyPath) -> Any:
    for part in path:
        data = data[part]
    return data


def _check_repos(config: Config, document: Document, warnings: list[str]) -> None:
    for name, path in config.repos.items():
        where = document.where(("repos", name))
        if path == Path("/") or path.resolve() == Path("/"):
            raise ConfigError(f"{where}: the whole file system is no repo")
        if not path.is_dir():
            warnings.append(f"{where}: {path} is not a directory (now); runs that name it will be refused")
        key_file = config.vault.key_file
        if key_file is not None and key_file.parent.resolve().is_relative_to(path.resolve()):
            inside = f"{document.where(('vault', 'key_file'))}: lies inside the repo {name}"
            raise ConfigError(f"{inside}: an agent would see the master key; put it elsewhere")


def _check_backends(config: Config, document: Document, prefix: KeyPath, warnings: list[str]) -> None:
    for name, backend in config.external_agent.backends.items():
        path: KeyPath = ("external_agent", "backends", name)
        where = document.where(in_file(path, prefix))
        guess = nearest(name, KNOWN_BACKENDS)
        if name not in KNOWN_BACKENDS and guess:
            warnings.append(f"{where}: not a backend that podmentor brings; did you mean {guess}?")
        if backend.base_url and backend.base_url.startswith("http://") and backend.api_key:
            host = backend.base_url.removeprefix("http://").split("/", 1)[0].rsplit(":", 1)[0]
            if host not in {"127.0.0.1", "localhost", "[::1]"}:
                warnings.append(f"{where}.base_url: the key goes over the network unencrypted (http)")


def _file_warnings(source: Path, config: Config) -> list[str]:
    """A key written into a file that others can read is a key given away."""
    has_key = any(backend.api_key for backend in config.external_agent.backends.values())
    text = source.read_text(encoding="utf-8")
    literal = has_key and any(
        line.split(":", 1)[0].strip() == "api_key" and "${" not in line for line in text.splitlines()
    )
    if literal and stat.S_IMODE(source.stat().st_mode) & 0o077:
        return [f"{source}: holds a key and can be read by others: chmod 600 {source}"]
    return []


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
