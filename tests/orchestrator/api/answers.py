"""What the published document promises of every good answer, without names and words: members, types, what is required."""

import json
from collections.abc import Mapping
from typing import Any


def promised(spec: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every shape of answer once, with the operations that give it (``METHOD path status media-type``)."""
    components = spec["components"]["schemas"]
    found: dict[str, list[str]] = {}
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            for status, reply in operation["responses"].items():
                for media_type, content in reply.get("content", {}).items():
                    if media_type != "application/problem+json":
                        text = json.dumps(
                            shape(content.get("x-itemSchema", content["schema"]), components), sort_keys=True
                        )
                        found.setdefault(text, []).append(f"{method.upper()} {path} {status} {media_type}")
    table = [{"answers": sorted(names), "shape": json.loads(text)} for text, names in found.items()]
    return sorted(table, key=lambda row: row["answers"])


def shape(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Any:
    """In short: ``name?`` is a member that may be missing, ``...`` what further members hold."""
    if "$ref" in schema:
        return shape(components[schema["$ref"].rpartition("/")[2]], components)
    if "const" in schema:
        return repr(schema["const"])
    if "enum" in schema:
        return " | ".join(map(repr, sorted(schema["enum"])))
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            options = [shape(option, components) for option in schema[choice]]
            return " | ".join(options) if all(isinstance(one, str) for one in options) else {choice: options}
    match schema.get("type"):
        case "array":
            return [shape(schema["items"], components)]
        case "object":
            required = schema.get("required", [])
            members = {
                name if name in required else f"{name}?": shape(member, components)
                for name, member in schema.get("properties", {}).items()
            }
            more = schema.get("additionalProperties", True)
            if more is not False:
                members["..."] = "any" if more is True else shape(more, components)
            return members
        case str(plain):
            return plain
        case _:
            return "any"
