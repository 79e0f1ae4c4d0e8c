"""Where an imitation run stands in its curriculum: stages, their measurements, the mix of each task.

    task number -> regime (stage, mix, where its text begins) -> what the task's group holds
    measurement -> has the stage ended? have short contexts suffered? -> perhaps a new regime

A stage may end at a measurement only, so tasks are drawn ahead no further than to the next one (`pause_after`): those
of a stage that ends are all trained. All of it is a function of the configuration and the measurements, which
checkpoints hold: a run that goes on stands where it stood.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from segue.actors.faults import Fault
from segue.actors.words import counted
from segue.conf.schema import SegueConfig, StageConfig
from segue.learner.corpus import TextSpan
from segue.learner.curriculum import (
    Part,
    SequenceOrder,
    StagePlace,
    blend,
    has_risen,
    is_flat,
    mix_of,
    mixed_loss,
    slope,
)

_WHO = "curriculum"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """What the group of an imitation task holds."""

    demonstrations: tuple[int | None, ...]
    """Length of each, in tokens; None leaves it to the environment."""
    text: tuple[TextSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """What held-out sequences said while a stage was trained."""

    stage: int
    step: int
    loss: float
    """On the stage's own mix, nats a token."""
    short_loss: float
    """On the first stage's mix."""
    slope: float | None
    """Of the stage's last measurements, from one to the next, as a share of the loss; None while they are too few."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunStage:
    """A stage that has begun."""

    begun_at: int
    """Step."""
    ended_at: int | None = None
    end: str | None = None
    """`flat` or `maximum`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Regime:
    """Tasks from `first_task` on hold this mix."""

    first_task: int
    stage: int
    mix: dict[Part, float]
    text_start: int
    """Tokens of text in all tasks before."""


class Stages:
    """The stages of one run; without stages, a fixed number of steps.

    Example:
        Stages of at most 200 and 100 steps, measured every 50: `num_steps` is 300. The first is flat at step 150:
        `num_steps` becomes 250, and tasks from 150 on are the second's.
    """

    def __init__(self, config: SegueConfig, stages: list[StageConfig], num_steps: int) -> None:
        """Args:
        config: its curriculum's bounds and its seed.
        stages: none where the run has no curriculum.
        num_steps: of such a run.
        """
        self._config = config.pretrain.curriculum
        self._episodes_per_step = config.pretrain.episodes_per_step
        self._seed = config.seed
        self._configs = stages
        self._num_steps = num_steps
        self._latest_order: tuple[_Regime, SequenceOrder] | None = None
        self.restore({})

    @property
    def has_any(self) -> bool:
        """False where the run has no curriculum."""
        return bool(self._configs)

    @property
    def num_steps(self) -> int:
        """Steps of the run: those that ended stages took, and what the others may take at most."""
        if not self._configs:
            return self._num_steps
        last = self._begun[-1]
        if last.ended_at is not None:
            return last.ended_at
        return last.begun_at + sum(stage.max_steps for stage in self._configs[len(self._begun) - 1 :])

    @property
    def longest_trained(self) -> int:
        """Longest length of the stages that have taken a step, in tokens; 0 before the first."""
        lengths = [max(self._configs[n].length_mix) for n in range(len(self._begun)) if self._has_trained(n)]
        return max(lengths, default=0)

    @property
    def measurements(self) -> list[Measurement]:
        """All so far, in order; where one stage ends and another begins there is one for each."""
        return list(self._measurements)

    def state(self) -> dict[str, Any]:
        """What `restore` needs, as JSON values."""
        return {
            "stages": [asdict(stage) for stage in self._begun],
            "measurements": [asdict(measurement) for measurement in self._measurements],
            "regimes": [_regime_to_json(regime) for regime in self._regimes],
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Return to a state; an empty one is the beginning."""
        self._begun = [BegunStage(**values) for values in state.get("stages", [])]
        self._measurements = [Measurement(**values) for values in state.get("measurements", [])]
        self._regimes = [_regime_from_json(values) for values in state.get("regimes", [])]
        if self._configs and not self._begun:
            self._begun = [BegunStage(begun_at=0)]
            self._regimes = [_Regime(first_task=0, stage=0, mix=mix_of(self._configs[0]), text_start=0)]

    def pause_after(self, step: int) -> int:
        """The first step after this one at which a measurement may end a stage; the last one where there is none."""
        if not self._configs:
            return self._num_steps
        stage, begun_at = self._configs[len(self._begun) - 1], self._begun[-1].begun_at
        next_due = begun_at + ((step - begun_at) // stage.eval_every + 1) * stage.eval_every
        return min(next_due, begun_at + stage.max_steps, self.num_steps)

    def is_due(self, step: int) -> bool:
        """Whether held-out sequences are to be measured now."""
        if not self._configs:
            return False
        if self._measurements:
            return step > self._measurements[-1].step and step == self.pause_after(step - 1)
        return step == 0

    def place(self, step: int) -> StagePlace | None:
        """Where the learner step that follows `step` others stands."""
        if not self._configs:
            return None
        return StagePlace(stage=len(self._begun) - 1, step=step - self._begun[-1].begun_at)

    def plan(self, number: int) -> StepPlan:
        """What the group of a task holds, by the task's number."""
        if not self._configs:
            return StepPlan(demonstrations=(None,) * self._episodes_per_step)
        regime = next(regime for regime in reversed(self._regimes) if regime.first_task <= number)
        order, place = self._order(regime), number - regime.first_task
        parts = order.step(place)
        start = regime.text_start + order.text_tokens_before(place)
        spans = []
        for part in parts:
            if part.is_text:
                spans.append(TextSpan(start, part.length))
                start += part.length
        controls = self._config.length_option is not None
        lengths = tuple(part.length if controls else None for part in parts if not part.is_text)
        return StepPlan(demonstrations=lengths, text=tuple(spans))

    def measure(self, step: int, next_task: int, losses: Mapping[str, float]) -> list[Fault]:
        """Take up a measurement; the stage may end with it, or give a part of its mix to the first stage's.

        Args:
            step: learner steps done; `is_due`.
            next_task: number of the next task that will be drawn.
            losses: name of each of the stages' parts to its held-out loss, nats a token.
        Returns:
            What went wrong, and what is done about it.
        """
        trained = len(self._begun) - 1
        lowest = min((measurement.short_loss for measurement in self._measurements), default=None)
        self._note(step, losses)
        faults = self._end_stage(step, next_task)
        if len(self._begun) - 1 > trained:
            self._note(step, losses)
        short_loss = self._measurements[-1].short_loss
        if trained and lowest is not None and has_risen(short_loss, lowest, self._config.max_short_rise):
            faults.append(self._heed_short(short_loss, lowest, next_task))
        return faults

    def summary(self) -> dict[str, Any]:
        """Stages and measurements for `summary.json`."""
        regimes = [
            {"first_task": regime.first_task, "stage": regime.stage, "mix": {p.name: s for p, s in regime.mix.items()}}
            for regime in self._regimes
        ]
        return {**self.state(), "regimes": regimes}

    def short_share(self) -> float:
        """Share of the present mix that has the lengths of the first stage's."""
        lengths = self._configs[0].length_mix
        return sum(share for part, share in self._regimes[-1].mix.items() if part.length in lengths)

    def _has_trained(self, stage: int) -> bool:
        begun_at = self._begun[stage].begun_at
        return any(measurement.step > begun_at for measurement in self._measurements)

    def _note(self, step: int, losses: Mapping[str, float]) -> None:
        stage = len(self._begun) - 1
        loss = mixed_loss(mix_of(self._configs[stage]), losses)
        window = [*self._losses(stage), loss][-self._config.flat_evals :]
        self._measurements.append(
            Measurement(
                stage=stage,
                step=step,
                loss=loss,
                short_loss=mixed_loss(mix_of(self._configs[0]), losses),
                slope=slope(window) if len(window) == self._config.flat_evals else None,
            )
        )

    def _losses(self, stage: int) -> list[float]:
        return [measurement.loss for measurement in self._measurements if measurement.stage == stage]

    def _end_stage(self, step: int, next_task: int) -> list[Fault]:
        """End the present stage where it is time; the next one begins at once."""
        number, begun_at = len(self._begun) - 1, self._begun[-1].begun_at
        max_steps = self._configs[number].max_steps
        flat = is_flat(self._losses(number), self._config.flat_evals, self._config.flat_slope)
        if not flat and step < begun_at + max_steps:
            return []
        self._begun[-1] = BegunStage(begun_at=begun_at, ended_at=step, end="flat" if flat else "maximum")
        is_over = number + 1 == len(self._configs)
        if not is_over:
            self._begun.append(BegunStage(begun_at=step))
            self._begin_regime(next_task, mix_of(self._configs[number + 1]))
        if flat:
            return []
        latest = self._measurements[-1]
        falls = "too few measurements" if latest.slope is None else f"{latest.slope:+.2%} a measurement"
        return [
            Fault(
                who=_WHO,
                what=f"stage {number + 1} came to its {counted(max_steps, 'step')} before its held-out loss "
                f"was flat ({latest.loss:.4f} nats, {falls}; flat is above {-self._config.flat_slope:.2%})",
                done="the run ends" if is_over else f"stage {number + 2} begins",
            )
        ]

    def _heed_short(self, loss: float, lowest: float, next_task: int) -> Fault:
        what = (
            f"in stage {len(self._begun)} the loss on the first stage's mix is {loss:.4f} nats, "
            f"{loss / lowest - 1:.1%} above its lowest, {lowest:.4f}"
        )
        if self._begun[-1].ended_at is not None:
            return Fault(who=_WHO, what=what, done="nothing: the last stage is over")
        self._begin_regime(next_task, blend(self._regimes[-1].mix, mix_of(self._configs[0])))
        done = f"a quarter of the mix is given to the first stage's: {_words(self._regimes[-1].mix)}"
        return Fault(who=_WHO, what=what, done=done)

    def _begin_regime(self, first_task: int, mix: dict[Part, float]) -> None:
        last = self._regimes[-1]
        text_start = last.text_start + self._order(last).text_tokens_before(first_task - last.first_task)
        # one that no task was drawn in gives its place away
        self._regimes = [regime for regime in self._regimes if regime.first_task < first_task]
        regime = _Regime(first_task=first_task, stage=len(self._begun) - 1, mix=mix, text_start=text_start)
        self._regimes.append(regime)

    def _order(self, regime: _Regime) -> SequenceOrder:
        # the latest one's is kept: it knows how much text its tasks have had
        if self._latest_order is None or self._latest_order[0] is not regime:
            tokens = self._configs[regime.stage].tokens_per_step
            order = SequenceOrder(regime.mix, tokens, (self._seed, regime.stage, regime.first_task))
            self._latest_order = regime, order
        return self._latest_order[1]


def _regime_to_json(regime: _Regime) -> dict[str, Any]:
    return {
        "first_task": regime.first_task,
        "stage": regime.stage,
        "mix": [[part.length, part.is_text, share] for part, share in regime.mix.items()],
        "text_start": regime.text_start,
    }


def _regime_from_json(values: dict[str, Any]) -> _Regime:
    return _Regime(**{**values, "mix": {Part(length, is_text): share for length, is_text, share in values["mix"]}})


def _words(mix: Mapping[Part, float]) -> str:
    return ", ".join(f"{part.name} {share:.0%}" for part, share in mix.items())
