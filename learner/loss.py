"""Losses: pure functions of per-token arrays of whole trajectories, differentiated by autograd.

They know nothing of segments. What they take beside the log-probability is fixed before the sweeps, and they are sums
over trajectories, so any split of a batch into whole trajectories gives the same total.

Where policy and behaviour agree, every policy loss has the gradient of REINFORCE: -weight · advantage by each
log-probability. They differ in what they do to tokens whose ratio = policy / behaviour has left 1.

Legend: J trained tokens, of any number of whole trajectories.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PolicyLoss:
    """A policy loss, and the tokens whose ratio it did not take as it is."""

    loss: Tensor
    """Scalar, to be minimised; carries the gradient."""
    is_low_J: Tensor
    """[J] bool: the ratio fell below the loss's bounds and was masked or held."""
    is_high_J: Tensor
    """[J] bool: likewise above."""


def masked_ratio_loss(
    policy_logprob_J: Tensor,
    behaviour_logprob_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    *,
    ratio_low: float,
    ratio_high: float,
    tau: float,
) -> PolicyLoss:
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
    Source:
        Kimi K2.5, arXiv 2602.02276, eq. 1. The quadratic term is not masked: drifted tokens are still pulled back.
    Example:
        Two tokens of weight 1/2, tau 0.1, window 0.7 to 1.4. Behaviour 0.5 and policy 0.6 (ratio 1.2, inside) with
        advantage 1; behaviour 0.5 and policy 0.8 (ratio 1.6, outside) with advantage -1. Log-ratios 0.1823 and 0.4700.
        Loss ((0.1 · 0.0332 - 1.2) + 0.1 · 0.2209) / 2 = -0.5873; gradient (0.0365 - 1.2) / 2 = -0.5818 and
        0.0940 / 2 = 0.0470. Repeated in tests/reference/test_losses.py.
    """
    log_ratio_J = policy_logprob_J - behaviour_logprob_J
    is_low_J, is_high_J = log_ratio_J < math.log(ratio_low), log_ratio_J > math.log(ratio_high)
    is_inside_J = ~(is_low_J | is_high_J)
    # masked before the exponential: a drifted token must not overflow it
    ratio_J = torch.where(is_inside_J, log_ratio_J, 0.0).exp()
    policy_J = torch.where(is_inside_J, ratio_J * advantage_J, 0.0)
    loss = (weight_J * (tau * log_ratio_J.square() - policy_J)).sum()
    return PolicyLoss(loss=loss, is_low_J=is_low_J, is_high_J=is_high_J)


def clipped_ratio_loss(
    policy_logprob_J: Tensor,
    behaviour_logprob_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    *,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """PPO's clipped surrogate: a ratio that went far enough in the direction of its advantage teaches no further.

    The weighted sum of `-min(ρ A, clip(ρ, 1 - clip_low, 1 + clip_high) A)`, and where A < 0 of no more than
    `-dual_clip A`. Its gradient by the policy log-probability is -ρ A, or 0 where the ratio is held.

    Args:
        policy_logprob_J: nats; carries the gradient.
        behaviour_logprob_J: nats, of the distribution sampled from.
        advantage_J: reward units.
        weight_J: each token's share in the loss of the whole step; `normalisation.py`.
        clip_low: in (0, 1).
        clip_high: above 0.
        dual_clip: largest ratio of a token with a negative advantage, above 1; None bounds it by nothing but the
            behaviour's own probability.
    Source:
        PPO, arXiv 1707.06347, eq. 7; unequal bounds after DAPO, arXiv 2503.14476, eq. 8 ("clip-higher"); the bound for
        negative advantages after Ye et al., arXiv 1912.09729 ("dual-clip PPO").
    Example:
        Bounds 0.2 and 0.28, four tokens of weight 1/4 and behaviour 0.5. Policy 0.7 (ratio 1.4), A 1: held at 1.28.
        Policy 0.35 (ratio 0.7), A -1: held at 0.8. Policy 0.7, A -1 and policy 0.35, A 1: free, since their ratios
        moved against the advantage. Loss (-1.28 + 0.8 + 1.4 - 0.7) / 4 = 0.055, gradient (0, 0, 0.35, -0.175). With a
        dual clip of 1.3 the third is held too: loss 0.03, gradient (0, 0, 0, -0.175). Repeated in
        tests/reference/test_losses.py.
    """
    log_ratio_J = policy_logprob_J - behaviour_logprob_J
    return _clipped(log_ratio_J, advantage_J, weight_J, clip_low, clip_high, dual_clip)


def clipped_sequence_loss(
    policy_logprob_J: Tensor,
    behaviour_logprob_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    trajectory_J: Tensor,
    *,
    clip_low: float,
    clip_high: float,
) -> PolicyLoss:
    """The clipped surrogate of one ratio a trajectory: the geometric mean of its trained tokens' ratios.

    With s that ratio, n the trajectory's tokens and W the sum of their weights, a trajectory adds
    `-W min(s A, clip(s, 1 - clip_low, 1 + clip_high) A)`; the gradient by each of its log-probabilities is -W s A / n,
    or 0 for all of them where s is held.

    Args:
        policy_logprob_J: nats; carries the gradient.
        behaviour_logprob_J: nats, of the distribution sampled from.
        advantage_J: reward units, the same for all tokens of a trajectory.
        weight_J: each token's share in the loss of the whole step; `normalisation.py`.
        trajectory_J: int64, which trajectory a token belongs to; those of one stand together.
        clip_low: in (0, 1).
        clip_high: above 0.
    Source:
        GSPO, arXiv 2507.18071, eq. 5 and 7, which weighs every trajectory alike (`sequence_mean`); unequal bounds as in
        its experiments.
    Example:
        Bounds 0.05, behaviour 0.5. A trajectory of two tokens of weight 1/4, policy 0.6 and 0.5, A -1: s = √1.2 =
        1.0954, free. One of one token of weight 1/2, policy 0.6, A 1: s = 1.2, held at 1.05. Loss (1.0954 - 1.05) / 2 =
        0.0227, gradient 1.0954 / 4 = 0.2739 twice, then 0. Repeated in tests/reference/test_losses.py.
    """
    log_ratio_J = policy_logprob_J - behaviour_logprob_J
    _, counts = torch.unique_consecutive(trajectory_J, return_counts=True)
    means = [part.mean().expand_as(part) for part in log_ratio_J.split(counts.tolist())]
    return _clipped(torch.cat([log_ratio_J[:0], *means]), advantage_J, weight_J, clip_low, clip_high, None)


def weighted_logprob_loss(
    policy_logprob_J: Tensor,
    behaviour_logprob_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    *,
    ratio_low: float,
    ratio_high: float,
) -> PolicyLoss:
    """REINFORCE under an importance weight that is clipped and carries no gradient.

    The weighted sum of `-clip(ρ, ratio_low, ratio_high) A log policy`; its gradient by the policy log-probability is
    `-clip(ρ, ratio_low, ratio_high) A`: a token whose ratio left the bounds still teaches, with a bounded weight.

    Args:
        policy_logprob_J: nats; carries the gradient.
        behaviour_logprob_J: nats, of the distribution sampled from.
        advantage_J: reward units.
        weight_J: each token's share in the loss of the whole step; `normalisation.py`.
        ratio_low: smallest weight, in [0, 1); 0 bounds nothing.
        ratio_high: largest weight, at least 1.
    Source:
        With both bounds CISPO: MiniMax-M1, arXiv 2506.13585, eq. 4 and 5. With the upper one alone REINFORCE with
        truncated importance weights, as in V-trace: IMPALA, arXiv 1802.01561, section 4.1.
    Example:
        Bounds 0.5 and 1.2, two tokens of weight 1/2 and behaviour 0.5. Policy 0.7 (ratio 1.4, held at 1.2), A 1; policy
        0.2 (ratio 0.4, held at 0.5), A -1. Loss -(1.2 log 0.7 - 0.5 log 0.2) / 2 = -(-0.4280 + 0.8047) / 2 = -0.1884,
        gradient (-0.6, 0.25). Without the lower bound the second weighs 0.4: gradient (-0.6, 0.2). Repeated in
        tests/reference/test_losses.py.
    """
    log_ratio_J = (policy_logprob_J - behaviour_logprob_J).detach()
    lowest = math.log(ratio_low) if ratio_low > 0 else -math.inf
    highest = math.log(ratio_high)
    importance_J = log_ratio_J.clamp(lowest, highest).exp()
    loss = -(weight_J * importance_J * advantage_J * policy_logprob_J).sum()
    return PolicyLoss(loss=loss, is_low_J=log_ratio_J < lowest, is_high_J=log_ratio_J > highest)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ValueLoss:
    """A critic's loss, and the places where it was held."""

    loss: Tensor
    """Scalar, to be minimised; carries the gradient."""
    is_held_P: Tensor
    """[P] bool: the value has gone far enough towards its target, and teaches no further."""


def value_loss(
    value_P: Tensor, target_P: Tensor, weight_P: Tensor, first_P: Tensor, *, clip: float | None
) -> ValueLoss:
    """The critic's: half the weighted sum of squared distances from what it should have said.

    With a clip the distance is at least that of the value held within `clip` of what it was before the first update on
    these data: `max((V - R)², (first + clamp(V - first, ±clip) - R)²)`.

    Args:
        value_P: reward units; carries the gradient, `weight (value - target)`, or 0 where it is held.
        target_P: reward units.
        weight_P: each place's share in the loss of the whole step.
        first_P: reward units: the values when these places were first trained.
        clip: reward units, above 0; None holds nothing.
    Source:
        PPO, arXiv 1707.06347, eq. 9, halved and clipped as in OpenAI's baselines (ppo2).
    Example:
        Values (1, 0), targets (0, 1/2), weights (1/4, 1/2): (1/4 + 1/8) / 2 = 0.1875, gradient (1/4, -1/4). With first
        values (1, -1/2) and clip 0.2 the second stands 1/2 nearer to its target, held at -0.3: (1/4 + 0.64/2) / 2 =
        0.285, gradient (1/4, 0). Repeated in tests/reference/test_losses.py.
    """
    distance_P = (value_P - target_P).square()
    if clip is None:
        is_held_P = torch.zeros_like(value_P, dtype=torch.bool)
    else:
        held_P = (first_P + (value_P.detach() - first_P).clamp(-clip, clip) - target_P).square()
        is_held_P = held_P > distance_P.detach()
        distance_P = torch.where(is_held_P, held_P, distance_P)
    return ValueLoss(loss=0.5 * (weight_P * distance_P).sum(), is_held_P=is_held_P)


def cross_entropy_loss(policy_logprob_J: Tensor, weight_J: Tensor) -> Tensor:
    """Imitation: the weighted sum of negative log-probabilities.

    Args:
        policy_logprob_J: nats; carries the gradient.
        weight_J: each token's share in the loss of the whole step.
    Example:
        Probabilities 1/2 and 1/8 with weights of 1/2: (0.6931 + 2.0794) / 2 = 1.3863, which is 2 log 2.
    """
    return -(weight_J * policy_logprob_J).sum()


def _clipped(
    log_ratio_J: Tensor,
    advantage_J: Tensor,
    weight_J: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> PolicyLoss:
    """The minimum with the clipped surrogate, as bounds of the log-ratio that the advantage's sign chooses.

    Held before the exponential, so that only a ratio that counts can overflow.
    """
    is_negative_J = advantage_J < 0
    bounds = log_ratio_J.new_tensor([math.log1p(-clip_low), math.log1p(clip_high), math.log(dual_clip or math.inf)])
    lowest_J = torch.where(is_negative_J, bounds[0], -math.inf)
    highest_J = torch.where(is_negative_J, bounds[2], bounds[1])
    ratio_J = log_ratio_J.clamp(lowest_J, highest_J).exp()
    return PolicyLoss(
        loss=-(weight_J * advantage_J * ratio_J).sum(),
        is_low_J=log_ratio_J < lowest_J,
        # nothing is held back where there is no advantage
        is_high_J=(log_ratio_J > highest_J) & (advantage_J != 0),
    )
