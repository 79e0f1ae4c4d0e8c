"""Tool schemas and the words that answer a call that does not fit one."""

from typing import Any, Literal

import pytest

from segue.envs.space import ToolCalls
from segue.envs.tool import ToolCall, ToolSpec, collect_tools, find_problem, object_schema, tool


class Kitchen:
    """A class whose methods are tools."""

    @tool("Bake.")
    def bake(self, dish: str, minutes: int, heat: float = 180.0, *, fan: bool = False) -> None: ...

    @tool("Serve.")
    def serve(self, place: Literal["table", "bar"]) -> None: ...

    def clean(self) -> None: ...


class Bakery(Kitchen):
    """Inherits, adds, and describes one anew."""

    @tool("Sell.")
    def sell(self) -> None: ...

    @tool("Bake bread.")
    def bake(self, loaves: int) -> None: ...  # type: ignore[override]


def test_a_tools_schema_follows_from_its_method() -> None:
    bake, serve = collect_tools(Kitchen)
    assert (bake.name, bake.description) == ("bake", "Bake.")
    assert bake.parameters == {
        "type": "object",
        "properties": {
            "dish": {"type": "string"},
            "minutes": {"type": "integer"},
            "heat": {"type": "number"},
            "fan": {"type": "boolean"},
        },
        "required": ["dish", "minutes"],
    }
    assert serve.parameters["properties"] == {"place": {"type": "string", "enum": ["table", "bar"]}}


def test_tools_are_inherited_in_order() -> None:
    assert [spec.name for spec in collect_tools(Bakery)] == ["bake", "serve", "sell"]
    assert collect_tools(Bakery)[0].parameters == object_schema({"loaves": {"type": "integer"}})


def test_a_hint_without_a_json_type_is_refused() -> None:
    with pytest.raises(TypeError, match="parameter x of tool method must be str, int, float, bool or a Literal"):

        @tool("No.")
        def method(self: Any, x: list[int]) -> None: ...


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"type": "string"}, "must be a JSON schema of type object"),
        ({"type": "object", "additionalProperties": False}, r"schema of t may use .* got \['additionalProperties'\]"),
        (object_schema({"x": {"type": "str"}}), "type of t.x must be one of"),
        (object_schema({"x": {"type": "array", "items": {"pattern": "a"}}}), r"schema of t.x\[\] may use"),
        (5, "parameters of tool 't' must be a JSON schema of type object"),
        (object_schema({"x": 5}), "schema of t.x must be a dictionary, got 5"),
        (
            object_schema({"x": {"type": ["string", "null"]}}),
            r"type of t.x must be one of .*, got \['string', 'null'\]",
        ),
        (object_schema({"x": {"type": None}}), "type of t.x must be one of .*, got None"),
        (object_schema({"x": {"minimum": 1}}), "minimum of t.x must be given with type integer or number, got None"),
        (
            object_schema({"x": {"type": "string", "maximum": 1}}),
            "maximum of t.x must be given with type .*, got 'string'",
        ),
        (object_schema({"x": {"type": "integer", "minimum": "a"}}), "minimum of t.x must be a number, got 'a'"),
        (object_schema({"x": {"type": "number", "maximum": True}}), "maximum of t.x must be a number, got True"),
        (object_schema({"x": {"type": "number", "minimum": float("nan")}}), "minimum of t.x must be a number, got nan"),
        (
            object_schema({"x": {"type": "integer", "minimum": 3, "maximum": 2}}),
            "maximum of t.x must be at least its minimum 3, got 2",
        ),
        (object_schema({"x": {"minLength": 1}}), "minLength of t.x must be given with type string, got None"),
        (
            object_schema({"x": {"type": "string", "maxItems": 1}}),
            "maxItems of t.x must be given with type array, got 'string'",
        ),
        (object_schema({"x": {"type": "array", "minItems": -1}}), "minItems of t.x must be a count, got -1"),
        (object_schema({"x": {"type": "string", "maxLength": 2.0}}), "maxLength of t.x must be a count, got 2.0"),
        (
            object_schema({"x": {"type": "array", "minItems": 2, "maxItems": 1}}),
            "maxItems of t.x must be at least its minItems 2, got 1",
        ),
        (
            object_schema({"x": {"type": "array", "prefixItems": {}}}),
            "prefixItems of t.x must be a list of schemas, got {}",
        ),
        (
            object_schema({"x": {"type": "array", "prefixItems": [{}, {"type": "int"}]}}),
            r"type of t.x\[1\] must be one of",
        ),
        (object_schema({"x": {"enum": 5}}), "enum of t.x must be a list of at least one string or .*, got 5"),
        (object_schema({"x": {"enum": "abc"}}), "enum of t.x must be a list of at least one string or .*, got 'abc'"),
        (object_schema({"x": {"enum": []}}), r"enum of t.x must be a list of at least one string or .*, got \[\]"),
        (object_schema({"x": {"enum": [{}]}}), "enum of t.x must be a list of at least one string or number"),
        (
            object_schema({"x": {"type": "string", "enum": ["a", 1]}}),
            r"enum of t.x must be a list of at least one string, got \['a', 1\]",
        ),
        (object_schema({"x": {"items": {}}}), "items of t.x must be given with type array, got None"),
        (object_schema({"x": {"type": "array", "items": [{}]}}), r"schema of t.x\[\] must be a dictionary, got \[{}\]"),
        (object_schema({"x": {"properties": {}}}), "properties of t.x must be given with type object, got None"),
        ({"type": "object", "properties": ["x"]}, r"properties of t must be a dictionary by name, got \['x'\]"),
        ({"type": "object", "properties": {1: {}}}, "properties of t must be a dictionary by name, got {1: {}}"),
        (
            {"type": "object", "properties": {"a": {}}, "required": "abc"},
            r"required of t must be a list of its properties \(a\), got 'abc'",
        ),
        ({"type": "object", "required": ["a"]}, r"required of t must be a list of its properties \(\), got \['a'\]"),
        (object_schema({"x": {"description": 5}}), "description of t.x must be a string"),
    ],
)
def test_a_schema_that_would_not_be_checked_is_refused(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ToolSpec(name="t", description="", parameters=parameters)


SPEC = ToolSpec(
    name="t",
    description="",
    parameters=object_schema(
        {
            "s": {"type": "string"},
            "i": {"type": "integer", "minimum": 0, "maximum": 5},
            "n": {"type": "number"},
            "b": {"type": "boolean"},
            "e": {"enum": ["a", 1]},
            "l": {"type": "array", "items": {"type": "integer"}},
            "o": {"type": "object", "properties": {"k": {"type": "null"}}, "required": ["k"]},
            "w": {"type": "string", "minLength": 2, "maxLength": 3},
            "p": {"type": "array", "prefixItems": [{"type": "null"}], "items": {"type": "string"}, "maxItems": 3},
            "q": {"type": "array", "minItems": 2, "maxItems": 2},
        },
        optional=["s", "i", "n", "b", "e", "l", "o", "w", "p", "q"],
    ),
)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, None),
        ({"s": "", "i": 5, "n": 2.5, "b": True, "e": 1, "l": [1, 2], "o": {"k": None}}, None),
        ({"n": 3}, None),
        ({"s": 5}, "t.s must be of type string, got 5"),
        ({"i": True}, "t.i must be of type integer, got true"),
        ({"i": 1.0}, "t.i must be of type integer, got 1.0"),
        ({"i": 6}, "t.i must be at most 5, got 6"),
        ({"i": -1}, "t.i must be at least 0, got -1"),
        ({"n": float("inf")}, "t.n must be of type number, got Infinity"),
        ({"n": "2"}, 't.n must be of type number, got "2"'),
        ({"b": 0}, "t.b must be of type boolean, got 0"),
        ({"e": "b"}, 't.e must be one of a, 1, got "b"'),
        ({"l": [1, "x"]}, 't.l[1] must be of type integer, got "x"'),
        ({"o": {}}, "t.o needs k"),
        ({"o": {"k": None, "z": 1}}, 't.o takes no "z"; it takes: k'),
        ({"w": "ab", "p": [None, "x", "y"], "q": [1, "x"]}, None),
        ({"w": "abc", "p": []}, None),
        ({"w": "a"}, "t.w must have at least 2 characters, got 1"),
        ({"w": "abcd"}, "t.w must have at most 3 characters, got 4"),
        ({"p": ["x"]}, 't.p[0] must be of type null, got "x"'),
        ({"p": [None, 5]}, "t.p[1] must be of type string, got 5"),
        ({"p": [None, "x", "y", "z"]}, "t.p must have at most 3 items, got 4"),
        ({"q": [1]}, "t.q must have 2 items, got 1"),
        ({"zz": 1}, 't takes no "zz"; it takes: s, i, n, b, e, l, o, w, p, q'),
        ({"s": ["x" * 100]}, 't.s must be of type string, got ["' + "x" * 58 + "…"),
    ],
)
def test_arguments_are_checked_with_the_reason(arguments: dict[str, Any], problem: str | None) -> None:
    assert find_problem((SPEC,), ToolCall(name="t", arguments=arguments)) == problem


def test_samples_of_a_schema_fit_it() -> None:
    inner = {
        "above": {"type": "integer", "minimum": 500},
        "below": {"type": "integer", "maximum": -500},
        "wide": {"type": "integer", "minimum": -(2**70), "maximum": 2**70},
        "narrow": {"type": "number", "minimum": 0.25, "maximum": 0.5},
        "huge": {"type": "number", "minimum": -1.7e308, "maximum": 1.7e308},
        "word": {"type": "string", "minLength": 7, "maxLength": 8},
        "short": {"type": "string", "maxLength": 1},
        "pair": {"type": "array", "prefixItems": [{"type": "null"}, {"type": "boolean"}], "minItems": 2, "maxItems": 2},
        "many": {"type": "array", "items": {"enum": [5]}, "minItems": 3},
    }
    space = ToolCalls((ToolSpec(name="t", description="", parameters=object_schema(inner)),))
    space.seed(0)
    calls = [space.sample() for _ in range(50)]
    assert all(space.find_problem(call) is None for call in calls)
    assert {call.arguments["narrow"] for call in calls} > {calls[0].arguments["narrow"]}
    assert {len(call.arguments["many"]) for call in calls} == {3, 4, 5}


def test_unknown_tools_and_unnamed_arguments_are_named() -> None:
    assert find_problem((SPEC,), ToolCall(name="q")) == 'no tool "q"; tools: t'
    wrong = ToolCall(name="t", arguments=[1])  # type: ignore[arg-type]
    assert find_problem((SPEC,), wrong) == "t takes named arguments, got [1]"
