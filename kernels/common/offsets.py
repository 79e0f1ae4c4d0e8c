"""Offsets of packed sequences as numbers, without waiting for a GPU each time they are needed."""

import weakref

from torch import Tensor

_seen: dict[int, tuple[weakref.ref[Tensor], tuple[int, ...]]] = {}


def read_offsets(offsets: Tensor) -> tuple[int, ...]:
    """The offsets; those on a GPU are read back when first seen, and must not be changed in place after that."""
    if not offsets.is_cuda:
        return tuple(offsets.tolist())
    key = id(offsets)
    found = _seen.get(key)
    if found is None or found[0]() is not offsets:
        found = weakref.ref(offsets, lambda _: _seen.pop(key, None)), tuple(offsets.tolist())
        _seen[key] = found
    return found[1]
