"""Foreign tools as `ToolSpec`: what of their JSON schemas Segue checks.

What has no part in a `ToolSpec` (patterns, formats, alternatives, defaults, …) is left out, so that the schema accepts
more; the foreign side checks its arguments itself, and what it says of them is what the policy reads. Two things are
narrower than there: null is left out rather than passed where a property may be absent, and an object takes none but
its named properties where it has any.
"""

from collections.abc import Mapping
from typing import Any

from segue.envs.tool import ToolSpec

_KEYWORDS = {
    "string": ("minLength", "maxLength"),
    "integer": ("minimum", "maximum"),
    "number": ("minimum", "maximum"),
    "array": ("minItems", "maxItems"),
    "object": (),
    "boolean": (),
    "null": (),
}
_DEFINITIONS = ("$defs", "definitions")
_ALTERNATIVES = ("anyOf", "oneOf", "allOf")


def foreign_tool(name: str, description: str, schema: Mapping[str, Any]) -> ToolSpec:
    """A tool that somebody else declared.

    Args:
        name: as the foreign side calls it.
        description: of the whole tool; may be empty.
        schema: JSON schema of the arguments, with whatever keywords.
    Raises:
        ValueError: the values of its keywords are no JSON schema.
    """
    definitions = {
        f"#/{key}/{inner}": value for key in _DEFINITIONS for inner, value in (schema.get(key) or {}).items()
    }
    parameters = _reduce(schema, definitions)
    parameters.pop("description", None)
    return ToolSpec(name=name, description=description, parameters={**parameters, "type": "object"})


def _reduce(schema: Any, definitions: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(schema, Mapping):
        return {}
    reduced = {"description": schema["description"]} if isinstance(schema.get("description"), str) else {}
    reference = schema.get("$ref")
    if reference is not None:
        # without the name, so that what refers to itself ends in "anything"
        rest = {name: value for name, value in definitions.items() if name != reference}
        return {**_reduce(definitions.get(reference), rest), **reduced}
    only = next((_only(schema[keyword]) for keyword in _ALTERNATIVES if keyword in schema), None)
    if only is not None:
        return {**_reduce(only, definitions), **reduced}
    kind = _kind(schema)
    if kind is not None:
        reduced["type"] = kind
        reduced |= {keyword: schema[keyword] for keyword in _KEYWORDS[kind] if keyword in schema}
    members = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(members, list) and kind not in ("array", "object"):
        reduced["enum"] = [member for member in members if member is not None or kind in (None, "null")]
    if kind == "array":
        if isinstance(schema.get("items"), Mapping):
            reduced["items"] = _reduce(schema["items"], definitions)
        if "prefixItems" in schema:
            reduced["prefixItems"] = [_reduce(item, definitions) for item in schema["prefixItems"]]
    if kind == "object" and (schema.get("properties") or schema.get("additionalProperties") is False):
        properties = schema.get("properties") or {}
        required = [name for name in schema.get("required", ()) if name in properties]
        reduced["properties"] = {
            name: _describe(inner) if name in required and _is_nullable(inner) else _reduce(inner, definitions)
            for name, inner in properties.items()
        }
        reduced["required"] = required
    return reduced


def _only(alternatives: Any) -> Any:
    """The one alternative beside null; None where there are several."""
    others = [inner for inner in alternatives if not isinstance(inner, Mapping) or inner.get("type") != "null"]
    return others[0] if len(others) == 1 else None


def _kind(schema: Mapping[str, Any]) -> str | None:
    """The one type beside null; None where any of several will do."""
    kind = schema.get("type", "object" if "properties" in schema else None)
    if isinstance(kind, list):
        kinds = [inner for inner in kind if inner != "null"]
        kind = kinds[0] if len(kinds) == 1 else None
    return kind if kind in _KEYWORDS else None


def _is_nullable(schema: Any) -> bool:
    if not isinstance(schema, Mapping):
        return False
    kind = schema.get("type")
    alternatives = [inner for keyword in _ALTERNATIVES for inner in schema.get(keyword, ())]
    return (isinstance(kind, list) and "null" in kind) or any(
        isinstance(inner, Mapping) and inner.get("type") == "null" for inner in alternatives
    )


def _describe(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Any value at all, with the words about it."""
    return _reduce({"description": schema.get("description")}, {})
