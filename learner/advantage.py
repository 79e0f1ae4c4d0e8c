"""Advantages: what a trajectory earned beyond its group, in the order of the group's trajectories.

Legend: G trajectories of a group.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import AdvantageKind


def group_advantages(
    rewards_G: Sequence[float], is_scored_G: Sequence[bool], kind: AdvantageKind, std_epsilon: float
) -> NDArray[np.float64]:
    """Advantage of each trajectory of one group.

    Args:
        rewards_G: summed reward terms.
        is_scored_G: False where the episode failed in the infrastructure: it has no reward, takes no part in the
            group's statistics, and gets 0.
        kind: `group_mean` subtracts the mean of the scored rewards; `grpo` also divides by their standard deviation
            (of the population) plus `std_epsilon`.
        std_epsilon: reward units, > 0.
    Returns:
        [G] float64. All exactly 0 where fewer than two are scored, or where all scored rewards are equal.
    Source:
        Group mean: Kimi K2.5, arXiv 2602.02276, eq. 1. GRPO: DeepSeekMath, arXiv 2402.03300, eq. 3, whose estimator of
        the deviation is not named; ours divides by the count.
    Example:
        Rewards (1, 0, 0, failed): mean 1/3, so (2/3, -1/3, -1/3, 0). Deviation sqrt(2)/3, so grpo gives
        (1.414, -0.707, -0.707, 0). tests/reference/test_advantages.py repeats it.
    """
    rewards = np.asarray(rewards_G, np.float64)
    is_scored = np.asarray(is_scored_G, np.bool_)
    scored = rewards[is_scored]
    advantages = np.zeros(len(rewards))
    # equality, not a small deviation: subtracting a rounded mean would leave a residue
    if len(scored) < 2 or (scored == scored[0]).all():
        return advantages
    advantages[is_scored] = scored - scored.mean()
    if kind is AdvantageKind.grpo:
        advantages /= scored.std() + std_epsilon
    return advantages
