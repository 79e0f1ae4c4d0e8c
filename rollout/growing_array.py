"""A numpy array that grows at its end; its storage doubles, so that n appended rows cost O(n) copies in all."""

from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class GrowingArray:
    """Rows of one shape and dtype. Views handed out are read-only and stay right while the array grows."""

    __slots__ = ("_length", "_storage")

    def __init__(self, row_shape: tuple[int, ...], dtype: DTypeLike, *, capacity: int) -> None:
        self._storage: NDArray[Any] = np.zeros((capacity, *row_shape), dtype)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def values(self) -> NDArray[Any]:
        """The rows so far, as a read-only view."""
        view = self._storage[: self._length]
        view.flags.writeable = False
        return view

    def append(self, rows: NDArray[Any]) -> None:
        """Add rows at the end."""
        end = self._length + len(rows)
        self._reserve(end)
        self._storage[self._length : end] = rows
        self._length = end

    def truncate(self, length: int) -> None:
        """Forget the rows from `length` on; views over them see what is appended instead."""
        self._length = min(self._length, length)

    def copy(self) -> "GrowingArray":
        """An independent array with the same rows and room for as many again."""
        twin = GrowingArray(self._storage.shape[1:], self._storage.dtype, capacity=2 * max(self._length, 1))
        twin.append(self.values)
        return twin

    def _reserve(self, capacity: int) -> None:
        if capacity <= len(self._storage):
            return
        grown = np.zeros((max(capacity, 2 * len(self._storage)), *self._storage.shape[1:]), self._storage.dtype)
        grown[: self._length] = self._storage[: self._length]
        self._storage = grown
