"""A session: a trajectory while it is being generated. Its tokens are the truth; an engine's state is a cache of them.

Dimensions: T tokens so far, M layers with routed experts, k experts a token.
"""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from segue.rollout.growing_array import GrowingArray
from segue.rollout.trajectory import Int32Array, UInt16Array

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionId:
    """Which trajectory a session is: never random, because sampling noise is keyed by it."""

    task_id: str
    index: int | None
    """Place in the group; None for the prefix that the group shares, from which nothing is sampled."""
    attempt: int
    """Times that this place was played before, after infrastructure failures."""

    @property
    def episode_id(self) -> str:
        """Name of the episode that the session's environment plays."""
        return f"{self.task_id}/{self.index}/{self.attempt}"


class Session:
    """One append-only stream of token ids, with a hash that covers all of them.

    History is appended to and never replaced: nothing tokenises, sends or hashes a token twice. A fork starts as a
    copy of its parent's tokens, hash and expert rows.

    Invariants:
        Equal streams have equal hashes, however they were appended: tests/unit/rollout/test_session.py.
    """

    __slots__ = ("_experts", "_hash", "_tokens", "fork_length", "fork_of", "id", "is_closed")

    def __init__(self, session_id: SessionId, *, fork_of: "Session | None" = None) -> None:
        self.id = session_id
        self.fork_of = fork_of
        self.fork_length = 0 if fork_of is None else len(fork_of)
        """Tokens shared with `fork_of`."""
        self.is_closed = False
        self._experts: GrowingArray | None = None
        if fork_of is None:
            self._tokens = GrowingArray((), np.int32, capacity=_FIRST_CAPACITY)
            self._hash = blake2b(digest_size=16)
        else:
            self._tokens = fork_of._tokens.copy()
            self._hash = fork_of._hash.copy()

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def token_ids(self) -> Int32Array:
        """[T] int32, read-only."""
        return self._tokens.values

    @property
    def prefix_hash(self) -> str:
        """Hexadecimal BLAKE2b-128 over the little-endian int32 bytes of the whole stream."""
        return self._hash.hexdigest()

    @property
    def num_expert_rows(self) -> int:
        """Tokens, from the first, whose experts are known: those that an engine has fed to the model."""
        return 0 if self._experts is None else len(self._experts)

    @property
    def expert_ids(self) -> UInt16Array | None:
        """[T, M, k] uint16: experts used when token t was last fed; None where no engine recorded any.

        Rows from `num_expert_rows` on belong to tokens never fed (the last sampled one) and are zero.
        """
        if self._experts is None or not self._experts.values.shape[1]:
            return None
        rows = self._experts.values
        padded = np.zeros((len(self), *rows.shape[1:]), np.uint16)
        padded[: len(rows)] = rows
        return padded

    def check_open(self) -> None:
        """Refuse a session that is closed.

        Raises:
            ValueError: it is.
        """
        if self.is_closed:
            raise ValueError(f"{self.id} is closed")

    def check_not_empty(self) -> None:
        """Refuse to sample from nothing.

        Raises:
            ValueError: the stream is empty.
        """
        if not len(self):
            raise ValueError(f"{self.id} must hold a token before it can be continued")

    def append(self, token_ids: ArrayLike) -> None:
        """Add tokens to the end of the stream.

        Args:
            token_ids: [n] integers, at least 0.
        Raises:
            ValueError: not a row of integers.
        """
        ids = np.asarray(token_ids)
        if ids.ndim != 1 or (len(ids) and not np.issubdtype(ids.dtype, np.integer)):
            raise ValueError(f"token ids must be a row of integers, got {ids.dtype} {list(ids.shape)}")
        row = ids.astype("<i4", copy=False)
        self._tokens.append(row)
        self._hash.update(row.tobytes())

    def record_experts(self, start: int, rows: np.ndarray[Any, Any]) -> None:
        """Note the experts of tokens [start, start + n), which stand for the present state.

        Rows known from `start` on belong to a state that was lost, and are forgotten.

        Args:
            start: index of the first token of `rows`; at most `num_expert_rows`.
            rows: [n, M, k] expert ids below 65,536.
        """
        assert start <= self.num_expert_rows, f"a gap in expert rows: {start} after {self.num_expert_rows}"
        if self._experts is None:
            self._experts = GrowingArray(rows.shape[1:], np.uint16, capacity=_FIRST_CAPACITY)
        self._experts.truncate(start)
        self._experts.append(rows)

    def inherit_experts(self, parent: "Session", num_rows: int) -> None:
        """Take over the parent's rows of the first `num_rows` tokens, which the parent has fed for this session."""
        if parent._experts is not None:
            self.record_experts(0, parent._experts.values[:num_rows])
