"""Tools: what a model may call, and what is wrong with a call that it made.

A tool's parameters are a JSON schema. Only the keywords that `find_problem` checks are accepted, so that a schema never
promises more than is held: type, properties, required, items, prefixItems, minItems, maxItems, minLength, maxLength,
enum, minimum, maximum, description.
"""

import inspect
import itertools
import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
# keyword to the types that it says something about
_NEEDED_TYPES = {
    "properties": ("object",),
    "required": ("object",),
    "items": ("array",),
    "prefixItems": ("array",),
    "minItems": ("array",),
    "maxItems": ("array",),
    "minLength": ("string",),
    "maxLength": ("string",),
    "minimum": ("integer", "number"),
    "maximum": ("integer", "number"),
}
_KEYWORDS = {"type", "enum", "description", *_NEEDED_TYPES}
# least and most of the same, and whether it is a count
_BOUNDS = (("minimum", "maximum", False), ("minItems", "maxItems", True), ("minLength", "maxLength", True))
_SCALARS = ["string", "number", "boolean", "null"]
_HINTS: dict[Any, str] = {str: "string", int: "integer", float: "number", bool: "boolean"}
_MAX_QUOTED_CHARS = 60
_SPEC_ATTRIBUTE = "tool_spec"
_Method = TypeVar("_Method", bound=Callable[..., Any])


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolSpec:
    """A tool as the model sees it.

    Raises:
        ValueError: the schema is not an object's, has a keyword that is not checked, or one with a value that says
            nothing.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    """JSON schema of the arguments, an object; arguments beyond its properties are refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, dict) or self.parameters.get("type") != "object":
            raise ValueError(f"parameters of tool {self.name!r} must be a JSON schema of type object")
        _check_schema(self.name, self.parameters)


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call as the model wrote it: nothing about it is known to be right."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


def object_schema(properties: dict[str, dict[str, Any]], optional: Iterable[str] = ()) -> dict[str, Any]:
    """JSON schema of an object whose properties are required but for the optional ones."""
    required = [name for name in properties if name not in set(optional)]
    return {"type": "object", "properties": properties, "required": required}


def tool(description: str) -> Callable[[_Method], _Method]:
    """Marks a method of a `ToolEnv` as a tool; its name and type hints become the schema.

    Hints may be `str`, `int`, `float`, `bool` or a `Literal` of strings; a parameter with a default is optional.

    Raises:
        TypeError: a parameter has another hint, or none.
    """

    def mark(method: _Method) -> _Method:
        hints = get_type_hints(method)
        properties, optional = {}, []
        for parameter in list(inspect.signature(method).parameters.values())[1:]:
            properties[parameter.name] = _schema_of_hint(method.__name__, parameter.name, hints.get(parameter.name))
            if parameter.default is not inspect.Parameter.empty:
                optional.append(parameter.name)
        spec = ToolSpec(name=method.__name__, description=description, parameters=object_schema(properties, optional))
        setattr(method, _SPEC_ATTRIBUTE, spec)
        return method

    return mark


def collect_tools(owner: type) -> tuple[ToolSpec, ...]:
    """The tools that a class's methods are marked as, base classes first, in the order of definition."""
    specs: dict[str, ToolSpec] = {}
    for base in reversed(owner.__mro__):
        for value in vars(base).values():
            spec = getattr(value, _SPEC_ATTRIBUTE, None)
            if isinstance(spec, ToolSpec):
                specs[spec.name] = spec
    return tuple(specs.values())


def check_tools(tools: Any) -> tuple[ToolSpec, ...]:
    """The tools of an environment, which may have set them itself.

    Raises:
        TypeError: they are not specs.
        ValueError: two have one name.
    """
    if not isinstance(tools, (tuple, list)) or not all(isinstance(spec, ToolSpec) for spec in tools):
        raise TypeError(f"tools must be a tuple of ToolSpec, got {tools!r:.200}")
    names = [spec.name for spec in tools]
    if len(set(names)) < len(names):
        raise ValueError(f"tools must have different names, got {names}")
    return tuple(tools)


def find_problem(tools: tuple[ToolSpec, ...], call: ToolCall) -> str | None:
    """Says why a call cannot be run, in words for the model; None when it can."""
    spec = next((spec for spec in tools if spec.name == call.name), None)
    if spec is None:
        return f"no tool {_quote(call.name)}; tools: {', '.join(spec.name for spec in tools)}"
    if not isinstance(call.arguments, dict):
        return f"{spec.name} takes named arguments, got {_quote(call.arguments)}"
    return _find_violation(spec.name, spec.parameters, call.arguments)


def _find_violation(path: str, schema: dict[str, Any], value: Any) -> str | None:
    kind = schema.get("type")
    if kind is not None and not _has_type(kind, value):
        return f"{path} must be of type {kind}, got {_quote(value)}"
    if "enum" in schema and value not in schema["enum"]:
        return f"{path} must be one of {', '.join(map(str, schema['enum']))}, got {_quote(value)}"
    if "minimum" in schema and value < schema["minimum"]:
        return f"{path} must be at least {schema['minimum']}, got {_quote(value)}"
    if "maximum" in schema and value > schema["maximum"]:
        return f"{path} must be at most {schema['maximum']}, got {_quote(value)}"
    if isinstance(value, str) and (problem := _find_wrong_count(schema, "Length", len(value))) is not None:
        return f"{path} must have {problem} characters, got {len(value)}"
    if isinstance(value, list):
        return _find_item_violation(path, schema, value)
    if isinstance(value, dict) and "properties" in schema:
        properties = schema["properties"]
        for name in schema.get("required", ()):
            if name not in value:
                return f"{path} needs {name}"
        for name in value:
            if name not in properties:
                return f"{path} takes no {_quote(name)}; it takes: {', '.join(properties) or 'nothing'}"
        return _first(_find_violation(f"{path}.{name}", properties[name], item) for name, item in value.items())
    return None


def _find_item_violation(path: str, schema: dict[str, Any], items: list[Any]) -> str | None:
    problem = _find_wrong_count(schema, "Items", len(items))
    if problem is not None:
        return f"{path} must have {problem} items, got {len(items)}"
    # what stands beyond the schemas by place has the one of all others
    schemas = itertools.chain(schema.get("prefixItems", ()), itertools.repeat(schema.get("items", {})))
    return _first(
        _find_violation(f"{path}[{i}]", inner, item)
        for i, (inner, item) in enumerate(zip(schemas, items, strict=False))
    )


def _find_wrong_count(schema: dict[str, Any], what: str, count: int) -> str | None:
    """The rule that a count breaks, in words."""
    least, most = schema.get(f"min{what}", 0), schema.get(f"max{what}", math.inf)
    if least <= count <= most:
        return None
    if least == most:
        return str(least)
    return f"at least {least}" if count < least else f"at most {most}"


def _first(problems: Iterable[str | None]) -> str | None:
    return next((problem for problem in problems if problem is not None), None)


def _has_type(kind: str, value: Any) -> bool:
    # bool is an int to Python but not to JSON, and JSON has no NaN
    if isinstance(value, bool):
        return kind == "boolean"
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return isinstance(value, _TYPES[kind])


def _quote(value: Any) -> str:
    text = json.dumps(value, default=repr, ensure_ascii=False)
    return text if len(text) <= _MAX_QUOTED_CHARS else f"{text[:_MAX_QUOTED_CHARS]}…"


def _check_schema(path: str, schema: Any) -> None:
    """Refuses what `_find_violation` would not check, or would fail on."""
    _require(isinstance(schema, dict), f"schema of {path}", "a dictionary", schema)
    unknown = set(schema) - _KEYWORDS
    if unknown:
        raise ValueError(f"schema of {path} may use {sorted(_KEYWORDS)}, got {sorted(map(str, unknown))}")
    kind = schema.get("type")
    _require("type" not in schema or kind in list(_TYPES), f"type of {path}", f"one of {sorted(_TYPES)}", kind)
    for keyword, kinds in _NEEDED_TYPES.items():
        rule = f"given with type {' or '.join(kinds)}"
        _require(keyword not in schema or kind in kinds, f"{keyword} of {path}", rule, kind)
    _require(isinstance(schema.get("description", ""), str), f"description of {path}", "a string", schema)
    _check_values(path, schema)
    if "items" in schema:
        _check_schema(f"{path}[]", schema["items"])
    by_place = schema.get("prefixItems", [])
    _require(isinstance(by_place, list), f"prefixItems of {path}", "a list of schemas", by_place)
    for index, inner in enumerate(by_place):
        _check_schema(f"{path}[{index}]", inner)
    properties = schema.get("properties", {})
    is_named = isinstance(properties, dict) and all(isinstance(name, str) for name in properties)
    _require(is_named, f"properties of {path}", "a dictionary by name", properties)
    required = schema.get("required", [])
    is_known = isinstance(required, list) and all(name in list(properties) for name in required)
    _require(is_known, f"required of {path}", f"a list of its properties ({', '.join(properties)})", required)
    for name, inner in properties.items():
        _check_schema(f"{path}.{name}", inner)


def _check_values(path: str, schema: dict[str, Any]) -> None:
    kind = schema.get("type")
    for least, most, is_count in _BOUNDS:
        for keyword in (least, most):
            bound = schema.get(keyword, 0)
            holds = _has_type("integer", bound) and bound >= 0 if is_count else _has_type("number", bound)
            _require(holds, f"{keyword} of {path}", "a count" if is_count else "a number", bound)
        if least in schema and most in schema:
            rule = f"at least its {least} {schema[least]}"
            _require(schema[least] <= schema[most], f"{most} of {path}", rule, schema[most])
    if "enum" in schema:
        allowed = [kind] if kind is not None else _SCALARS
        members = schema["enum"]
        holds = isinstance(members, list) and bool(members)
        holds = holds and all(any(_has_type(name, member) for name in allowed) for member in members)
        _require(holds, f"enum of {path}", f"a list of at least one {' or '.join(allowed)}", members)


def _require(holds: bool, path: str, rule: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{path} must be {rule}, got {value!r}")


def _schema_of_hint(method: str, name: str, hint: Any) -> dict[str, Any]:
    if get_origin(hint) is Literal and all(isinstance(member, str) for member in get_args(hint)):
        return {"type": "string", "enum": list(get_args(hint))}
    if hint not in _HINTS:
        raise TypeError(f"parameter {name} of tool {method} must be str, int, float, bool or a Literal, got {hint!r}")
    return {"type": _HINTS[hint]}
