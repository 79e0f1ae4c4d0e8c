"""`info` of a foreign environment as JSON: whatever stands in it, small values as they are and the rest in short."""

import math
from itertools import islice
from typing import Any

import numpy as np

from segue.envs.reply import cut_text

MAX_ITEMS = 1024
"""Entries of an array, items of a list or a dictionary; more are counted."""
MAX_CHARS = 2000
"""Of one text."""
MAX_DEPTH = 8
"""Of what stands inside of one another."""


def plain_info(info: dict[Any, Any]) -> dict[str, Any]:
    """A copy of JSON values.

    Numpy values become Python's, keys text, tuples and sets lists (sets in the order of their items' text), NaN and
    infinities text; large arrays, bytes, objects and what lies too deep become their kind in angle brackets.
    """
    return _plain_dict(info, MAX_DEPTH)


def _plain(value: Any, depth: int) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, str):
        return cut_text(value, MAX_CHARS)
    if isinstance(value, np.ndarray) and (value.size > MAX_ITEMS or value.dtype.hasobject or value.dtype.names):
        return f"<{value.dtype} array of {'x'.join(map(str, value.shape))}>"
    if isinstance(value, np.ndarray):
        return _plain(value.tolist(), depth)
    if depth == 0:
        return f"<{type(value).__name__}>"
    if isinstance(value, dict):
        return _plain_dict(value, depth)
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=repr)
    if isinstance(value, (list, tuple)):
        items = [_plain(item, depth - 1) for item in value[:MAX_ITEMS]]
        return items + [_left_out(value)] * (len(value) > MAX_ITEMS)
    return f"<{type(value).__name__}>"


def _plain_dict(value: dict[Any, Any], depth: int) -> dict[str, Any]:
    plain = {cut_text(str(key), MAX_CHARS): _plain(item, depth - 1) for key, item in islice(value.items(), MAX_ITEMS)}
    return plain | ({"...": _left_out(value)} if len(value) > MAX_ITEMS else {})


def _left_out(value: Any) -> str:
    return f"<{len(value) - MAX_ITEMS} more>"
