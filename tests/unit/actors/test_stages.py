"""The stages of a curriculum: when stages end, what tasks hold, what a checkpoint brings back; worked by hand."""

import json
from typing import Any

import pytest

from segue.actors.stages import Stages, StepPlan
from segue.conf.schema import CurriculumConfig, PretrainConfig, SegueConfig, StageConfig
from segue.learner.corpus import TextSpan
from segue.learner.curriculum import StagePlace

SHORT = StageConfig(length_mix={512: 1.0}, tokens_per_step=1024, max_steps=100, eval_every=20)
LONG = StageConfig(length_mix={4096: 1.0}, tokens_per_step=4096, max_steps=50, eval_every=20)


def make_stages(*configs: StageConfig, num_steps: int = 7, **curriculum: Any) -> Stages:
    values = {"length_option": "length_tokens", "flat_evals": 2, "flat_slope": 0.05, **curriculum}
    pretrain = PretrainConfig(episodes_per_step=3, curriculum=CurriculumConfig(stages=list(configs), **values))
    return Stages(SegueConfig(seed=5, pretrain=pretrain), list(configs), num_steps)


def losses(short: float, long: float) -> dict[str, float]:
    return {"demonstration_512": short, "demonstration_4096": long}


def train(stages: Stages, by_step: dict[int, dict[str, float]]) -> list[str]:
    """Take every measurement that is due, in order; returns what was done about faults."""
    done = []
    for step, found in by_step.items():
        assert stages.is_due(step), step
        done += [fault.done for fault in stages.measure(step, step, found)]
        assert not stages.is_due(step), step
    return done


def test_without_stages_a_run_is_its_number_of_steps() -> None:
    stages = make_stages(num_steps=7)
    assert (stages.num_steps, stages.pause_after(0), stages.pause_after(6)) == (7, 7, 7)
    assert not any(stages.is_due(step) for step in range(8))
    assert stages.place(3) is None
    assert stages.plan(3) == StepPlan(demonstrations=(None, None, None))


def test_a_stage_pauses_at_its_measurements_and_at_its_maximum() -> None:
    stages = make_stages(SHORT, LONG)
    assert stages.num_steps == 150
    assert [stages.pause_after(step) for step in (0, 19, 20, 85, 99)] == [20, 20, 40, 100, 100]
    assert stages.is_due(0) and not stages.is_due(20), "the first one is before all training"


def test_a_stage_ends_where_its_loss_is_flat_and_the_next_begins_there() -> None:
    stages = make_stages(SHORT, LONG)
    # 4.0 -> 2.0 falls by 2/3 of the mean, 2.0 -> 1.95 by 2.5 %
    assert train(stages, {0: losses(4.0, 9.0), 20: losses(2.0, 8.0), 40: losses(1.95, 7.0)}) == []
    assert stages.num_steps == 40 + 50
    assert stages.place(40) == StagePlace(stage=1, step=0) and stages.place(45) == StagePlace(stage=1, step=5)
    assert [stages.pause_after(step) for step in (40, 60, 80)] == [60, 80, 90]
    # one measurement for each of the two, on their own mixes
    latest = stages.measurements[-2:]
    assert [(m.stage, m.step, m.loss, m.short_loss) for m in latest] == [(0, 40, 1.95, 1.95), (1, 40, 7.0, 1.95)]
    # the new stage's window begins with it: what the old one's loss did says nothing
    assert latest[1].slope is None
    assert stages.longest_trained == 512
    train(stages, {60: losses(1.9, 6.9)})
    # 0.1 over 6.95 is 1.4 %: flat, and the last stage
    assert (stages.num_steps, stages.longest_trained) == (60, 4096)
    assert stages.summary()["stages"] == [
        {"begun_at": 0, "ended_at": 40, "end": "flat"},
        {"begun_at": 40, "ended_at": 60, "end": "flat"},
    ]


def test_a_stage_at_its_maximum_ends_with_a_warning() -> None:
    stages = make_stages(SHORT, LONG)
    falling = {step: losses(0.8 ** (step // 20), 5.0) for step in range(0, 101, 20)}
    assert train(stages, falling) == ["stage 2 begins"]
    assert stages.summary()["stages"][0] == {"begun_at": 0, "ended_at": 100, "end": "maximum"}
    # the last ones are 10 steps apart, 140 and 150
    done = train(stages, {step: losses(0.3, 0.5 ** (step / 20)) for step in (120, 140, 150)})
    assert done == ["the run ends"] and stages.num_steps == 150


def test_a_maximums_warning_names_loss_and_slope() -> None:
    stages = make_stages(SHORT)
    train(stages, {step: losses(1.0 - step / 200, 0.0) for step in (0, 20, 40, 60, 80)})
    (fault,) = stages.measure(100, 100, losses(0.5, 0.0))
    # 0.6 -> 0.5 over 0.55
    assert fault.what == (
        "stage 1 came to its 100 steps before its held-out loss was flat (0.5000 nats, -18.18% a measurement; "
        "flat is above -5.00%)"
    )


def test_a_stage_that_forgets_short_contexts_gives_a_quarter_of_its_mix_away() -> None:
    stages = make_stages(SHORT, LONG, max_short_rise=0.02)
    train(stages, {0: losses(2.0, 9.0), 20: losses(2.0, 8.0)})
    assert stages.num_steps == 20 + 50
    # 1.5 % is allowed
    assert train(stages, {40: losses(2.03, 5.0)}) == []
    (fault,) = stages.measure(60, 60, losses(2.05, 4.0))
    assert fault.what == ("in stage 2 the loss on the first stage's mix is 2.0500 nats, 2.5% above its lowest, 2.0000")
    assert fault.done == (
        "a quarter of the mix is given to the first stage's: demonstration_512 25%, demonstration_4096 75%"
    )
    assert stages.short_share() == 0.25
    # tasks drawn from then on hold it: a quarter of 4,096 tokens a step are two of 512
    before = [length for number in range(20, 60) for length in stages.plan(number).demonstrations]
    after = [length for number in range(60, 100) for length in stages.plan(number).demonstrations]
    assert set(before) == {4096} and len(before) == 40
    assert after.count(512) == pytest.approx(80, abs=3) and after.count(4096) == pytest.approx(30, abs=3)
    # at the end of the last stage there is nothing to give
    (_, fault) = stages.measure(70, 70, losses(2.1, 3.0))
    assert fault.done == "nothing: the last stage is over"


def test_a_stage_that_begins_while_short_contexts_suffer_begins_with_less() -> None:
    third = StageConfig(length_mix={8192: 1.0}, tokens_per_step=8192, max_steps=50, eval_every=20)
    stages = make_stages(SHORT, LONG, third)
    found = {**losses(1.0, 1.0), "demonstration_8192": 1.0}
    train(stages, {0: found, 20: found})
    train(stages, {40: {**found, "demonstration_512": 1.5}})
    assert stages.place(40) == StagePlace(stage=2, step=0)
    assert stages.summary()["regimes"][-1] == {
        "first_task": 40,
        "stage": 2,
        "mix": {"demonstration_512": 0.25, "demonstration_8192": 0.75},
    }


def test_text_goes_on_where_the_stage_before_left_it() -> None:
    first = StageConfig(length_mix={64: 1.0}, text_share=1.0, tokens_per_step=128, max_steps=4, eval_every=2)
    second = StageConfig(length_mix={64: 0.5, 256: 0.5}, text_share=0.5, tokens_per_step=512, max_steps=4, eval_every=4)
    stages = make_stages(first, second, length_option=None)
    names = ("text_64", "text_256", "demonstration_64", "demonstration_256")
    falling = {step: dict.fromkeys(names, 0.5**step) for step in (0, 2, 4, 8)}
    spans: list[TextSpan] = []
    for step in range(9):
        if stages.is_due(step):
            stages.measure(step, step, falling[step])
        if step < 8:
            spans += stages.plan(step).text
    assert [span.length for span in spans[:8]] == [64] * 8
    # no gap, no overlap, over the border of the stages
    ends = [span.start + span.length for span in spans]
    assert [span.start for span in spans] == [0, *ends[:-1]]
    assert {span.length for span in spans[8:]} == {64, 256}
    # where the environment has no option for it, demonstrations come as long as they come
    assert {length for number in range(4, 8) for length in stages.plan(number).demonstrations} == {None}


def test_a_restored_run_goes_on_as_if_nothing_had_happened() -> None:
    by_step = {0: losses(2.0, 9.0), 20: losses(2.0, 8.0), 40: losses(2.5, 5.0), 60: losses(2.5, 3.0)}
    stages, resumed = make_stages(SHORT, LONG), make_stages(SHORT, LONG)
    for step, found in by_step.items():
        told = stages.measure(step, step, found)
        state = json.loads(json.dumps(resumed.state()))
        resumed = make_stages(SHORT, LONG)
        resumed.restore(state)
        assert resumed.measure(step, step, found) == told
        assert resumed.state() == stages.state()
        assert [resumed.plan(n) for n in range(step, step + 5)] == [stages.plan(n) for n in range(step, step + 5)]
    # to an earlier state, as after a loss of the learner
    stages.restore({})
    assert stages.state() == make_stages(SHORT, LONG).state()
