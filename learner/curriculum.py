"""Stages of imitation: what each step of a stage holds, when a stage ends, and when it forgets short contexts.

Pure functions of numbers. `actors/stages.py` keeps what they are asked about: stages, measurements, mixes.

    mix         source and length of a sequence -> share of the tokens
    step        a run of sequences from one endless order, in which every prefix holds the mix as nearly as can be
    stage end   the straight line through the last held-out losses falls by less than a share of the loss

Lengths are nominal: a demonstrated archive of 512 tokens comes with the turns that read it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import SegueConfig, StageConfig
from segue.learner.learning_rate import learning_rate

# by how much of its steps' tokens a stage that forgets short contexts gives way to the first stage's mix
_SHORT_SHIFT = 0.25
# sequences that are counted at a time
_PIECE = 1 << 16
# places of a point of a sequence that fills [0, 1) evenly
_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """One kind of sequence that a mix holds."""

    length: int
    """Tokens; > 0."""
    is_text: bool = False

    @property
    def name(self) -> str:
        """As metrics and files name it: `demonstration_512`."""
        return f"{'text' if self.is_text else 'demonstration'}_{self.length}"


Mix = Mapping[Part, float]
"""Kind of sequence to its share of the tokens; the shares add up to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What a stage says about a step of the learner."""

    segment_tokens: int
    lr: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlace:
    """A step of a stage."""

    stage: int
    """From 0."""
    step: int
    """Steps that the stage has behind it."""


def mix_of(stage: StageConfig) -> dict[Part, float]:
    """The mix that a stage is configured with, parts in ascending order."""
    shares = {}
    for length, share in sorted(stage.length_mix.items()):
        shares[Part(length)] = share * (1.0 - stage.text_share)
        shares[Part(length, is_text=True)] = share * stage.text_share
    return {part: share for part, share in shares.items() if share}


def parts_of(stages: Sequence[StageConfig]) -> list[Part]:
    """Every kind of sequence that a stage trains on, shortest first."""
    return sorted({part for stage in stages for part in mix_of(stage)})


def blend(mix: Mix, short: Mix) -> dict[Part, float]:
    """A mix of which a quarter is given to another.

    Example:
        All of 4,096 with all of 512: 0.75 and 0.25; once more: 0.5625 and 0.4375.
    """
    parts = sorted({*mix, *short})
    kept = 1.0 - _SHORT_SHIFT
    return {part: kept * mix.get(part, 0.0) + _SHORT_SHIFT * short.get(part, 0.0) for part in parts}


class SequenceOrder:
    """The endless order of a mix's sequences, cut into steps.

    Step i holds the sequences with numbers from floor(i c + u) to floor((i + 1) c + u), c being the sequences of a step
    on average and u in [0, 1) drawn by the seed. The kind of sequence j is the one in whose range, of lengths in
    proportion to the sequences' numbers, the point (v + j g) mod 1 falls, with g the golden section: such points fill
    the interval evenly, so every run of sequences holds the mix as nearly as can be.

    Invariants:
        The same seed gives the same order; no step is empty; shares of the tokens come out; what lies before a step is
        what its predecessors hold: tests/unit/learner/test_curriculum.py.
    Source:
        Systematic sampling; the additive recurrence of the golden section, whose discrepancy is O(log N / N).
    """

    def __init__(self, mix: Mix, tokens_per_step: int, seed: Sequence[int]) -> None:
        """Args:
        mix: shares of the tokens.
        tokens_per_step: on average; at least the longest length.
        seed: non-negative integers.
        """
        self._parts = sorted(mix)
        counts = np.array([tokens_per_step * mix[part] / part.length for part in self._parts])
        # a rounding error below 1 would leave a step empty now and then
        self._per_step = max(float(counts.sum()), 1.0)
        self._borders = np.cumsum(counts)[:-1] / counts.sum()
        self._cut, self._first = np.random.default_rng(list(seed)).random(2).tolist()
        # sequences whose text has been counted, from the first on, and its tokens
        self._counted = (0, 0)

    def step(self, number: int) -> list[Part]:
        """The sequences of a step, by its number from 0; at least one."""
        return [self._parts[place] for place in self._places(self._begin(number), self._begin(number + 1))]

    def text_tokens_before(self, number: int) -> int:
        """Tokens of text in all steps before a step; quick where earlier steps' are known."""
        lengths = np.array([part.length if part.is_text else 0 for part in self._parts])
        if not lengths.any():
            return 0
        end = self._begin(number)
        done, tokens = self._counted if self._counted[0] <= end else (0, 0)
        for start in range(done, end, _PIECE):
            tokens += int(lengths[self._places(start, min(start + _PIECE, end))].sum())
        self._counted = (end, tokens)
        return tokens

    def _begin(self, number: int) -> int:
        return math.floor(number * self._per_step + self._cut)

    def _places(self, start: int, end: int) -> NDArray[np.int64]:
        """Kind of each sequence of [start, end), by its place among the parts."""
        points = (self._first + _GOLDEN * np.arange(start, end)) % 1.0
        return np.searchsorted(self._borders, points, side="right")


def mixed_loss(mix: Mix, losses: Mapping[str, float]) -> float:
    """Mean of the parts' losses by the shares of their tokens.

    Args:
        losses: name of each part to its loss, nats a token.
    """
    return sum(share * losses[part.name] for part, share in mix.items()) / sum(mix.values())


def slope(losses: Sequence[float]) -> float:
    """Slope of the straight line that lies nearest to losses one apart (least squares), over their mean.

    Example:
        2.0, 1.5, 1.4: places -1, 0, 1, so (1.4 - 2.0) / 2 = -0.3 nats from one to the next; over the mean, 1.6333, that
        is -0.1837.
    """
    values = np.asarray(losses)
    places = np.arange(len(values)) - (len(values) - 1) / 2
    return float(places @ values / (places @ places) / values.mean())


def is_flat(losses: Sequence[float], num_evals: int, bound: float) -> bool:
    """Whether the last measurements fall by less than a bound; a rise is flat too.

    Args:
        losses: of one stage, in order, nats; above 0.
        num_evals: measurements that decide; at least 2. Fewer decide nothing.
        bound: share of the loss, from one measurement to the next.
    Example:
        Of 2.0, 1.5, 1.4, 1.39 the last three fall by (1.5 - 1.39) / 2 = 0.055 nats a measurement, 3.85 % of their mean,
        1.43: flat at 0.04, not at 0.03.
    """
    return len(losses) >= num_evals and slope(losses[-num_evals:]) > -bound


def has_risen(loss: float, lowest: float, max_rise: float) -> bool:
    """Whether a loss lies by more than a share above its lowest.

    Example:
        2.05 over 2.0 is a rise of 2.5 %: more than 0.02, less than 0.03.
    """
    return loss > lowest * (1.0 + max_rise)


def step_settings(config: SegueConfig, step: int, place: StagePlace | None) -> StepSettings:
    """Segment length and learning rate of an imitation step.

    A stage rises and falls by itself: its lengths are new to the weights, and nobody knows when it ends.

    Args:
        step: updates done before this one.
        place: where that is in the curriculum; None where there are no stages.
    """
    pretrain, segment_tokens = config.pretrain, config.learner.segment_tokens
    optimizer = pretrain.optimizer
    if place is None:
        lr = learning_rate(step, pretrain.steps, optimizer)
        return StepSettings(segment_tokens=segment_tokens, lr=lr)
    stage = pretrain.curriculum.stages[place.stage]
    optimizer = optimizer if stage.lr is None else replace(optimizer, lr=stage.lr)
    return StepSettings(
        segment_tokens=segment_tokens if stage.segment_tokens is None else stage.segment_tokens,
        lr=learning_rate(place.step, stage.max_steps, optimizer),
    )
