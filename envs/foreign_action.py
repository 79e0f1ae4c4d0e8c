"""Actions of a foreign environment as a model writes them: a JSON schema for each space, and the way there and back.

Discrete                          an integer of its range, or a name where the environment names its actions
MultiDiscrete, MultiBinary, Box   nested lists of its shape, a single number for the shape (); bounds by entry
Text                              a text of its lengths and characters
Dict                              an object; the outermost one is the tool's named arguments
Tuple                             a list with a schema for each place
"""

import copy
import math
from typing import Any

import numpy as np
from gymnasium import spaces

from segue.envs.foreign_space import ARRAYS, entry_limits, leaves
from segue.envs.space import ToolCalls
from segue.envs.tool import ToolCall, ToolSpec, object_schema

MAX_ACTION_NUMBERS = 1024
"""Entries of one array in an action: nobody writes more of them in a turn."""
SUPPORTED_ACTIONS = (
    f"Discrete, MultiDiscrete, MultiBinary, Box (arrays of at most {MAX_ACTION_NUMBERS} entries), Text, and Dict and "
    "Tuple of these"
)
TOOL_NAME = "act"
_ARGUMENT = "action"
_MAX_SHOWN_CHARACTERS = 128
# what JSON's numbers can carry there and back
_MAX_FLOAT_BYTES = 8


class ArgumentError(ValueError):
    """The arguments fit the schema, but no action of the space: in words for the model. One string argument."""


def find_unsupported_action(space: Any) -> str | None:
    """What a model cannot write in an action space, with where it stands; None where it can write all."""
    paths = set()
    for path, leaf in leaves(space, "actions", (spaces.Dict, spaces.Tuple)):
        if path in paths:
            return f"{path} twice: its keys must differ as text"
        paths.add(path)
        if not isinstance(leaf, (spaces.Discrete, spaces.Text, *ARRAYS)):
            return f"{path} {leaf}"
        is_wide = leaf.dtype.kind == "f" and leaf.dtype.itemsize > _MAX_FLOAT_BYTES
        if isinstance(leaf, ARRAYS) and (is_wide or math.prod(leaf.shape) > MAX_ACTION_NUMBERS):
            return f"{path} {leaf}"
    return None


class ActionForm:
    """How the actions of one space are written as arguments of a tool.

    Args:
        space: supported, as `find_unsupported_action` says.
        names: of a Discrete space's actions, in their order; None where they have none.
    Invariants:
        `to_action(to_arguments(action))` is the action, of the same dtype and shape, also by way of JSON text; the
        arguments fit `parameters`: tests/property/test_foreign_spaces.py.
    """

    def __init__(self, space: Any, names: tuple[str, ...] | None) -> None:
        # sampling must not disturb the environment's own generator
        self._space = copy.deepcopy(space)
        self._names = names
        self._is_object = isinstance(space, spaces.Dict)
        if names is not None:
            schema: dict[str, Any] = {"type": "string", "enum": list(names)}
        else:
            schema = _schema(space)
        self.parameters = schema if self._is_object else object_schema({_ARGUMENT: schema})
        """JSON schema of the arguments."""

    def to_arguments(self, action: Any) -> dict[str, Any]:
        """The arguments that mean an action of the space."""
        if self._names is not None:
            return {_ARGUMENT: self._names[int(action) - int(self._space.start)]}
        value = _to_json(self._space, action)
        return value if self._is_object else {_ARGUMENT: value}

    def to_action(self, arguments: dict[str, Any]) -> Any:
        """The action that arguments mean.

        Args:
            arguments: that fit `parameters`.
        Raises:
            ArgumentError: the space has no such action.
        """
        if self._names is not None:
            return self._space.dtype.type(int(self._space.start) + self._names.index(arguments[_ARGUMENT]))
        if self._is_object:
            action = _to_action(self._space, arguments, TOOL_NAME)
        else:
            action = _to_action(self._space, arguments[_ARGUMENT], f"{TOOL_NAME}.{_ARGUMENT}")
        # a space of the environment's own may be narrower than the one that it is derived from
        if not self._space.contains(action):
            raise ArgumentError(f"{TOOL_NAME} must be given an action of {self._space}")
        return action

    def sample(self, seed: int) -> dict[str, Any]:
        """Arguments of an arbitrary action, the same for the same seed.

        Raises:
            ValueError: the space cannot draw one.
        """
        self._space.seed(seed)
        try:
            action = self._space.sample()
        # spaces may be the environment's own
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(f"actions must be such as their space can draw, got {self._space}: {reason}") from error
        return self.to_arguments(action)


class ActionCalls(ToolCalls):
    """Calls of the one tool whose arguments are the actions of a space."""

    def __init__(self, tool: ToolSpec, form: ActionForm) -> None:
        super().__init__((tool,))
        self._form = form

    def sample(self, mask: Any = None, probability: Any = None) -> ToolCall:
        """A call with an action that the space drew."""
        return ToolCall(name=TOOL_NAME, arguments=self._form.sample(int(self.np_random.integers(2**31))))

    def find_problem(self, call: ToolCall) -> str | None:
        """Says why a call means no action, in words for the model; None when it means one."""
        problem = super().find_problem(call)
        if problem is not None:
            return problem
        try:
            self._form.to_action(call.arguments)
        except ArgumentError as error:
            return str(error)
        return None


def _schema(space: Any) -> dict[str, Any]:
    match space:
        case spaces.Discrete():
            return _number_schema(space.start, space.start + (space.n - 1))
        case spaces.Text():
            return {
                "type": "string",
                "minLength": space.min_length,
                "maxLength": space.max_length,
                "description": f"characters: {_shown_characters(space)}",
            }
        case spaces.Dict():
            return object_schema({str(key): _schema(inner) for key, inner in space.spaces.items()})
        case spaces.Tuple():
            return _list_schema([_schema(inner) for inner in space.spaces])
    return _array_schema(*entry_limits(space))


def _array_schema(low: Any, high: Any) -> dict[str, Any]:
    if low.ndim == 0:
        return _number_schema(low[()], high[()])
    return _list_schema(
        [_array_schema(*limits) for limits in zip(map(np.asarray, low), map(np.asarray, high), strict=True)]
    )


def _list_schema(parts: list[dict[str, Any]]) -> dict[str, Any]:
    length = {"minItems": len(parts), "maxItems": len(parts)}
    if not parts:
        return {"type": "array", **length}
    if all(part == parts[0] for part in parts):
        return {"type": "array", "items": parts[0], **length}
    return {"type": "array", "prefixItems": parts, **length}


def _number_schema(low: Any, high: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "number" if low.dtype.kind == "f" else "integer"}
    if np.isfinite(low):
        schema["minimum"] = _plain(low)
    if np.isfinite(high):
        schema["maximum"] = _plain(high)
    return schema


def _plain(number: Any) -> int | float:
    """A numpy number as the shortest decimal that its dtype reads back as the same."""
    # rounding to a dtype keeps order, so what lies between such decimals lies between the numbers
    return float(str(number)) if number.dtype.kind == "f" else int(number)


def _to_json(space: Any, action: Any) -> Any:
    match space:
        case spaces.Text():
            return action
        case spaces.Dict():
            return {str(key): _to_json(inner, action[key]) for key, inner in space.spaces.items()}
        case spaces.Tuple():
            return [_to_json(inner, part) for inner, part in zip(space.spaces, action, strict=True)]
    return _nested(np.asarray(action, space.dtype))


def _nested(array: Any) -> Any:
    return _plain(array[()]) if array.ndim == 0 else [_nested(np.asarray(row)) for row in array]


def _to_action(space: Any, value: Any, path: str) -> Any:
    match space:
        case spaces.Discrete():
            return space.dtype.type(value)
        case spaces.Text():
            return _to_text(space, value, path)
        case spaces.Dict():
            return {key: _to_action(inner, value[str(key)], f"{path}.{key}") for key, inner in space.spaces.items()}
        case spaces.Tuple():
            parts = enumerate(zip(space.spaces, value, strict=True))
            return tuple(_to_action(inner, part, f"{path}[{index}]") for index, (inner, part) in parts)
    return _to_array(space, value, path)


def _to_array(space: Any, value: Any, path: str) -> Any:
    rule = f"{path} must hold numbers of {space.dtype}"
    try:
        with np.errstate(over="ignore"):
            array = np.array(value, space.dtype).reshape(space.shape)
    except OverflowError as error:
        raise ArgumentError(f"{rule}, got one beyond its range") from error
    if not np.isfinite(array).all():
        raise ArgumentError(f"{rule}, got one beyond its range")
    return array


def _to_text(space: Any, value: str, path: str) -> str:
    wrong = next((sign for sign in value if sign not in space.character_set), None)
    if wrong is not None:
        raise ArgumentError(f"{path} must be of the characters {_shown_characters(space)}, got {wrong!r}")
    return value


def _shown_characters(space: Any) -> str:
    characters: str = space.characters
    num_hidden = len(characters) - _MAX_SHOWN_CHARACTERS
    return characters if num_hidden <= 0 else f"{characters[:_MAX_SHOWN_CHARACTERS]} and {num_hidden} others"
