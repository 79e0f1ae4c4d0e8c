"""Foreign JSON schemas become what Segue checks: everything they allow passes, null for what may be absent excepted."""

from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from segue.envs.adapters.foreign_schema import foreign_tool
from segue.envs.tool import ToolCall, find_problem


class _Place(BaseModel):
    x: float = Field(ge=0, le=9)
    name: str | None = None


class _Order(BaseModel):
    """An order, as pydantic declares it."""

    item: Literal["mint", "lily"] = Field(description="What to take.")
    count: int = Field(default=1, ge=1, title="Count", examples=[3])
    place: _Place
    others: list[_Place] = Field(default_factory=list, max_length=2)
    note: str | None = None
    code: int | str = 0
    must: str | None


def problem(schema: dict[str, Any], arguments: dict[str, Any]) -> str | None:
    return find_problem((foreign_tool("t", "", schema),), ToolCall(name="t", arguments=arguments))


def test_a_model_of_pydantic_keeps_what_can_be_checked() -> None:
    spec = foreign_tool("order", "Order.", _Order.model_json_schema())
    place = {
        "type": "object",
        "properties": {"x": {"type": "number", "minimum": 0, "maximum": 9}, "name": {"type": "string"}},
        "required": ["x"],
    }
    assert spec.parameters == {
        "type": "object",
        "properties": {
            "item": {"type": "string", "enum": ["mint", "lily"], "description": "What to take."},
            "count": {"type": "integer", "minimum": 1},
            "place": place,
            "others": {"type": "array", "items": place, "maxItems": 2},
            "note": {"type": "string"},
            # several types, and null where the property must be given: the foreign side checks them
            "code": {},
            "must": {},
        },
        "required": ["item", "place", "must"],
    }


def test_what_pydantic_takes_is_taken_and_what_is_plainly_wrong_is_named() -> None:
    schema = _Order.model_json_schema()
    good: dict[str, Any] = {"item": "mint", "place": {"x": 3.5}, "must": None, "code": "b"}
    _Order.model_validate(good)
    assert problem(schema, good) is None
    for change, words in (
        ({"item": "rose"}, "t.item must be one of mint, lily"),
        ({"count": 0}, "t.count must be at least 1"),
        ({"place": {"x": 10}}, "t.place.x must be at most 9"),
        ({"others": [{}]}, r"t.others\[0\] needs x"),
        ({"colour": "red"}, "t takes no"),
    ):
        with pytest.raises(AssertionError, match=words):
            assert (found := problem(schema, {**good, **change})) is None, found


@pytest.mark.parametrize(
    ("schema", "accepted"),
    [
        ({}, {"anything": 1}),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, {"a": 1}),
        ({"properties": {"a": {"type": ["integer", "null"], "format": "int32", "multipleOf": 2}}}, {"a": 4}),
        ({"properties": {"a": {"const": "x"}}}, {"a": "x"}),
        (
            {"properties": {"a": {"allOf": [{"$ref": "#/definitions/A"}]}}, "definitions": {"A": {"type": "null"}}},
            {"a": None},
        ),
        ({"properties": {"a": {"$ref": "#/$defs/no_such"}}}, {"a": 1}),
        (
            {"properties": {"a": True, "b": {"type": "array", "prefixItems": [{"type": "integer"}]}}},
            {"a": [], "b": [1]},
        ),
        ({"properties": {"a": {"enum": ["x", None]}}, "required": ["a", "gone"]}, {"a": None}),
    ],
)
def test_keywords_that_mean_nothing_here_leave_the_rest(schema: dict[str, Any], accepted: dict[str, Any]) -> None:
    assert problem(schema, accepted) is None


def test_a_schema_that_refers_to_itself_ends_in_anything() -> None:
    tree = {"type": "object", "properties": {"left": {"$ref": "#/$defs/Tree"}, "leaf": {"type": "integer"}}}
    schema = {"properties": {"tree": {"$ref": "#/$defs/Tree"}}, "$defs": {"Tree": tree}}
    assert problem(schema, {"tree": {"left": {"left": {"leaf": "not checked"}}, "leaf": 1}}) is None
    assert "t.tree.leaf must be of type integer" in str(problem(schema, {"tree": {"leaf": "x"}}))


def test_an_object_without_properties_takes_nothing_where_it_says_so() -> None:
    closed = {"type": "object", "additionalProperties": False}
    assert problem(closed, {}) is None
    assert "takes nothing" in str(problem(closed, {"a": 1})).replace("it takes: nothing", "takes nothing")


def test_a_value_that_is_no_schema_is_named_with_its_tool() -> None:
    with pytest.raises(ValueError, match=r"minimum of bad\.a must be a number"):
        foreign_tool("bad", "", {"properties": {"a": {"type": "integer", "minimum": "one"}}})
