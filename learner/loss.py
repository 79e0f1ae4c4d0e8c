"""Losses: pure functions of per-token arrays of whole trajectories, differentiated by autograd.

They know nothing of segments. What they take beside the log-probability is fixed before the sweeps, and they are sums
over tokens, so any split of a batch into trajectories gives the same total.

Legend: J trained tokens, of any number of whole trajectories.
"""

import math

import torch
from torch import Tensor


def masked_ratio_loss(
    policy_logprob_J: Tensor,
    behaviour_logprob_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    *,
    ratio_low: float,
    ratio_high: float,
    tau: float,
) -> Tensor:
    """Policy gradient of the tokens whose ratio lies in a window, and a squared log-ratio that pulls all of them back.

    With r = log policy - log behaviour and m = 1 where ratio_low <= e^r <= ratio_high, else 0, the loss is the weighted
    sum of `tau r² - m e^r A`, and its gradient by the policy log-probability `2 tau r - m e^r A`, whatever A's sign.

    Args:
        policy_logprob_J: nats; carries the gradient.
        behaviour_logprob_J: nats, of the distribution sampled from.
        advantage_J: reward units.
        weight_J: each token's share in the loss of the whole step; `normalisation.py`.
        ratio_low: lower end of the window, in (0, 1).
        ratio_high: upper end, above 1.
        tau: weight of the squared log-ratio, in reward units per square nat.
    Returns:
        Scalar, to be minimised.
    Source:
        Kimi K2.5, arXiv 2602.02276, eq. 1. The quadratic term is not masked: drifted tokens are still pulled back.
    Example:
        Two tokens of weight 1/2, tau 0.1, window 0.7 to 1.4. Behaviour 0.5 and policy 0.6 (ratio 1.2, inside) with
        advantage 1; behaviour 0.5 and policy 0.8 (ratio 1.6, outside) with advantage -1. Log-ratios 0.1823 and 0.4700.
        Loss ((0.1 · 0.0332 - 1.2) + 0.1 · 0.2209) / 2 = -0.5873; gradient (0.0365 - 1.2) / 2 = -0.5818 and
        0.0940 / 2 = 0.0470. Repeated in tests/reference/test_losses.py.
    """
    log_ratio_J = policy_logprob_J - behaviour_logprob_J
    is_inside_J = ratio_window(log_ratio_J.detach(), ratio_low, ratio_high)
    # masked before the exponential: a drifted token must not overflow it
    ratio_J = torch.where(is_inside_J, log_ratio_J, 0.0).exp()
    policy_J = torch.where(is_inside_J, ratio_J * advantage_J, 0.0)
    return (weight_J * (tau * log_ratio_J.square() - policy_J)).sum()


def cross_entropy_loss(policy_logprob_J: Tensor, weight_J: Tensor) -> Tensor:
    """Imitation: the weighted sum of negative log-probabilities.

    Args:
        policy_logprob_J: nats; carries the gradient.
        weight_J: each token's share in the loss of the whole step.
    Example:
        Probabilities 1/2 and 1/8 with weights of 1/2: (0.6931 + 2.0794) / 2 = 1.3863, which is 2 log 2.
    """
    return -(weight_J * policy_logprob_J).sum()


def ratio_window(log_ratio_J: Tensor, ratio_low: float, ratio_high: float) -> Tensor:
    """True where the ratio lies in [ratio_low, ratio_high]."""
    return (log_ratio_J >= math.log(ratio_low)) & (log_ratio_J <= math.log(ratio_high))
