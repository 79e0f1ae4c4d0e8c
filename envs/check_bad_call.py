"""Calls that no tool accepts, made from its schemas."""

from collections.abc import Iterator
from typing import Any

from segue.envs.space import ToolCalls
from segue.envs.tool import ToolCall, ToolSpec, find_problem


def bad_calls(tools: tuple[ToolSpec, ...]) -> Iterator[ToolCall]:
    """Other names, arguments too few and too many, of other types and out of bounds: one fault in each call."""
    for call in _candidates(tools):
        if find_problem(tools, call) is not None:
            yield call


def _candidates(tools: tuple[ToolSpec, ...]) -> Iterator[ToolCall]:
    yield ToolCall(name="no_such_tool")
    yield ToolCall(name="")
    for spec in tools:
        samples = ToolCalls((spec,))
        samples.seed(0)
        good = samples.sample().arguments
        yield ToolCall(name=spec.name, arguments={**good, "no_such_argument": 1})
        for name, schema in spec.parameters.get("properties", {}).items():
            yield ToolCall(name=spec.name, arguments={key: value for key, value in good.items() if key != name})
            for value in _bad_values(schema):
                yield ToolCall(name=spec.name, arguments={**good, name: value})


def _bad_values(schema: dict[str, Any]) -> Iterator[Any]:
    yield {"odd": []}
    yield "no such value"
    if "maximum" in schema:
        yield schema["maximum"] + 1
    if "minimum" in schema:
        yield schema["minimum"] - 1
    yield ["x"] * (schema.get("maxItems", 0) + 1)
