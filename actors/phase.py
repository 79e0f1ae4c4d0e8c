"""What differs between reinforcement learning and imitation: who plays, what trains, how far ahead to play.

One loop serves both (`controller.py`); a phase is what it asks.
"""

from dataclasses import dataclass
from enum import Enum

from segue.actors.task import TaskKind
from segue.conf.schema import EffortConfig, OnExceed, OptimizerConfig, SegueConfig, StageConfig

# enough that the learner never waits, few enough that an ended run has played little in vain
_DEMONSTRATIONS_AHEAD = 4


class PhaseKind(Enum):
    """What a run does; its value is the command's name."""

    train = "train"
    pretrain = "pretrain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The loop's numbers."""

    kind: PhaseKind
    task_kind: TaskKind
    num_steps: int
    """Where there are stages they say how many."""
    stages: list[StageConfig]
    """Of a curriculum; empty where the run has none."""
    groups_per_step: int
    groups_ahead: int
    """Groups that may be in flight or ready at a time: what is played before the step that needs it."""
    max_uses: int
    max_staleness: int | None
    """Oldest age, in learner steps, that trains; None where nothing was sampled from a policy."""
    drops_stale: bool
    """Drop a group with any token beyond the bound, instead of masking the token."""
    eval_every: int
    effort: EffortConfig
    """Budgets of its groups' episodes; off where they earn nothing."""
    publishes_every_step: bool
    """Rollout needs each step's weights; else only evaluations do."""
    play: str
    """Method of a rollout actor: a task to a group's record."""
    learn: str
    """Method of a learner actor: a batch to metrics."""
    optimizer: OptimizerConfig
    """What the learner updates with."""


def make_phase(config: SegueConfig, kind: PhaseKind) -> Phase:
    """The phase of a command."""
    return _reinforcement(config) if kind is PhaseKind.train else _imitation(config)


def _reinforcement(config: SegueConfig) -> Phase:
    train = config.train
    return Phase(
        kind=PhaseKind.train,
        task_kind=TaskKind.train,
        num_steps=train.steps,
        stages=[],
        groups_per_step=train.groups_per_step,
        groups_ahead=(train.max_staleness + 1) * train.groups_per_step,
        max_uses=train.max_uses,
        max_staleness=train.max_staleness,
        drops_stale=train.on_exceed is OnExceed.drop,
        eval_every=train.eval_every,
        effort=train.effort,
        publishes_every_step=True,
        play="play",
        learn="train_step",
        optimizer=config.learner.optimizer,
    )


def _imitation(config: SegueConfig) -> Phase:
    return Phase(
        kind=PhaseKind.pretrain,
        task_kind=TaskKind.demonstration,
        num_steps=config.pretrain.steps,
        stages=config.pretrain.curriculum.stages,
        # a step's demonstrations come as one group, whose members play tasks of their own
        groups_per_step=1,
        groups_ahead=_DEMONSTRATIONS_AHEAD,
        max_uses=1,
        max_staleness=None,
        drops_stale=False,
        eval_every=config.pretrain.eval_every,
        effort=EffortConfig(),
        publishes_every_step=False,
        play="demonstrate",
        learn="imitate_step",
        optimizer=config.pretrain.optimizer,
    )
