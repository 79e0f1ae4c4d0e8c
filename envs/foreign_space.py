"""What gymnasium spaces are made of, for those who write actions and observations of foreign environments as text."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

ARRAYS = (spaces.MultiDiscrete, spaces.MultiBinary, spaces.Box)


def leaves(space: Any, path: str, through: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """The spaces without parts that a space is built from, each with the path to it.

    Args:
        through: spaces whose parts are looked into; others count as leaves.
    """
    parts: list[tuple[str, Any]]
    match space:
        case _ if not isinstance(space, through):
            yield path, space
            return
        case spaces.Dict():
            parts = [(f"{path}.{key}", inner) for key, inner in space.spaces.items()]
        case spaces.Graph():
            inner_spaces = {"nodes": space.node_space, "edges": space.edge_space}
            parts = [(f"{path}.{name}", inner) for name, inner in inner_spaces.items() if inner is not None]
        case spaces.Sequence():
            parts = [(f"{path}[]", space.feature_space)]
        case _:
            parts = [(f"{path}[{index}]", inner) for index, inner in enumerate(space.spaces)]
    for inner_path, inner in parts:
        yield from leaves(inner, inner_path, through)


def entry_limits(space: Any) -> tuple[Any, Any]:
    """Least and greatest of each entry of an array space, as arrays of its shape."""
    match space:
        case spaces.MultiDiscrete():
            return space.start, space.start + (space.nvec - 1)
        case spaces.MultiBinary():
            return np.zeros(space.shape, space.dtype), np.ones(space.shape, space.dtype)
    return space.low, space.high


def is_text_space(space: Any) -> bool:
    """True for spaces of strings, also those of an environment's own, such as the missions of grid worlds."""
    return isinstance(space, spaces.Text) or (space.dtype is not None and space.dtype.kind == "U")
