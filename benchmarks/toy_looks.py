"""A toy of episodes as long as the policy likes, which budgets of effort shorten and a judge may rate.

A task says that a sign is near or far. The policy looks as often as it likes, a turn each; from its class's number of
looks on it is shown the sign. Any other word ends the episode, and the sign is the right one. Weights start from an
imitation of somebody who goes on looking, and may not know the sign in the end. Budgets, rewards and what a judge
reads are the run's own (`Effort`, `charge`, `RewardPanel`).

Legend: N episodes, T tokens.
"""

import asyncio
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from toy_learner import ToyLearner, make_config, play_in_step, store_group

from segue.actors.effort import Effort
from segue.actors.episode import summarize
from segue.actors.task import Task
from segue.conf.schema import AdvantageConfig, AdvantageKind, EffortConfig, LearnerConfig, LossConfig
from segue.envs.errors import InfrastructureFailure
from segue.envs.reply import CLASS_KEY
from segue.model.network import SegueModel, build_model
from segue.rollout.chat import AssistantTurn
from segue.rollout.engine.base import Completion, FinishReason
from segue.rollout.episode import Episode, PlayedTurn, TaskSpec
from segue.rollout.rewards.effort import charge
from segue.rollout.rewards.panel import RewardPanel
from segue.rollout.rewards.term import FinishedEpisode, SpokenTurn
from segue.rollout.session import Session, SessionId
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Outcome, Source, Trajectory

NUM_LOOKS = {"near": 1, "far": 3}
"""Of each class, until the sign is shown."""
SIGNS = ("a", "b", "c", "d")
WORDS = (*NUM_LOOKS, "look", "-", *SIGNS)
"""By token."""
LOOK = WORDS.index("look")
MAX_TURNS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a run learns."""

    skill: float
    """How often the imitated one knows the sign."""
    effort: EffortConfig = field(default_factory=EffortConfig)
    loss: LossConfig = field(default_factory=LossConfig)
    is_judged: bool = False
    """A judge's score is all that is earned."""
    lr: float = 1e-3
    num_groups: int = 2
    group_size: int = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a run came to, an entry a learner step."""

    success: list[float]
    """Share of the episodes; whatever the reward says."""
    num_sampled: list[float]
    """Tokens that the policy sampled, by episode."""
    agreement: list[float]
    """Share of the episodes in which the judge says what is true."""


def class_of(seed: int) -> str:
    """The class of a task."""
    return WORDS[seed % len(NUM_LOOKS)]


def sign_of(seed: int) -> str:
    """Its sign."""
    return SIGNS[seed // len(NUM_LOOKS) % len(SIGNS)]


def shown(seed: int, num_looks: int) -> str:
    """What a look brings back."""
    return sign_of(seed) if num_looks >= NUM_LOOKS[class_of(seed)] else "-"


def make_task(number: int, rng: np.random.Generator) -> Task:
    """A task of a stream."""
    return Task(number=number, task_id=f"toy-{number}", seed=int(rng.integers(1 << 30)), incarnation=0)


def play(
    model: SegueModel, tasks: Sequence[Task], group_size: int, generator: torch.Generator, step: int
) -> list[list[Episode]]:
    """An episode for each place in each task's group, all in step, by weights of `step`."""
    rows = [task for task in tasks for _ in range(group_size)]
    words_NT, logprob_NT = play_in_step(
        model,
        MAX_TURNS,
        lambda k: [WORDS.index(shown(task.seed, k) if k else class_of(task.seed)) for task in rows],
        generator,
    )
    tokens_NT = words_NT.astype(np.int32)
    episodes = [
        make_episode(task, n % group_size, cut(tokens_NT[n]), logprob_NT[n], step) for n, task in enumerate(rows)
    ]
    return [episodes[start : start + group_size] for start in range(0, len(rows), group_size)]


def cut(tokens_T: NDArray[np.int32]) -> NDArray[np.int32]:
    """The stream up to the first turn that is no look, and with it."""
    is_last = tokens_T[1::2] != LOOK
    return tokens_T[: 2 * (int(is_last.argmax()) + 1)] if is_last.any() else tokens_T


def make_episode(
    task: Task, index: int, tokens_T: NDArray[np.int32], logprob_T: NDArray[np.float32], step: int
) -> Episode:
    """An episode that weights of `step` played."""
    session = Session(SessionId(task_id=task.task_id, index=index, attempt=0))
    session.append(tokens_T)
    turns = [
        PlayedTurn(
            start=t,
            completion=Completion(
                token_ids=tokens_T[t : t + 1],
                logprobs=logprob_T[t : t + 1],
                policy_incarnation=np.zeros(1, np.int32),
                policy_step=np.full(1, step, np.int32),
                finish_reason=FinishReason.stop,
            ),
        )
        for t in range(1, len(tokens_T), 2)
    ]
    return Episode(
        task=TaskSpec(id=task.task_id, seed=task.seed, budgets=task.budgets),
        group_id=task.group_id,
        session_id=session.id,
        session=session,
        turns=turns,
        info={CLASS_KEY: class_of(task.seed)},
    )


def words_of(episode: Episode) -> list[str]:
    """The stream as words."""
    assert episode.session is not None, "it was played"
    return [WORDS[token] for token in episode.session.token_ids]


def outcome_of(episode: Episode) -> Outcome:
    """How it ended."""
    last = words_of(episode)[-1]
    if last == "look":
        return Outcome.truncated_turns
    return Outcome.success if last == sign_of(episode.task.seed) else Outcome.failure


def finished(episode: Episode) -> FinishedEpisode:
    """The episode as reward terms see it."""
    first, *rest = words_of(episode)
    said, results = rest[::2], [*((word,) for word in rest[1::2]), ()]
    assert episode.session_id.index is not None, "a prefix is no episode"
    return FinishedEpisode(
        task_id=episode.task.id,
        index=episode.session_id.index,
        attempt=0,
        seed=episode.task.seed,
        outcome=outcome_of(episode),
        system="",
        user=first,
        turns=tuple(
            SpokenTurn(text=word, said=AssistantTurn(response=word), results=brought, reward_terms={})
            for word, brought in zip(said, results, strict=True)
        ),
        info=episode.info,
        num_tokens=len(rest) + 1,
        num_sampled_tokens=len(said),
    )


def to_trajectory(episode: Episode, outcome: Outcome, source: Source = Source.policy) -> Trajectory:
    """What the episode leaves behind."""
    return episode.to_trajectory(outcome, source=source, temperature=1.0)


def demonstrate(task: Task, rng: np.random.Generator, *, skill: float, fewest: int) -> Episode:
    """Somebody who takes `fewest` to six looks more than he must, and knows the sign with probability `skill`."""
    num_looks = max(NUM_LOOKS[class_of(task.seed)] + int(rng.integers(fewest, 7)), 0)
    answer = sign_of(task.seed) if rng.random() < skill else str(rng.choice(SIGNS))
    looks = [word for k in range(num_looks) for word in ("look", shown(task.seed, k + 1))]
    tokens_T = np.array([WORDS.index(word) for word in (class_of(task.seed), *looks, answer)], np.int32)
    return make_episode(task, 0, tokens_T, np.zeros(len(tokens_T), np.float32), 0)


def warm_start(seed: int, num_steps: int, skill: float) -> SegueModel:
    """Weights that imitate somebody who wastes looks."""
    rng = np.random.default_rng(seed)
    model = build_model(make_config(len(WORDS)), torch.float32)
    model.init_weights(torch.Generator().manual_seed(seed))
    learner = ToyLearner(model, LearnerConfig(), lr=4e-3)
    for _ in range(num_steps):
        played = [demonstrate(make_task(n, rng), rng, skill=skill, fewest=0) for n in range(32)]
        learner.imitate([to_trajectory(episode, outcome_of(episode), Source.demonstrator) for episode in played])
    return model


def learn(setting: Setting, start: SegueModel, seed: int, num_steps: int, panel: RewardPanel | None = None) -> Learnt:
    """Learn from the weights of a warm start.

    Args:
        panel: rates the episodes where they are judged.
    """
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    model = deepcopy(start)
    config = LearnerConfig(advantage=AdvantageConfig(kind=AdvantageKind.group_mean), loss=setting.loss)
    learner = ToyLearner(model, config, lr=setting.lr)
    effort = Effort(setting.effort)
    if effort.is_due:
        # apart, so that runs without budgets meet the same tasks
        others = np.random.default_rng([seed, 1])
        tasks = [make_task(number, others) for number in range(setting.effort.episodes)]
        played = [episode for (episode,) in play(model, tasks, 1, torch.Generator().manual_seed(seed), 0)]
        effort.measure([summarize(to_trajectory(episode, outcome_of(episode))) for episode in played])
    learnt = Learnt(success=[], num_sampled=[], agreement=[])
    with asyncio.Runner() as runner:
        for step in range(num_steps):
            tasks = [
                effort.begin(make_task(step * setting.num_groups + g, rng), step) for g in range(setting.num_groups)
            ]
            groups = play(model, tasks, setting.group_size, generator, step)
            episodes = [episode for group in groups for episode in group]
            truths = [float(outcome_of(episode) is Outcome.success) for episode in episodes]
            if panel is None:
                for episode, truth in zip(episodes, truths, strict=True):
                    episode.outcome_terms["success"] = truth
            else:
                scores = runner.run(judge_all(episodes, panel))
                learnt.agreement.append(float(np.mean([s == t for s, t in zip(scores, truths, strict=True)])))
            for episode in episodes:
                charge(episode)
            learnt.success.append(float(np.mean(truths)))
            learnt.num_sampled.append(float(np.mean([len(episode.turns) for episode in episodes])))
            learner.reinforce([make_group(group, step) for group in groups])
    return learnt


async def judge_all(episodes: Sequence[Episode], panel: RewardPanel) -> list[float | None]:
    """Have each rated side by side; returns what they earned, None where a judge gave no score."""
    return await asyncio.gather(*(judge(episode, panel) for episode in episodes))


async def judge(episode: Episode, panel: RewardPanel) -> float | None:
    """Have one rated."""
    try:
        rating = await panel.rate(finished(episode))
    except InfrastructureFailure:
        return None
    episode.outcome_terms.update(rating.outcome_terms)
    return sum(rating.outcome_terms.values())


def make_group(episodes: Sequence[Episode], step: int) -> StoredGroup:
    """A task's episodes, which weights of `step` played; one that nothing rated is masked."""
    return store_group(
        [
            to_trajectory(one, outcome_of(one) if one.outcome_terms else Outcome.infrastructure_error)
            for one in episodes
        ],
        step,
    )
