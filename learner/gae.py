"""Generalised advantage estimation: what a decision earned beyond what a critic expected of it.

Legend: A decisions of a trajectory, in order.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def generalised_advantages(
    rewards_A: ArrayLike, values_A: ArrayLike, end_value: float, *, discount: float, decay: float
) -> NDArray[np.float64]:
    """Advantage of each decision: later surprises count, each the less the further ahead it lies.

    With r the rewards, V the values and V after the last decision `end_value`, a decision's surprise is
    `δ_k = r_k + discount · V_{k+1} − V_k`, and its advantage `A_k = δ_k + discount · decay · A_{k+1}`. The advantage
    plus its own value is what the critic should have said: with decay 1 the discounted return, with decay 0 what the
    next value makes of it.

    Args:
        rewards_A: earned by each decision before the next.
        values_A: expected before each decision; constants, of which no gradient is taken.
        end_value: expected after the last decision: 0 where the episode ended, the critic's word where it was cut.
        discount: what a reward counts for that comes a decision later; in [0, 1].
        decay: λ; in [0, 1]: 1 trusts the rewards alone, 0 the critic's next word alone.
    Returns:
        [A] float64.
    Source:
        Schulman et al., arXiv 1506.02438, eq. 16.
    Example:
        Rewards (0, 1), values (1/2, 1/4), discount and decay 1/2. The episode ended: surprises 0 + 1/8 − 1/2 = −3/8 and
        1 − 1/4 = 3/4, advantages −3/8 + 3/16 = −3/16 and 3/4. It was cut where the critic still expected 1: the last
        surprise is 1 + 1/2 − 1/4 = 5/4, advantages −3/8 + 5/16 = −1/16 and 5/4. tests/reference/test_gae.py repeats it.
    """
    values = np.asarray(values_A, np.float64)
    advantages = np.asarray(rewards_A, np.float64) + discount * np.append(values, end_value)[1:] - values
    # sums over 1, 2, 4, … decisions ahead: a million tokens take twenty of them
    reach, factor = 1, discount * decay
    while reach < len(advantages) and factor:
        advantages[:-reach] += factor * advantages[reach:]
        reach, factor = 2 * reach, factor * factor
    return advantages
