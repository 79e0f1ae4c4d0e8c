"""Sampling noise as a pure function of (seed, session, position), so that batching and resumption cannot change it."""

from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from segue.rollout.session import SessionId

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def noise_key(seed: int, session_id: SessionId) -> int:
    """The stream of noise that belongs to a session: an unsigned 64-bit key."""
    name = repr((seed, session_id.task_id, session_id.index, session_id.attempt))
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def uniform(keys_N: NDArray[np.uint64], positions_N: NDArray[np.int64]) -> NDArray[np.float64]:
    """One number a row, uniform over the multiples of 2^-53 in [0, 1).

    Args:
        keys_N: what `noise_key` gave.
        positions_N: index in the session's stream of the token to be drawn.
    Source:
        splitmix64 (Steele, Lea, Flood 2014), read at counter `position + 1`.
    """
    z = keys_N + (positions_N.astype(np.uint64) + np.uint64(1)) * _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    z = z ^ (z >> np.uint64(31))
    return (z >> np.uint64(11)) * 2.0**-53
