"""What a step of a stage holds, when a stage ends, and what the learner is told of it: worked by hand."""

import tracemalloc
from collections import Counter

import pytest

from segue.conf.schema import (
    CurriculumConfig,
    LearnerConfig,
    OptimizerConfig,
    PretrainConfig,
    ScheduleKind,
    SegueConfig,
    StageConfig,
)
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
    step_settings,
)

SHORT, LONG, TEXT = Part(512), Part(4096), Part(512, is_text=True)
MIX = {SHORT: 0.5, TEXT: 0.2, LONG: 0.3}


def test_a_stages_mix_shares_each_length_between_text_and_demonstrations() -> None:
    stage = StageConfig(length_mix={4096: 0.75, 512: 0.25}, text_share=0.2)
    found = mix_of(stage)
    assert list(found) == [Part(512), Part(512, is_text=True), Part(4096), Part(4096, is_text=True)]
    assert list(found.values()) == pytest.approx([0.2, 0.05, 0.6, 0.15])
    # what has no share is no part
    assert list(mix_of(StageConfig(length_mix={512: 1.0}))) == [SHORT]
    assert list(mix_of(StageConfig(length_mix={512: 1.0}, text_share=1.0))) == [TEXT]
    assert [part.name for part in (SHORT, TEXT)] == ["demonstration_512", "text_512"]


def test_the_slope_is_the_least_squares_lines_over_the_mean() -> None:
    # places -1, 0, 1: (-2.0 + 1.4) / 2 = -0.3; mean 4.9 / 3
    assert slope([2.0, 1.5, 1.4]) == pytest.approx(-0.3 * 3 / 4.9)
    # places -1.5, -0.5, 0.5, 1.5: (-1.5 * 4 - 0.5 * 3 + 0.5 * 3 + 1.5 * 1) / 5 = -4.5 / 5; mean 11 / 4
    assert slope([4.0, 3.0, 3.0, 1.0]) == pytest.approx(-0.9 * 4 / 11)
    assert slope([1.0, 1.0]) == 0.0


def test_a_stage_is_flat_by_its_last_measurements_only() -> None:
    losses = [2.0, 1.5, 1.4, 1.39]
    # of the last three 0.055 over 1.43 is 3.85 %; of all four the first one's fall counts too
    assert is_flat(losses, 3, 0.04) and not is_flat(losses, 3, 0.03)
    # places ±1.5, ±0.5: (1.5 * (1.39 - 2) + 0.5 * (1.4 - 1.5)) / 5 = -0.193, over 1.5725: 12.3 %
    assert is_flat(losses, 4, 0.13) and not is_flat(losses, 4, 0.12)
    assert not is_flat(losses[:2], 3, 1.0), "too few decide nothing"
    assert is_flat([1.0, 1.2], 2, 0.0), "a rise is flat"


def test_a_rise_is_counted_from_the_lowest() -> None:
    assert has_risen(2.05, 2.0, 0.02) and not has_risen(2.05, 2.0, 0.03)
    assert not has_risen(1.9, 2.0, 0.0)


def test_a_quarter_of_a_mix_is_given_away_each_time() -> None:
    once = blend({LONG: 1.0}, {SHORT: 1.0})
    assert once == {SHORT: 0.25, LONG: 0.75}
    assert blend(once, {SHORT: 1.0}) == {SHORT: 0.4375, LONG: 0.5625}


def test_the_loss_of_a_mix_weighs_its_parts_by_their_tokens() -> None:
    losses = {"demonstration_512": 2.0, "text_512": 3.0, "demonstration_4096": 1.0, "text_9": 100.0}
    assert mixed_loss(MIX, losses) == pytest.approx(0.5 * 2 + 0.2 * 3 + 0.3 * 1)


def test_the_order_is_the_seeds_and_steps_join_without_gap() -> None:
    def steps(seed: int) -> list[list[Part]]:
        order = SequenceOrder(MIX, 8192, (seed, 0, 0))
        return [order.step(number) for number in range(40)]

    assert steps(1) == steps(1) != steps(2)
    # nobody has to ask for the steps before: a step is a function of its number
    order = SequenceOrder(MIX, 8192, (1, 0, 0))
    assert [order.step(number) for number in reversed(range(40))] == steps(1)[::-1]
    for number in range(40):
        text = sum(part.length for step in steps(1)[:number] for part in step if part.is_text)
        assert order.text_tokens_before(number) == text


def test_text_before_a_step_is_the_same_whatever_was_asked_before() -> None:
    def fresh(number: int) -> int:
        return SequenceOrder(MIX, 2**20, (1,)).text_tokens_before(number)

    # a step has about 1,500 sequences: more are counted than at a time
    order = SequenceOrder(MIX, 2**20, (1,))
    numbers = [0, 1, 200, 201, 201, 50, 199, 400]
    assert [order.text_tokens_before(number) for number in numbers] == [fresh(number) for number in numbers]
    assert fresh(201) - fresh(200) == sum(part.length for part in order.step(200) if part.is_text)


def test_text_before_a_step_is_not_counted_anew_in_every_step() -> None:
    order = SequenceOrder(MIX, 2**20, (1,))
    tracemalloc.start()
    try:
        order.text_tokens_before(3000)
        # four million sequences, a little at a time
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
        order.text_tokens_before(3001)
        tracemalloc.reset_peak()
        for number in range(3001, 3011):
            order.text_tokens_before(number)
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


def test_every_part_has_its_share_of_the_tokens_and_no_step_is_empty() -> None:
    order = SequenceOrder(MIX, 4096, (3,))
    tokens: Counter[Part] = Counter()
    for number in range(300):
        step = order.step(number)
        assert step
        tokens.update({part: part.length * count for part, count in Counter(step).items()})
        if number in (29, 299):
            wanted = {part: 4096 * (number + 1) * share for part, share in MIX.items()}
            # each part's count is off by a few sequences only, however long the run
            assert all(abs(tokens[part] - wanted[part]) <= 3 * part.length for part in MIX)


def test_a_step_of_one_sequence_has_one_in_every_step() -> None:
    # 0.1 + 0.2 + 0.7 is less than 1 in floats
    mix = {Part(64): 0.1, Part(64, is_text=True): 0.2 + 0.7}
    order = SequenceOrder(mix, 64, (0,))
    assert [len(order.step(number)) for number in range(1000)] == [1] * 1000


def test_a_stage_has_a_learning_rate_and_a_segment_of_its_own() -> None:
    optimizer = OptimizerConfig(lr=1.0, warmup_steps=1, min_lr_ratio=0.0, schedule=ScheduleKind.linear)
    stages = [
        StageConfig(length_mix={64: 1.0}, max_steps=3),
        StageConfig(length_mix={64: 1.0}, max_steps=4, lr=6.0, segment_tokens=128),
    ]
    config = SegueConfig(
        learner=LearnerConfig(segment_tokens=64),
        pretrain=PretrainConfig(steps=5, optimizer=optimizer, curriculum=CurriculumConfig(stages=stages)),
    )

    def settings(stage: int, num_steps: int) -> list[tuple[int, float]]:
        places = [StagePlace(stage=stage, step=step) for step in range(num_steps)]
        return [(s.segment_tokens, s.lr) for s in (step_settings(config, 99, place) for place in places)]

    # one step of warm-up, then evenly down to 0 at the stage's last
    assert settings(0, 3) == [(64, 0.5), (64, 1.0), (64, 0.0)]
    assert settings(1, 4) == [(128, 3.0), (128, 6.0), (128, 3.0), (128, 0.0)]
    # without stages the run's own steps count: 1/2, 1, 2/3, 1/3, 0
    plain = [step_settings(config, step, None) for step in range(5)]
    assert [s.lr for s in plain] == pytest.approx([0.5, 1.0, 2 / 3, 1 / 3, 0.0])
    assert {s.segment_tokens for s in plain} == {64}
