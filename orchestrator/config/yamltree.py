"""YAML text in, plain data and the line of every key out.

Stricter than YAML itself: no tags that run code, no key twice in one mapping, keys are text, and a bound on size and
depth, so that no file can make the loader grow without end.
"""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

import yaml

from orchestrator.errors import ConfigError

KeyPath: TypeAlias = tuple[str | int, ...]
MAX_BYTES = 1024**2
MAX_NODES = 50_000
MAX_DEPTH = 40
_PLAIN_TAGS = {"tag:yaml.org,2002:map", "tag:yaml.org,2002:seq"}


@dataclass(slots=True)
class Document:
    """A parsed file: ``data`` as plain dicts, lists and scalars, ``lines`` from key path to line (from 1)."""

    name: str
    data: Any
    lines: dict[KeyPath, int] = field(default_factory=dict)

    def line_of(self, path: KeyPath) -> int | None:
        """The line of ``path``, or of the nearest thing around it that the file has."""
        for length in range(len(path), 0, -1):
            if (line := self.lines.get(path[:length])) is not None:
                return line
        return None

    def where(self, path: KeyPath) -> str:
        """``file:line: key`` for the head of a message."""
        line = self.line_of(path)
        place = f"{self.name}:{line}" if line is not None else self.name
        return f"{place}: {dotted(path)}" if path else place


def dotted(path: KeyPath) -> str:
    """``repos.main`` or ``plugins[0].args``: how a key is written in messages."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


class _Builder:
    """Walks the node tree of one document."""

    def __init__(self, loader: yaml.SafeLoader, document: Document) -> None:
        self._loader = loader
        self._document = document
        self._seen = 0
        self._checked: set[int] = set()

    def build(self, node: yaml.Node, path: KeyPath) -> Any:
        self._seen += 1
        if self._seen > MAX_NODES or len(path) > MAX_DEPTH:
            raise self._error(node, path, "the file is nested or repeated (by aliases) beyond all reason")
        self._document.lines.setdefault(path, node.start_mark.line + 1)
        if not isinstance(node, yaml.ScalarNode) and node.tag not in _PLAIN_TAGS:
            raise self._error(node, path, f"the tag {node.tag!r} has no place here")
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        try:
            return self._loader.construct_object(node, deep=True)
        except (yaml.YAMLError, ValueError) as error:
            reason = getattr(error, "problem", None) or str(error)
            raise self._error(node, path, f"not a plain value ({reason})") from None

    def _mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        if id(node) not in self._checked:  # an alias brings the same node again, by then with its merges written out
            self._checked.add(id(node))
            self._refuse_doubles(node, path)
            try:
                self._loader.flatten_mapping(node)
            except yaml.YAMLError as error:
                reason = getattr(error, "problem", None) or str(error)
                raise self._error(node, path, f"<< cannot be merged ({reason})") from None
        out: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            self._document.lines[*path, key] = key_node.start_mark.line + 1
            out[key] = self.build(value_node, (*path, key))
        return out

    def _refuse_doubles(self, node: yaml.MappingNode, path: KeyPath) -> None:
        first: dict[str, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            if key_node.tag != "tag:yaml.org,2002:str":
                shown = key_node.value if isinstance(key_node.value, str) else "a list or mapping"
                raise self._error(key_node, path, f"keys are text; put {shown!r} in quotes if it is meant as a name")
            line = key_node.start_mark.line + 1
            if key_node.value in first:
                raise ConfigError(
                    f"{self._document.name}:{line}: {dotted((*path, key_node.value))}: "
                    f"given twice (first in line {first[key_node.value]})",
                    line=line,
                )
            first[key_node.value] = line

    def _error(self, node: yaml.Node, path: KeyPath, what: str) -> ConfigError:
        line = node.start_mark.line + 1
        head = f"{self._document.name}:{line}: "
        return ConfigError(f"{head}{dotted(path)}: {what}" if path else f"{head}{what}", line=line)


def parse(text: str, *, name: str) -> Document:
    """Read one YAML document.  ``name`` is what messages call the file.  Raises ConfigError with the line."""
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        raise ConfigError(f"{name}: larger than {MAX_BYTES // 1024} KiB, which no configuration is")
    document = Document(name=name, data=None)
    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        document.data = None if node is None else _Builder(loader, document).build(node, ())
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        place = f"{name}:{line}" if line is not None else name
        hint = ""
        if line is not None and "${" in text.splitlines()[min(line - 1, text.count("\n"))]:
            hint = "; a ${…} inside { } or [ ] needs quotes around it"
        raise ConfigError(f"{place}: not YAML: {error.problem}{hint}", line=line) from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{name}: not YAML: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise ConfigError(f"{name}: nested beyond all reason") from None
    finally:
        loader.dispose()
    return document
