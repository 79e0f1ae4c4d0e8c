"""Advantages: what turns earned beyond those of the other trajectories of their group.

All kinds but `turn_returns` compare whole trajectories, whose turns then share one advantage. Those of a critic need
its values, and are made in `critic.py`.

Legend: G trajectories of a group, K turns of a trajectory.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import AdvantageConfig, AdvantageKind
from segue.rollout.stored_group import TrajectorySummary


def step_advantages(
    groups: Sequence[Sequence[TrajectorySummary]], config: AdvantageConfig
) -> list[list[NDArray[np.float64]]]:
    """Advantage of each turn of each trajectory of one step.

    Rewards are compared as float32: sums of the same terms in another order are equal.

    Args:
        groups: all of the step, since one kind looks at all of them; on every rank the same.
        config: which kind, and its settings.
    Returns:
        By group and trajectory, [K] float64. All exactly 0 for episodes that failed in the infrastructure, and where
        there is nobody to compare with, or no difference; all 0 where a critic will say more.
    """
    if config.has_critic:
        return [[np.zeros(len(member.turn_rewards)) for member in group] for group in groups]
    is_scored = [[not member.outcome.is_infrastructure for member in group] for group in groups]
    if config.kind is AdvantageKind.turn_returns:
        returns = [
            [returns_to_go(m.turn_rewards, m.outcome_reward, config.discount) for m in group] for group in groups
        ]
        return [turn_advantages(group, scored) for group, scored in zip(returns, is_scored, strict=True)]
    rewards = [np.array([member.reward for member in group], np.float32) for group in groups]
    by_group = [
        group_advantages(group.tolist(), scored, config.kind, config.std_epsilon)
        for group, scored in zip(rewards, is_scored, strict=True)
    ]
    if config.kind is AdvantageKind.reinforce_pp:
        by_group = over_step_deviation(by_group, is_scored, config.std_epsilon)
    return [
        [np.full(len(member.turn_rewards), value) for member, value in zip(group, values, strict=True)]
        for group, values in zip(groups, by_group, strict=True)
    ]


def group_advantages(
    rewards_G: Sequence[float], is_scored_G: Sequence[bool], kind: AdvantageKind, std_epsilon: float
) -> NDArray[np.float64]:
    """Advantage of each trajectory of one group.

    Args:
        rewards_G: summed reward terms.
        is_scored_G: False where the episode failed in the infrastructure: it has no reward, takes no part in the
            group's statistics, and gets 0.
        kind: all subtract the mean of the scored rewards. `grpo` also divides by their standard deviation (of the
            population) plus `std_epsilon`; `rloo` subtracts the mean of the *other* scored rewards, which is the same
            but for a factor n / (n - 1); `reinforce_pp` goes on with `over_step_deviation`.
        std_epsilon: reward units, > 0.
    Returns:
        [G] float64. All exactly 0 where fewer than two are scored, or where all scored rewards are equal.
    Source:
        Group mean: Kimi K2.5, arXiv 2602.02276, eq. 1, and Dr.GRPO, arXiv 2503.20783, section 3. GRPO: DeepSeekMath,
        arXiv 2402.03300, section 4.1.2, whose estimator of the deviation is not named; ours divides by the count. RLOO:
        Kool et al., ICLR 2019 workshop ("Buy 4 REINFORCE samples, get a baseline for free"); Ahmadian et al.,
        arXiv 2402.14740.
    Example:
        Rewards (1, 0, 0, failed): mean 1/3, so (2/3, -1/3, -1/3, 0). Deviation sqrt(2)/3, so grpo gives
        (1.414, -0.707, -0.707, 0). The others' means are 0, 1/2, 1/2, so rloo gives (1, -1/2, -1/2, 0).
        tests/reference/test_advantages.py repeats it.
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
    elif kind is AdvantageKind.rloo:
        advantages *= len(scored) / (len(scored) - 1)
    return advantages


def over_step_deviation(
    advantages: Sequence[NDArray[np.float64]], is_scored: Sequence[Sequence[bool]], std_epsilon: float
) -> list[NDArray[np.float64]]:
    """Group-centred rewards, divided by their standard deviation over the whole step.

    Args:
        advantages: [G] by group, rewards minus their group's mean; these have mean 0 over the step, so that none is
            subtracted and what is exactly 0 stays so.
        is_scored: [G] by group; all scored trajectories take part, also those of groups without advantage.
        std_epsilon: reward units, > 0.
    Source:
        REINFORCE++ with baseline: arXiv 2501.03262, global advantage normalisation; without the penalty for leaving a
        reference model, which we do not hold. Its variant without groups is not offered: a baseline over different
        tasks rewards easy ones.
    Example:
        Centred rewards (2/3, -1/3, -1/3, failed) and (0, 0): five scored, deviation sqrt((4 + 1 + 1) / 9 / 5) = 0.3651,
        so (1.826, -0.913, -0.913, 0) and (0, 0). tests/reference/test_advantages.py repeats it.
    """
    scored = [values[np.asarray(mask, np.bool_)] for values, mask in zip(advantages, is_scored, strict=True)]
    squares = np.square(np.concatenate([np.zeros(0), *scored]))
    deviation = float(np.sqrt(squares.mean())) if len(squares) else 0.0
    return [values / (deviation + std_epsilon) for values in advantages]


def returns_to_go(turn_rewards_K: Sequence[float], outcome_reward: float, discount: float) -> NDArray[np.float32]:
    """What each turn and those after it earned, a turn's reward counting `discount` for each turn that lies between.

    Args:
        turn_rewards_K: summed reward terms of each turn.
        outcome_reward: summed terms of the episode as a whole; earned by the last turn.
        discount: in [0, 1].
    Returns:
        [K] float32.
    Example:
        Turn rewards (0, 1), outcome 1, discount 1/2: the last turn earned 2, the first 0 + 2/2 = 1.
    """
    returns = np.zeros(len(turn_rewards_K))
    to_go = 0.0
    for turn in reversed(range(len(turn_rewards_K))):
        earned = turn_rewards_K[turn] + (outcome_reward if turn == len(turn_rewards_K) - 1 else 0.0)
        to_go = earned + discount * to_go
        returns[turn] = to_go
    return returns.astype(np.float32)


def turn_advantages(
    returns_GK: Sequence[NDArray[np.float32]], is_scored_G: Sequence[bool]
) -> list[NDArray[np.float64]]:
    """Each turn's return minus the mean over the group's trajectories that reached such a turn.

    The k-th turns are compared with each other: what is left to earn shrinks over an episode, so that one mean for all
    turns would punish late ones. Whoever alone went on that far has nobody to be compared with, and gets 0.

    Args:
        returns_GK: of `returns_to_go`; trajectories may have different numbers of turns.
        is_scored_G: False where the episode failed in the infrastructure.
    Returns:
        By trajectory, [K] float64. Turn by turn exactly 0 where fewer than two are scored, or all are equal.
    Source:
        REINFORCE with rewards to go and a baseline: Williams, Machine Learning 8, 1992. Turns as actions: Zeng et al.,
        arXiv 2505.11821, who also divide by the deviation.
    Example:
        Returns (1, 2), (1) and (0, 0): means 2/3 and 1, so (1/3, 1), (1/3) and (-2/3, -1).
        tests/reference/test_advantages.py repeats it.
    """
    advantages = [np.zeros(len(returns)) for returns in returns_GK]
    for turn in range(max(map(len, returns_GK), default=0)):
        reached = [index for index, returns in enumerate(returns_GK) if len(returns) > turn]
        returns = [float(returns_GK[index][turn]) for index in reached]
        is_scored = [is_scored_G[index] for index in reached]
        values = group_advantages(returns, is_scored, AdvantageKind.group_mean, 0.0)
        for index, value in zip(reached, values.tolist(), strict=True):
            advantages[index][turn] = value
    return advantages
