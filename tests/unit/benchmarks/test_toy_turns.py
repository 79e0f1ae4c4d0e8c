"""The toy pays what its docstring says, and nothing sooner."""

import numpy as np
import pytest
from toy_learner import store_group
from toy_turns import NUM_TURNS, WORTH, Held, Setting, explained_variance, make_trajectory, take_batch

from segue.conf.schema import AdvantageConfig, LossConfig
from segue.rollout.trajectory import Outcome

# signs 0 to 3 are cheap, 4 to 7 dear; answers are tokens 8 to 11
SIGNS = np.arange(NUM_TURNS) % 8


def episode(answers):
    tokens = np.stack([SIGNS, answers], axis=1).ravel()
    return make_trajectory(tokens, np.zeros(2 * NUM_TURNS, np.float32), index=0, step=3)


def test_right_answers_are_paid_two_turns_later_or_at_the_end() -> None:
    told = episode(8 + SIGNS % 4)
    paid = [sum(turn.reward_terms.values()) for turn in told.turns]
    assert paid == pytest.approx([0, 0, 0.2, 0.2, 0.2, 0.2, 1, 1, 1, 1, 0.2, 0.2 + 0.2 + 0.2])
    assert told.outcome is Outcome.success and sum(paid) == pytest.approx(WORTH[SIGNS].sum())


def test_a_wrong_answer_is_paid_nothing() -> None:
    answers = 8 + SIGNS % 4
    answers[4] = 9
    answers[5] = 5
    told = episode(answers)
    paid = [sum(turn.reward_terms.values()) for turn in told.turns]
    assert paid == pytest.approx([0, 0, 0.2, 0.2, 0.2, 0.2, 0, 0, 1, 1, 0.2, 0.6])
    assert told.outcome is Outcome.failure


def test_values_that_are_the_returns_explain_them_and_constant_ones_do_not() -> None:
    told = episode(8 + SIGNS % 4)
    group = store_group([told], step=3)
    paid = np.array([sum(turn.reward_terms.values()) for turn in told.turns])
    values = np.repeat(paid[::-1].cumsum()[::-1], 2).astype(np.float32)
    assert explained_variance([group], [(0, 0)], values) == pytest.approx(1.0)
    assert explained_variance([group], [(0, 0)], np.full_like(values, 5.0)) == pytest.approx(0.0)


def test_each_group_trains_twice_within_the_bound_the_second_time_after_a_new_one() -> None:
    setting = Setting(advantage=AdvantageConfig(), loss=LossConfig(), max_uses=2)
    assert (setting.num_new, setting.max_staleness) == (1, 1)
    held, played, batches = [], [], []
    step = 0
    for _ in range(5):
        played.append(store_group([episode(8 + SIGNS % 4)], step=step))
        held.append(Held(group=played[-1], step=step))
        batches.append([played.index(group) for group in take_batch(held, setting, step)])
        step += bool(batches[-1])
    # of the two of step 0 the second would be two steps old at its second use
    assert batches == [[], [0, 1], [2, 0], [3, 2], [4, 3]]
