"""Schemas of action spaces, and arguments that fit a schema but mean no action. That every action comes back as it was:
tests/property/test_foreign_spaces.py."""

import string
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from segue.envs.foreign_action import TOOL_NAME, ActionCalls, ActionForm, find_unsupported_action
from segue.envs.tool import ToolCall, ToolSpec


def make_calls(space: Any, names: tuple[str, ...] | None = None) -> ActionCalls:
    form = ActionForm(space, names)
    return ActionCalls(ToolSpec(name=TOOL_NAME, description="", parameters=form.parameters), form)


def number(low: float, high: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


def of(count: int, **items: Any) -> dict[str, Any]:
    return {"type": "array", **items, "minItems": count, "maxItems": count}


@pytest.mark.parametrize(
    ("space", "schema"),
    [
        (spaces.Discrete(3, start=-1), number(-1, 1)),
        (spaces.Discrete(100, start=-100, dtype=np.int8), number(-100, -1)),
        (spaces.MultiBinary(2), of(2, items=number(0, 1))),
        (spaces.MultiDiscrete([3, 3]), of(2, items=number(0, 2))),
        (spaces.MultiDiscrete([5, 2], start=[1, -1]), of(2, prefixItems=[number(1, 5), number(-1, 0)])),
        (
            spaces.MultiDiscrete([[2, 2], [2, 4]]),
            of(2, prefixItems=[of(2, items=number(0, 1)), of(2, prefixItems=[number(0, 1), number(0, 3)])]),
        ),
        # 0.1 of float32 is 0.100000001490116, but nobody needs to read that
        (spaces.Box(-0.1, 0.1, (2, 1)), of(2, items=of(1, items=number(-0.1, 0.1, "number")))),
        (spaces.Box(0, 2, (), np.float64), number(0.0, 2.0, "number")),
        (spaces.Box(0, np.inf, (), np.float32), {"type": "number", "minimum": 0.0}),
        (spaces.Box(-5, 5, (1,), np.int16), of(1, items=number(-5, 5))),
        (spaces.Box(0, 1, (1,), np.bool_), of(1, items=number(0, 1))),
        (spaces.Box(0, 1, (0,)), of(0)),
        (
            spaces.Text(3, min_length=2, charset="cab"),
            {"type": "string", "minLength": 2, "maxLength": 3, "description": "characters: abc"},
        ),
        (spaces.Tuple((spaces.Discrete(2), spaces.Discrete(4))), of(2, prefixItems=[number(0, 1), number(0, 3)])),
    ],
)
def test_a_space_becomes_the_schema_of_the_one_argument(space: Any, schema: dict[str, Any]) -> None:
    parameters = ActionForm(space, None).parameters
    assert parameters == {"type": "object", "properties": {"action": schema}, "required": ["action"]}


def test_a_dictionary_of_actions_becomes_named_arguments() -> None:
    inner = spaces.Dict({"left": spaces.Discrete(2), 3: spaces.MultiBinary(1)})
    space = spaces.Dict({"steer": spaces.Box(-1, 1, (1,)), "arms": inner})
    form = ActionForm(space, None)
    arms = {"left": number(0, 1), "3": of(1, items=number(0, 1))}
    assert form.parameters["properties"] == {
        "steer": of(1, items=number(-1.0, 1.0, "number")),
        "arms": {"type": "object", "properties": arms, "required": ["left", "3"]},
    }
    action = form.to_action({"arms": {"3": [1], "left": 0}, "steer": [1]})
    assert list(action) == list(space.spaces)
    assert (action["arms"][3].dtype, action["arms"][3].tolist(), action["arms"]["left"]) == (np.int8, [1], 0)
    assert (action["steer"].dtype, action["steer"].tolist()) == (np.float32, [1.0])


def test_characters_are_shown_within_bounds() -> None:
    # 95 printable ones of ASCII and 100 others
    charset = [chr(code) for code in (*range(32, 127), *range(1000, 1100))]
    schema = ActionForm(spaces.Text(5, charset="".join(charset)), None).parameters["properties"]["action"]
    assert schema["description"] == f"characters: {''.join(charset[:128])} and 67 others"


class Even(spaces.Box):
    """Numbers of a box that are even."""

    def contains(self, x: Any) -> bool:
        return bool(super().contains(x) and np.all(x % 2 == 0))

    def __repr__(self) -> str:
        return "Even"


@pytest.mark.parametrize(
    ("space", "action", "problem"),
    [
        (spaces.Discrete(3), 3, "act.action must be at most 2, got 3"),
        (spaces.Discrete(3), 1.0, "act.action must be of type integer, got 1.0"),
        (spaces.Discrete(3), 10**400, f"act.action must be at most 2, got 1{'0' * 59}…"),
        (spaces.MultiDiscrete([5, 2]), [4, 2], "act.action[1] must be at most 1, got 2"),
        (spaces.MultiDiscrete([5, 2]), [4], "act.action must have 2 items, got 1"),
        (spaces.MultiBinary(2), [True, 0], "act.action[0] must be of type integer, got true"),
        (spaces.Box(-1, 1, (2, 2)), [[0, 0], [0]], "act.action[1] must have 2 items, got 1"),
        (spaces.Box(-1, 1, (1,)), [1.0000001], "act.action[0] must be at most 1.0, got 1.0000001"),
        (spaces.Box(-1, 1, (1,)), 0.5, "act.action must be of type array, got 0.5"),
        # float32 ends at 3.4e38, float64 at 1.8e308
        (
            spaces.Box(-np.inf, np.inf, (1,)),
            [1e39],
            "act.action must hold numbers of float32, got one beyond its range",
        ),
        (
            spaces.Box(-np.inf, np.inf, (), np.float64),
            10**400,
            "act.action must hold numbers of float64, got one beyond its range",
        ),
        (spaces.Box(0, 9, (1,), np.uint8), [0.5], "act.action[0] must be of type integer, got 0.5"),
        (spaces.Text(3, charset=string.digits), "1a", "act.action must be of the characters 0123456789, got 'a'"),
        (spaces.Text(3), "", "act.action must have at least 1 characters, got 0"),
        (spaces.Tuple((spaces.Text(3, charset="x"),)), ["y"], "act.action[0] must be of the characters x, got 'y'"),
        (Even(0, 9, (1,), np.int8), [3], "act must be given an action of Even"),
    ],
)
def test_arguments_that_mean_no_action_are_told_why(space: Any, action: Any, problem: str) -> None:
    calls = make_calls(space)
    assert calls.find_problem(ToolCall(name="act", arguments={"action": action})) == problem
    assert not calls.contains(ToolCall(name="act", arguments={"action": action}))


def test_names_stand_for_the_actions_in_their_order() -> None:
    form = ActionForm(spaces.Discrete(2, start=5, dtype=np.int32), ("left", "right"))
    assert form.parameters["properties"] == {"action": {"type": "string", "enum": ["left", "right"]}}
    action = form.to_action({"action": "right"})
    assert (action, action.dtype) == (6, np.int32)
    assert form.to_arguments(np.int64(5)) == {"action": "left"}


@pytest.mark.parametrize(
    ("space", "found"),
    [
        (spaces.Sequence(spaces.Discrete(2)), "actions Sequence(Discrete(2), stack=False)"),
        (spaces.Dict({"a": spaces.Graph(spaces.Discrete(2), None)}), "actions.a Graph(Discrete(2), None)"),
        (spaces.Box(0, 1, (1025,)), "actions Box(0.0, 1.0, (1025,), float32)"),
        (spaces.Box(0, 1, (32, 32)), None),
        (spaces.Box(0, 1, (1,), np.longdouble), "actions Box(0.0, 1.0, (1,), float128)"),
        (
            spaces.Dict({1: spaces.Discrete(2), "1": spaces.Discrete(3)}),
            "actions.1 twice: its keys must differ as text",
        ),
    ],
)
def test_what_cannot_be_written_is_found_with_its_place(space: Any, found: str | None) -> None:
    assert find_unsupported_action(space) == found
