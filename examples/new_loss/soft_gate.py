"""A loss of your own: a gate that closes gradually as a token's ratio leaves 1, in the place of a clip.

Soft adaptive policy optimisation (arXiv 2511.20347): the weighted sum of -A · 4/t · sigmoid(t (ratio - 1)), with
another temperature t where the advantage is negative. At a ratio of 1 its gradient is REINFORCE's.
"""

import torch

from segue.learner.loss import PolicyLoss
from segue.learner.user_loss import TrainedTokens

# beyond it the gate is shut to the last bit, and the exponential must not overflow
MAX_LOG_RATIO = 10.0


def soft_gate(
    tokens: TrainedTokens, *, positive: float = 1.0, negative: float = 1.05, counted: float = 0.2
) -> PolicyLoss:
    """The loss of some trajectories' trained tokens.

    Args:
        positive, negative: temperatures by the sign of the advantage; above 0, higher shuts sooner.
        counted: tokens whose ratio is further from 1 are counted in `policy/clipped_low/share` and `…_high/share`.
    """
    log_ratio = tokens.policy_logprob_J - tokens.behaviour_logprob_J
    ratio = log_ratio.clamp(max=MAX_LOG_RATIO).exp()
    temperature = torch.where(tokens.advantage_J < 0, negative, positive)
    gate = torch.sigmoid(temperature * (ratio - 1)) * 4 / temperature
    return PolicyLoss(
        loss=-(tokens.weight_J * tokens.advantage_J * gate).sum(),
        is_low_J=ratio < 1 - counted,
        is_high_J=ratio > 1 + counted,
    )
