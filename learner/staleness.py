"""Which tokens are young enough to be trained.

A policy version is (incarnation, step). Incarnation i + 1 began when the run was restored at a step; what incarnation i
learnt after that step is lost, and tokens sampled with it belong to no line that the learner continues.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segue.rollout.trajectory import PolicyVersion


def is_fresh(
    policy_incarnation: NDArray[np.int32],
    policy_step: NDArray[np.int32],
    version: PolicyVersion,
    restored_steps: Sequence[int],
    max_staleness: int,
) -> NDArray[np.bool_]:
    """True for tokens at most `max_staleness` steps older than the weights about to be trained.

    Args:
        policy_incarnation: [T], of the weights that sampled each token.
        policy_step: [T], likewise.
        version: of the weights about to be trained.
        restored_steps: for each incarnation up to `version`'s, the step it began at; the first is 0.
        max_staleness: steps; 0 trains only tokens of the very weights.
    Returns:
        [T] bool; False for tokens of lost steps, whatever the bound, and for tokens of versions yet to come.
    Raises:
        ValueError: `restored_steps` does not reach to `version`.
    Example:
        Restored at step 3 and now at (1, 4), bound 1: (1, 4), (1, 3) and (0, 3) are fresh; (0, 4) was lost; (0, 2) is
        too old.
    """
    if len(restored_steps) != version.incarnation + 1:
        raise ValueError(f"restored_steps must have {version.incarnation + 1} entries, got {len(restored_steps)}")
    # the earliest restore after incarnation i bounds the steps of it that survive
    survived = np.array([min(restored_steps[i + 1 :], default=version.step) for i in range(len(restored_steps))])
    is_known = policy_incarnation <= version.incarnation
    last_step = survived[np.where(is_known, policy_incarnation, 0)]
    return is_known & (policy_step <= last_step) & (version.step - policy_step <= max_staleness)
