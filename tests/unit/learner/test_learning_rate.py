"""The learning rate over a run."""

import math
from fractions import Fraction

import pytest

from segue.conf.schema import OptimizerConfig, ScheduleKind
from segue.learner.learning_rate import learning_rate


def rates(kind: str, num_steps: int, **changes: float) -> list[float]:
    """Of the run's updates and two later ones."""
    config = OptimizerConfig(schedule=ScheduleKind[kind], **changes)
    return [learning_rate(step, num_steps, config) for step in range(num_steps + 2)]


@pytest.mark.parametrize("kind", [kind.name for kind in ScheduleKind])
def test_every_schedule_equals_the_hand_worked_example_of_the_docstring(kind):
    (line,) = [line for line in (learning_rate.__doc__ or "").splitlines() if line.strip().startswith(f"{kind}: ")]
    expected = [float(Fraction(number.strip())) for number in line.partition(": ")[2].split(",")]
    found = rates(kind, 6, lr=1.0, warmup_steps=2, min_lr_ratio=0.1, decay_share=1 / 3)
    # after the end it stays
    assert found == pytest.approx([*expected, expected[-1], expected[-1]])


def test_without_warm_up_the_first_update_has_the_full_rate():
    assert rates("linear", 3, lr=2.0, warmup_steps=0, min_lr_ratio=0.5)[:3] == pytest.approx([2.0, 1.5, 1.0])


def test_a_cosine_falls_with_its_own_slope():
    found = rates("cosine", 101, lr=1.0, warmup_steps=0, min_lr_ratio=0.0)[:101]
    # d/dp of (1 + cos(pi p)) / 2 is -pi/2 sin(pi p): steepest half-way, level at both ends
    slopes = [(after - before) * 50 for before, after in zip(found[:-2], found[2:], strict=True)]
    expected = [-math.pi / 2 * math.sin(math.pi * step / 100) for step in range(1, 100)]
    assert slopes == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(("share", "num_level"), [(0.2, 8), (0.5, 5), (1.0, 1), (0.01, 9)])
def test_wsd_is_level_until_its_share_of_the_steps_is_left(share, num_level):
    found = rates("wsd", 10, lr=1.0, warmup_steps=0, min_lr_ratio=0.0, decay_share=share)
    # from the last level one it falls evenly to the last update
    falling = [1.0 - n / (10 - num_level) for n in range(1, 11 - num_level)]
    assert found == pytest.approx([1.0] * num_level + falling + [0.0, 0.0])


@pytest.mark.parametrize("kind", ["linear", "cosine", "wsd"])
def test_a_warm_up_as_long_as_the_run_leaves_nothing_to_fall(kind):
    found = rates(kind, 4, lr=1.0, warmup_steps=4, min_lr_ratio=0.5)
    assert found == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.5, 0.5])
