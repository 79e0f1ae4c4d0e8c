"""The weight of a token in the loss, fixed before the sweeps from the counts of the whole step.

Counts cover all trajectories of all ranks, also those that are not run because their advantage is zero, so neither
schedule nor ranks nor the choice to skip changes a weight.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import NormalisationKind


def token_weights(num_trained: Sequence[int], kind: NormalisationKind, constant_tokens: int) -> NDArray[np.float64]:
    """Weight of each trained token of each trajectory.

    Args:
        num_trained: trained tokens of every trajectory of the step.
        kind: `token_mean` gives every token of the step the same share; `sequence_mean` gives every trajectory with
            trained tokens the same share, divided among its tokens; `constant` divides by a fixed number of tokens, so
            that a step with fewer weighs less.
        constant_tokens: that number, > 0.
    Returns:
        [number of trajectories] float64; 0 for a trajectory without trained tokens.
    Example:
        Trained tokens (3, 1, 0): token_mean (1/4, 1/4, 0); sequence_mean (1/6, 1/2, 0); constant of 8 (1/8, 1/8, 0).
    """
    counts = np.asarray(num_trained, np.float64)
    has_tokens = counts > 0
    weights = np.zeros(len(counts))
    if kind is NormalisationKind.token_mean:
        weights[has_tokens] = 1.0 / max(counts.sum(), 1.0)
    elif kind is NormalisationKind.sequence_mean:
        weights[has_tokens] = 1.0 / (has_tokens.sum() * counts[has_tokens])
    else:
        weights[has_tokens] = 1.0 / constant_tokens
    return weights
