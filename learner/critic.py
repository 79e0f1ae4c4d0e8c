"""The critic's part in a step: advantages from its values, and its own loss.

values of the sweep -> per trajectory advantages and targets -> whitened over the step -> the policy's loss with these
advantages, and the squared distance of the values from their targets

All values are those of one sweep, before the update: constants for advantages and targets, and the very tensors whose
gradient the value loss takes.

Legend: A decisions, B turns' ends, P = A + B places, J labels, all of some whole trajectories one after another.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from segue.conf.schema import CriticConfig, LearnerConfig
from segue.learner.course import Course
from segue.learner.gae import generalised_advantages
from segue.learner.loss import ValueLoss, value_loss
from segue.learner.policy_batch import PolicyBatch, policy_loss
from segue.learner.sweeps import LossFunction, TrajectoryArrays

SumOverRanks = Callable[[Tensor], Tensor]

CRITIC_METRICS = (
    "critic/loss/mean",
    "critic/explained_variance/share",
    "critic/value/mean",
    "critic/target/mean",
    "critic/clipped/share",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Judgement:
    """What a critic's values make of some trajectories."""

    advantage_J: Tensor
    """float32, of each label, whitened where that is asked for."""
    place_P: Tensor
    """int64: which of the values stands at each place, decisions before turns' ends, trajectory after trajectory."""
    target_P: Tensor
    """float64: what they should have been."""
    first_P: Tensor
    """float64: what they were when these places were first trained; now, where that was never."""
    weight_P: Tensor
    """float64: that of the labels of a decision; a turn's end has that of the decision before it."""
    is_decision_P: Tensor
    """bool: not the end of a turn."""


def judge(
    batch: PolicyBatch, arrays: TrajectoryArrays, config: LearnerConfig, sum_over_ranks: SumOverRanks
) -> Judgement:
    """Advantages and targets of the trajectories whose arrays are given.

    Args:
        batch: with courses.
        arrays: of whole trajectories; values carry no gradient from here.
        config: `advantage`, `critic`.
        sum_over_ranks: elementwise; called once where advantages are whitened, then with the arrays of the whole step.
    """
    values = arrays.value.detach().double().cpu().numpy()
    weights = batch.weight[arrays.label_numbers].double().numpy()
    trajectories = np.unique(np.searchsorted(batch.tokens.offsets, arrays.token_numbers.numpy(), side="right") - 1)
    parts = [_Part.empty()]
    first_token = first_label = 0
    for trajectory in trajectories.tolist():
        course, length = batch.courses[trajectory], batch.tokens.lengths[trajectory]
        own_weights = weights[first_label : first_label + len(course.of_label)]
        own_values = values[first_token : first_token + length]
        first = batch.first_values[trajectory] if batch.first_values else None
        parts.append(_judge_one(course, own_values, first, own_weights, config, first_token))
        first_token += length
        first_label += len(course.of_label)
    advantages = torch.from_numpy(np.concatenate([part.advantage for part in parts]))
    if config.advantage.whiten:
        advantages = whitened(advantages, torch.from_numpy(weights), config.advantage.std_epsilon, sum_over_ranks)
    place, target, first, weight, is_decision = (
        torch.from_numpy(np.concatenate([getattr(part, name) for part in parts]))
        for name in ("place", "target", "first", "weight", "is_decision")
    )
    return Judgement(
        advantage_J=advantages.to(batch.advantage.dtype),
        place_P=place,
        target_P=target,
        first_P=first,
        weight_P=weight,
        is_decision_P=is_decision,
    )


def whitened(advantage_J: Tensor, weight_J: Tensor, std_epsilon: float, sum_over_ranks: SumOverRanks) -> Tensor:
    """Advantages less their mean over the step, divided by their standard deviation plus `std_epsilon`.

    Both are weighted as the loss weighs tokens: where all ratios are 1, the step then pushes log-probabilities neither
    up nor down on the whole.

    Source:
        Usual in PPO since OpenAI's baselines, over the tokens of a step where it trains language models; not in its
        paper.
    Example:
        Advantages (3, 1, −1) with weights (1/4, 1/4, 1/2): mean 1/2, variance (25/4 + 1/4)/4 + (9/4)/2 = 11/4, so
        (1.508, 0.302, −0.905). tests/reference/test_gae.py repeats it.
    """
    sums = torch.stack([weight_J.sum(), (weight_J * advantage_J).sum(), (weight_J * advantage_J.square()).sum()])
    total, first, second = sum_over_ranks(sums.double()).tolist()
    mean = first / total if total else 0.0
    # rounding may leave a little less than nothing
    variance = max(second / total - mean**2, 0.0) if total else 0.0
    return (advantage_J - mean) / (variance**0.5 + std_epsilon)


def make_critic_loss(
    batch: PolicyBatch, config: LearnerConfig, sum_over_ranks: SumOverRanks, *, is_warming_up: bool
) -> LossFunction:
    """The configured policy loss under the critic's advantages, and the value loss beside it.

    Args:
        batch: with courses.
        config: `advantage`, `critic`, `loss`.
        sum_over_ranks: see `judge`.
        is_warming_up: the value loss alone.
    """

    def loss(arrays: TrajectoryArrays) -> Tensor:
        judgement = judge(batch, arrays, config, sum_over_ranks)
        total = config.critic.coefficient * critic_loss(judgement, arrays.value, config.critic).loss
        if is_warming_up:
            return total
        own = replace(batch, advantage=batch.advantage.index_copy(0, arrays.label_numbers, judgement.advantage_J))
        return total + policy_loss(own, config.loss, arrays.logprob, arrays.label_numbers).loss

    return loss


def critic_loss(judgement: Judgement, value_T: Tensor, config: CriticConfig) -> ValueLoss:
    """The value loss of judged trajectories, without its coefficient."""
    value_P = value_T[judgement.place_P]
    fixed = (values.to(value_P.dtype) for values in (judgement.target_P, judgement.weight_P, judgement.first_P))
    return value_loss(value_P, *fixed, clip=config.clip)


def critic_sums(judgement: Judgement, value_T: Tensor, config: CriticConfig) -> dict[str, Tensor]:
    """Sums over this rank's decisions; of the loss over all its places."""
    loss, chosen = critic_loss(judgement, value_T, config), judgement.is_decision_P
    value, target, weight = (
        values[chosen].double() for values in (value_T[judgement.place_P], judgement.target_P, judgement.weight_P)
    )
    error = target - value
    return {
        "loss": loss.loss.double(),
        "weight": weight.sum(),
        "held": (weight * loss.is_held_P[chosen]).sum(),
        "value": (weight * value).sum(),
        "target": (weight * target).sum(),
        "target_square": (weight * target.square()).sum(),
        "error": (weight * error).sum(),
        "error_square": (weight * error.square()).sum(),
    }


def critic_metrics(sums: Mapping[str, float] | None) -> dict[str, float | None]:
    """Of all ranks' sums; null without a critic."""
    if sums is None:
        return dict.fromkeys(CRITIC_METRICS)
    total = sums["weight"]
    of_target = sums["target_square"] / total - (sums["target"] / total) ** 2
    of_error = sums["error_square"] / total - (sums["error"] / total) ** 2
    # targets that are all equal leave a residue of rounding
    explained = 1.0 - of_error / of_target if of_target > 1e-12 * sums["target_square"] / total else None
    means = (sums[name] / total for name in ("value", "target", "held"))
    return dict(zip(CRITIC_METRICS, (sums["loss"], explained, *means), strict=True))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    """A `Judgement` of one trajectory, before whitening."""

    advantage: NDArray[np.float64]
    place: NDArray[np.int64]
    target: NDArray[np.float64]
    first: NDArray[np.float64]
    weight: NDArray[np.float64]
    is_decision: NDArray[np.bool_]

    @staticmethod
    def empty() -> "_Part":
        nothing = np.zeros(0)
        return _Part(
            advantage=nothing,
            place=nothing.astype(np.int64),
            target=nothing,
            first=nothing,
            weight=nothing,
            is_decision=nothing.astype(np.bool_),
        )


def _judge_one(
    course: Course,
    values_T: NDArray[np.float64],
    first_P: Tensor | None,
    weights_J: NDArray[np.float64],
    config: LearnerConfig,
    start: int,
) -> _Part:
    advantage, critic = config.advantage, config.critic
    values_A = values_T[course.before]
    end_value = 0.0 if course.end is None else float(values_T[course.end])

    def estimate(decay: float) -> NDArray[np.float64]:
        return generalised_advantages(course.reward, values_A, end_value, discount=advantage.discount, decay=decay)

    targets_A = values_A + estimate(critic.target_lambda)
    weight_A = np.bincount(course.of_label, weights_J, minlength=len(values_A))
    place = course.places
    return _Part(
        advantage=estimate(advantage.gae_lambda)[course.of_label],
        place=start + place,
        # after the last decision of an episode that ended nothing is earned
        target=np.concatenate([targets_A, np.append(targets_A, 0.0)[course.next]]),
        first=values_T[place] if first_P is None else first_P[: len(place)].double().numpy(),
        weight=np.concatenate([weight_A, weight_A[course.next - 1]]),
        is_decision=np.arange(len(course.before) + len(course.after)) < len(course.before),
    )
