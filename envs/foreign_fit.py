"""How an observation of a foreign environment fits the space that was declared for it."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium import spaces

from segue.envs.foreign_space import ARRAYS, entry_limits

_FORM, _VALUE = "form", "value"


def find_misfits(space: Any, observation: Any) -> tuple[list[str], list[str]]:
    """Compares one observation, which can be written as text, with its space.

    Returns:
        What lies outside of the space, and what only has another dtype or container.
    """
    found = list(_misfits(space, observation, "observation"))
    misfits = [text for kind, text in found if kind == _VALUE]
    form_misfits = [text for kind, text in found if kind == _FORM]
    with warnings.catch_warnings():
        # that it casts a list, which is told already
        warnings.simplefilter("ignore")
        if not found and not space.contains(observation):
            misfits = [f"observation is not in {space}"]
    return misfits, form_misfits


def _misfits(space: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    match space:
        case spaces.Dict():
            for key, inner in space.spaces.items():
                yield from _misfits(inner, value[key], f"{path}.{key}")
        case spaces.Tuple():
            for index, (inner, part) in enumerate(zip(space.spaces, value, strict=True)):
                yield from _misfits(inner, part, f"{path}[{index}]")
        case spaces.Sequence() if not space.stack:
            if not isinstance(value, tuple):
                yield _FORM, f"{path} is a {type(value).__name__}, not a tuple"
            for index, item in enumerate(value):
                yield from _misfits(space.feature_space, item, f"{path}[{index}]")
        case spaces.Text():
            if not space.min_length <= len(value) <= space.max_length:
                rule = f"{space.min_length} to {space.max_length}"
                yield _VALUE, f"{path} has {len(value)} characters, the space {rule}"
            odd = sorted(set(value) - space.character_set)
            if odd:
                yield _VALUE, f"{path} has characters that the space has not: {''.join(odd)!r}"
        case _ if isinstance(space, ARRAYS):
            yield from _array_misfits(space, value, path)


def _array_misfits(space: Any, value: Any, path: str) -> Iterator[tuple[str, str]]:
    array = np.asarray(value)
    low, high = entry_limits(space)
    for outside, word, limits in ((array < low, "below", low), (array > high, "above", high)):
        if outside.any():
            index = tuple(int(place) for place in np.argwhere(outside)[0])
            place = f"{list(index)}" if index else ""
            yield _VALUE, f"{path}{place} is {array[index]}, {word} {limits[index]}"
            return
    if not isinstance(value, (np.ndarray, np.generic)):
        if space.shape:
            yield _FORM, f"{path} is a {type(value).__name__}, not an array"
    elif not np.can_cast(array.dtype, space.dtype):
        yield _FORM, f"{path} is of {array.dtype}, the space of {space.dtype}"
