"""Observations of a foreign environment as a model reads them: compact text, by their space.

Discrete                          its number
MultiDiscrete, MultiBinary, Box   numbers, reals with four significant digits, a row of the last axis a line; a
                                  large array in short; a large one of bytes is an image, which is not shown
Text, other spaces of strings     as it is
Dict                              a line for each key
Tuple, Sequence                   in one line where each part has but one, else by number
OneOf                             which of them, and what
Graph                             a line for each node and each edge
"""

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector.utils import iterate

from segue.envs.foreign_space import ARRAYS, entry_limits, is_text_space, leaves

SUPPORTED_OBSERVATIONS = (
    "Discrete, MultiDiscrete, MultiBinary, Box, Text and other spaces of strings, and Dict, Tuple, Sequence, OneOf and "
    "Graph of these"
)
_COMPOSITES = (spaces.Dict, spaces.Tuple, spaces.Sequence, spaces.OneOf, spaces.Graph)
# a real of four digits with its sign, most often, and the space after it
_REAL_CHARS = 8
_HEAD_NUMBERS = 8
_INDENT = "  "
_NOTHING = "none"


def find_unsupported_observation(space: Any) -> str | None:
    """What cannot be written as text in an observation space, with where it stands; None where all can."""
    for path, leaf in leaves(space, "observations", _COMPOSITES):
        if not isinstance(leaf, (spaces.Discrete, *ARRAYS)) and not is_text_space(leaf):
            return f"{path} {leaf}"
    return None


class ObservationText:
    """Writes the observations of one space.

    Args:
        space: supported, as `find_unsupported_observation` says.
        max_chars: an array whose text may be longer stands in short; its space decides, so that all observations of an
            environment have one form.
    """

    def __init__(self, space: Any, max_chars: int) -> None:
        self._space = space
        self._max_chars = max_chars

    def render(self, observation: Any) -> str:
        """The text of one observation.

        Raises:
            TypeError, ValueError: no text says it: numbers must have their shape and be finite, a Discrete one be in
                its range, parts be all there.
        """
        return "\n".join(self._lines(self._space, observation, "observation"))

    def in_short(self) -> list[str]:
        """Paths of the arrays that never stand in full."""
        found = leaves(self._space, "observation", _COMPOSITES)
        return [path for path, leaf in found if isinstance(leaf, ARRAYS) and not self._fits(leaf)]

    def cut(self, observation: Any) -> list[str]:
        """Paths of the outermost keys whose text stands, in part or in all, beyond the most characters."""
        if not isinstance(self._space, spaces.Dict):
            return []
        cut, num_chars = [], 0
        for key, inner in self._space.spaces.items():
            path = f"observation.{key}"
            num_chars += len("\n".join(_keyed(str(key), self._lines(inner, observation[key], path))))
            cut += [path] * (num_chars > self._max_chars)
            # the line break before the next one
            num_chars += 1
        return cut

    def _lines(self, space: Any, value: Any, path: str) -> list[str]:
        match space:
            case spaces.Dict():
                return self._dict_lines(space, value, path)
            case spaces.Tuple():
                _require_parts(value, len(space.spaces), path)
                return self._list_lines(zip(space.spaces, value, strict=True), path)
            case spaces.Sequence():
                items = iterate(space.stacked_feature_space, value) if space.stack else value
                return self._list_lines(((space.feature_space, item) for item in items), path)
            case spaces.OneOf():
                _require_parts(value, 2, path)
                index = int(value[0])
                if not 0 <= index < len(space.spaces):
                    raise ValueError(f"{path} must be one of {len(space.spaces)}, got {index}")
                return _keyed(f"option {index}", self._lines(space.spaces[index], value[1], f"{path}[{index}]"))
            case spaces.Graph():
                return self._graph_lines(space, value, path)
            case spaces.Discrete():
                if not space.contains(value):
                    raise ValueError(f"{path} must be in {space}, got {value!r:.200}")
                return [str(int(value))]
        if is_text_space(space):
            # a wrong alphabet is what gymnasium itself only warns of
            if not isinstance(value, str):
                raise TypeError(f"{path} must be a string, got {value!r:.200}")
            return value.split("\n")
        array = _to_array(space, value, path)
        return _array_lines(array) if self._fits(space) else [_short_form(space, array)]

    def _dict_lines(self, space: Any, value: Any, path: str) -> list[str]:
        if not isinstance(value, dict) or value.keys() != space.spaces.keys():
            raise ValueError(f"{path} must be a dictionary of {list(space.spaces)}, got {value!r:.200}")
        lines = []
        for key, inner in space.spaces.items():
            lines += _keyed(str(key), self._lines(inner, value[key], f"{path}.{key}"))
        return lines or [_NOTHING]

    def _list_lines(self, parts: Iterable[tuple[Any, Any]], path: str) -> list[str]:
        texts = [self._lines(space, value, f"{path}[{index}]") for index, (space, value) in enumerate(parts)]
        if not texts:
            return [_NOTHING]
        if all(len(lines) == 1 for lines in texts):
            return [", ".join(line for (line,) in texts)]
        return [line for index, lines in enumerate(texts) for line in _keyed(str(index), lines)]

    def _graph_lines(self, space: Any, value: Any, path: str) -> list[str]:
        if not isinstance(value, spaces.GraphInstance):
            raise TypeError(f"{path} must be a GraphInstance, got {value!r:.200}")
        lines = []
        for index, node in enumerate(iterate(space.batch_node_space, value.nodes)):
            lines += _keyed(f"node {index}", self._lines(space.node_space, node, f"{path}.nodes[{index}]"))
        if value.edges is None:
            return lines
        edges = iterate(space.batch_edge_space, value.edges)
        for index, ((tail, head), edge) in enumerate(zip(value.edge_links, edges, strict=True)):
            name = f"edge {int(tail)} to {int(head)}"
            lines += _keyed(name, self._lines(space.edge_space, edge, f"{path}.edges[{index}]"))
        return lines

    def _fits(self, space: Any) -> bool:
        return math.prod(space.shape) * _entry_chars(space) <= self._max_chars


def _to_array(space: Any, value: Any, path: str) -> Any:
    array = np.asarray(value)
    if array.shape != space.shape:
        raise ValueError(f"{path} must have shape {space.shape}, got {array.shape}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{path} must hold numbers, got {value!r:.200}")
    if not np.isfinite(array).all():
        raise ValueError(f"{path} must be finite, got {array!s:.200}")
    return array


def _require_parts(value: Any, num_parts: int, path: str) -> None:
    if not isinstance(value, (tuple, list, np.ndarray)) or len(value) != num_parts:
        raise ValueError(f"{path} must be a tuple of {num_parts}, got {value!r:.200}")


def _keyed(name: str, lines: list[str]) -> list[str]:
    if len(lines) == 1:
        return [f"{name}: {lines[0]}"]
    return [f"{name}:", *(_INDENT + line for line in lines)]


def _entry_chars(space: Any) -> int:
    """Characters of an entry and the space after it: the most for whole numbers, most often for reals."""
    if space.dtype.kind == "f":
        return _REAL_CHARS
    low, high = entry_limits(space)
    return max((len(str(int(limit))) for limits in (low, high) for limit in np.unique(limits)), default=0) + 1


def _array_lines(array: Any) -> list[str]:
    if array.size == 0:
        return [_NOTHING]
    if array.ndim > 1:
        return [line for row in array for line in _array_lines(row)]
    return [" ".join(map(_number_text, np.atleast_1d(array)))]


def _number_text(number: Any) -> str:
    # adding zero turns -0.0 into 0.0
    return f"{float(number) + 0.0:.4g}" if isinstance(number, np.floating) else str(int(number))


def _short_form(space: Any, array: Any) -> str:
    shape = "x".join(map(str, array.shape))
    low, high = entry_limits(space)
    if space.dtype == np.uint8 and array.ndim > 1 and low.min() == 0 and high.max() == 255:
        return f"image of {shape}, not shown"
    numbers = (array.min(), array.astype(np.float64).mean(), array.max())
    least, mean, most = map(_number_text, numbers)
    head = " ".join(map(_number_text, array.ravel()[:_HEAD_NUMBERS]))
    return f"{array.dtype} array of {shape} in short: min {least}, mean {mean}, max {most}, begins {head}"
