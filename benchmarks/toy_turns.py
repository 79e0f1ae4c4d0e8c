"""A toy of turns whose rewards come late, learnt through the learner's own selection, losses, sweeps and balance.

In each turn the policy sees a sign, drawn anew in every episode, and answers with one token. A right answer earns what
the sign is worth, seen at once but paid `DELAY` turns later, or with the last turn: cheap signs pay little, dear ones
much, so that episodes differ by luck as well. What differs between two runs is a `Setting`.

Legend: N episodes of a step, K turns, T = 2 K tokens.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from toy_learner import ToyLearner, make_config, play_in_step, store_group

from segue.actors.batch_order import Place, next_batch
from segue.conf.schema import AdvantageConfig, CriticConfig, LearnerConfig, LossConfig
from segue.learner.balance import load_violation
from segue.model.network import SegueModel, build_model
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Outcome, Source, Trajectory, Turn

NUM_ANSWERS, NUM_TURNS, DELAY = 4, 12, 2
WORTH = np.repeat([0.2, 1.0], NUM_ANSWERS)
"""Of each sign; its right answer is its number modulo `NUM_ANSWERS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a run learns."""

    advantage: AdvantageConfig
    loss: LossConfig
    critic: CriticConfig = field(default_factory=CriticConfig)
    lr: float = 2e-3
    age: int = 0
    """Learner steps that the weights which play lag behind those that are trained."""
    is_balanced: bool = False
    """The router's biases move."""
    num_groups: int = 2
    """Of a learner step; 1/`max_uses` of them are new."""
    max_uses: int = 1
    """Learner steps that train on a group."""
    group_size: int = 4

    @property
    def num_new(self) -> int:
        """Groups that are played for a learner step."""
        return self.num_groups // self.max_uses

    @property
    def max_staleness(self) -> int:
        """Learner steps that the weights which sampled a token may lag behind."""
        return self.age + self.max_uses - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a run came to."""

    earned: list[float]
    """An entry whenever it played: earned, of all that could be."""
    explained: list[float]
    """With a critic, an entry a learner step: what its values explain of the variance of returns, before the update."""
    violation: list[float]
    """An entry a learner step: load of the busiest expert over the mean load, less 1; the worse layer."""


@dataclass(slots=True, kw_only=True)
class Held:
    """A group that may train, or train again."""

    group: StoredGroup
    step: int
    """Of the weights that played it."""
    num_uses: int = 0


def take_batch(held: list[Held], setting: Setting, step: int) -> list[StoredGroup]:
    """The groups of a learner step, in a run's own order; none where there are too few.

    Those that are used up, or too old for the bound, are held no longer.
    """
    held[:] = [one for one in held if step - one.step <= setting.max_staleness]
    places = [Place(number=i, oldest_step=one.step, is_used=one.num_uses > 0) for i, one in enumerate(held)]
    batch = next_batch(places, [], count=setting.num_groups, step=step, max_staleness=setting.max_staleness)
    chosen = [held[place.number] for place in batch or ()]
    for one in chosen:
        one.num_uses += 1
    held[:] = [one for one in held if one.num_uses < setting.max_uses]
    return [one.group for one in chosen]


def play(
    model: SegueModel, signs_NK: NDArray[np.int64], generator: torch.Generator, step: int, group_size: int
) -> list[StoredGroup]:
    """An episode for each row of signs, all in step, by weights of `step`; `group_size` neighbours are compared."""
    tokens_NT, logprob_NT = play_in_step(model, NUM_TURNS, lambda k: signs_NK[:, k], generator)
    episodes = [
        make_trajectory(tokens_T, logprob_T, index % group_size, step)
        for index, (tokens_T, logprob_T) in enumerate(zip(tokens_NT, logprob_NT, strict=True))
    ]
    return [store_group(episodes[start : start + group_size], step) for start in range(0, len(signs_NK), group_size)]


def make_trajectory(tokens_T: NDArray[np.int64], logprob_T: NDArray[np.float32], index: int, step: int) -> Trajectory:
    """What right answers earn comes `DELAY` turns later."""
    signs_K, answers_K = tokens_T[::2], tokens_T[1::2] - len(WORTH)
    is_right_K = answers_K == signs_K % NUM_ANSWERS
    earned_K = np.zeros(NUM_TURNS)
    np.add.at(earned_K, np.minimum(np.arange(NUM_TURNS) + DELAY, NUM_TURNS - 1), WORTH[signs_K] * is_right_K)
    return Trajectory(
        token_ids=tokens_T.astype(np.int32),
        trainable=np.arange(len(tokens_T)) % 2 == 1,
        source=Source.policy,
        behaviour_logprob=logprob_T,
        policy_incarnation=np.zeros(len(tokens_T), np.int32),
        policy_step=np.full(len(tokens_T), step, np.int32),
        turns=tuple(
            Turn(start=2 * k + 1, end=2 * k + 2, temperature=1.0, reward_terms={"process": float(r)}, num_calls=1)
            for k, r in enumerate(earned_K)
        ),
        outcome_terms={},
        outcome=Outcome.success if is_right_K.all() else Outcome.failure,
        task_id="toy",
        group_id="toy",
        index=index,
        attempt=0,
        seed=0,
    )


def learn(setting: Setting, seed: int, num_groups: int) -> Learnt:
    """Learn from random weights, from so many played groups."""
    config = LearnerConfig(advantage=setting.advantage, critic=setting.critic, loss=setting.loss)
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    model = build_model(make_config(len(WORTH) + NUM_ANSWERS), torch.float32)
    model.init_weights(generator)
    learner = ToyLearner(
        model, config, lr=setting.lr, max_staleness=setting.max_staleness, is_balanced=setting.is_balanced
    )
    # the oldest plays
    versions = deque([(0, deepcopy(model))], maxlen=setting.age + 1)
    held: list[Held] = []
    learnt = Learnt(earned=[], explained=[], violation=[])
    for _ in range(num_groups // setting.num_new):
        signs_NK = rng.integers(0, len(WORTH), (setting.num_new * setting.group_size, NUM_TURNS))
        played_step, player = versions[0]
        played = play(player, signs_NK, generator, played_step, setting.group_size)
        earned = sum(member.reward for group in played for member in group.members)
        learnt.earned.append(float(earned / WORTH[signs_NK].sum()))
        held += [Held(group=group, step=played_step) for group in played]
        groups = take_batch(held, setting, learner.step)
        if not groups:
            continue
        trained = learner.reinforce(groups)
        if trained is not None:
            selection, tokens = trained
            learnt.violation.append(max(load_violation(tokens.expert_load)))
            if config.advantage.has_critic:
                learnt.explained.append(explained_variance(groups, selection.members, tokens.value.numpy()))
        versions.append((learner.step, deepcopy(model)))
    return learnt


def explained_variance(
    groups: Sequence[StoredGroup], members: Sequence[tuple[int, int]], value_T: NDArray[np.float32]
) -> float:
    """1 - variance of (return - value) over that of returns, before all turns."""
    earned = np.array([groups[group].members[index].turn_rewards for group, index in members])
    returns = earned[:, ::-1].cumsum(1)[:, ::-1]
    return float(1.0 - (returns - value_T.reshape(len(members), -1)[:, ::2]).var() / returns.var())
