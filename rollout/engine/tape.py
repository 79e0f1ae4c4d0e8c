"""The last decode steps of all sessions, written a column a step and read back a session at a time.

It keeps Python work per session out of the decode loop: a step is four array writes whatever the number of sessions.
Dimensions: B steps, R lanes (a session that decodes keeps one), M layers with routed experts, k experts a token.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from segue.rollout.trajectory import Float32Array, Int32Array, PolicyVersion, UInt16Array


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TapePiece:
    """Consecutive steps of one session, n of them."""

    token_ids: Int32Array
    """[n] int32: what the steps sampled."""
    logprobs: Float32Array
    """[n] float32, nats."""
    policy_incarnation: Int32Array
    """[n] int32."""
    policy_step: Int32Array
    """[n] int32."""
    expert_ids: UInt16Array
    """[n, M, k] uint16: experts of the tokens that the steps *fed*, each the one before the token it sampled."""


class Tape:
    """A buffer of B steps; whoever decodes reads it before it is full and starts it again."""

    def __init__(self, *, num_lanes: int, num_steps: int, expert_shape: tuple[int, int]) -> None:
        self.num_steps = num_steps
        self.cursor = 0
        """Steps written."""
        self._token_ids_BR = np.zeros((num_steps, num_lanes), np.int32)
        self._logprobs_BR = np.zeros((num_steps, num_lanes), np.float32)
        self._expert_ids_BRMk = np.zeros((num_steps, num_lanes, *expert_shape), np.uint16)
        self._incarnation_B = np.zeros(num_steps, np.int32)
        self._step_B = np.zeros(num_steps, np.int32)

    @property
    def is_full(self) -> bool:
        """True where the next step has no place."""
        return self.cursor == self.num_steps

    def write(
        self,
        lanes: NDArray[np.int64],
        token_ids: NDArray[Any],
        logprobs: NDArray[Any],
        expert_ids: NDArray[Any],
        version: PolicyVersion,
    ) -> None:
        """Add one step of the sessions in `lanes`."""
        row = self.cursor
        self._token_ids_BR[row, lanes] = token_ids
        self._logprobs_BR[row, lanes] = logprobs
        self._expert_ids_BRMk[row, lanes] = expert_ids
        self._incarnation_B[row] = version.incarnation
        self._step_B[row] = version.step
        self.cursor = row + 1

    def read(self, lane: int, start: int) -> TapePiece:
        """A copy of a lane's steps from `start` up to the last one written."""
        steps = slice(start, self.cursor)
        return TapePiece(
            token_ids=self._token_ids_BR[steps, lane].copy(),
            logprobs=self._logprobs_BR[steps, lane].copy(),
            policy_incarnation=self._incarnation_B[steps].copy(),
            policy_step=self._step_B[steps].copy(),
            expert_ids=self._expert_ids_BRMk[steps, lane].copy(),
        )

    def rewind(self) -> None:
        """Start again at the first step; what was written may be overwritten."""
        self.cursor = 0
