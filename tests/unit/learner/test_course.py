"""Decisions, rewards and places of values of a trajectory, against the example of `Trajectory`, by hand."""

from dataclasses import replace

import numpy as np
import pytest
from learner_cases import make_trajectory

from segue.conf.schema import AdvantageKind
from segue.learner.course import CUT, make_course
from segue.rollout.trajectory import Outcome, Turn, validate

TURN, TOKEN = AdvantageKind.turn_gae, AdvantageKind.token_gae

# index       0  1  2  3  4  5  6
# token_ids   p  p  p  a  a  o  a
TRAINABLE = np.array([0, 0, 0, 1, 1, 0, 1], np.bool_)


def make_turn(start, end, reward, num_calls=1):
    return Turn(start=start, end=end, temperature=1.0, reward_terms={"process": reward}, num_calls=num_calls)


def make_example(outcome=Outcome.success, **changes):
    """A turn of two tokens that earned 1, one of one token that earned 2, and 4 for the whole."""
    fields = {
        "token_ids": np.arange(7, dtype=np.int32),
        "trainable": TRAINABLE,
        "behaviour_logprob": np.zeros(7, np.float32),
        "policy_incarnation": np.zeros(7, np.int32),
        "policy_step": np.zeros(7, np.int32),
        "turns": (make_turn(3, 5, 1.0), make_turn(6, 7, 2.0)),
        "outcome_terms": {"success": 4.0},
        "outcome": outcome,
    }
    trajectory = make_trajectory(0, reward=0.0, **(fields | changes))
    validate(trajectory)
    return trajectory


def told(course):
    names = ("before", "reward", "after", "next", "of_label")
    return {name: getattr(course, name).tolist() for name in names} | {"end": course.end}


def test_turns_of_an_episode_that_ended():
    assert told(make_course(make_example(), TRAINABLE, TURN)) == {
        "before": [2, 5],
        "reward": [1.0, 6.0],
        # after the second turn nothing is earned
        "after": [4, 6],
        "next": [1, 2],
        "of_label": [0, 0, 1],
        "end": None,
    }


def test_tokens_of_an_episode_that_ended():
    assert told(make_course(make_example(), TRAINABLE, TOKEN)) == {
        "before": [2, 3, 5],
        # a turn's reward is its last token's
        "reward": [0.0, 1.0, 6.0],
        "after": [4, 6],
        "next": [2, 3],
        "of_label": [0, 1, 2],
        "end": None,
    }


@pytest.mark.parametrize("kind", [TURN, TOKEN])
@pytest.mark.parametrize("outcome", Outcome)
def test_an_episode_that_was_cut_has_an_end_to_read_and_no_other_has(kind, outcome):
    course = make_course(make_example(outcome), TRAINABLE, kind)
    if outcome in (Outcome.truncated_length, Outcome.truncated_turns, Outcome.truncated_time):
        # what would have followed the last turn is not known, so nothing is learnt there
        assert (course.end, course.after.tolist()) == (6, [4])
        assert outcome in CUT
    else:
        assert (course.end, course.after.tolist()) == (None, [4, 6])


@pytest.mark.parametrize("outcome", [Outcome.truncated_length, Outcome.truncated_time])
def test_a_turn_that_was_cut_in_the_middle_is_judged_by_what_was_expected_before_it(outcome):
    unfinished = make_example(outcome, turns=(make_turn(3, 5, 1.0), make_turn(6, 7, 0.0, num_calls=0)))
    assert make_course(unfinished, TRAINABLE, TURN).end == 5
    # tokens are judged in the middle of turns too
    assert make_course(unfinished, TRAINABLE, TOKEN).end == 6


def test_a_turn_whose_calls_were_all_wrong_is_whole_where_turns_ran_out():
    idle = make_example(Outcome.truncated_turns, turns=(make_turn(3, 5, 1.0), make_turn(6, 7, 0.0, num_calls=0)))
    assert make_course(idle, TRAINABLE, TURN).end == 6


def test_an_episode_cut_after_a_reply_is_read_after_the_reply():
    # the last turn is the first: what stands behind it is its reply
    trainable = np.array([0, 0, 0, 1, 1, 0, 0], np.bool_)
    cut = make_example(Outcome.truncated_length, turns=(make_turn(3, 5, 0.0, num_calls=0),), trainable=trainable)
    for kind in (TURN, TOKEN):
        course = make_course(cut, trainable, kind)
        assert (course.end, course.after.tolist()) == (6, [])


def test_decisions_that_are_not_trained_are_decisions_all_the_same():
    only_last = TRAINABLE & (np.arange(7) == 6)
    for kind, label in ((TURN, 1), (TOKEN, 2)):
        whole, part = (make_course(make_example(), chosen, kind) for chosen in (TRAINABLE, only_last))
        assert part.of_label.tolist() == [label]
        assert told(part) | {"of_label": []} == told(whole) | {"of_label": []}


def test_a_turn_without_tokens_of_the_policy_leaves_its_reward_to_the_token_before():
    empty = make_example(turns=(make_turn(3, 5, 1.0), make_turn(5, 5, 8.0), make_turn(6, 7, 2.0)))
    assert told(make_course(empty, TRAINABLE, TOKEN)) == told(
        make_course(replace(empty, turns=(make_turn(3, 5, 9.0), make_turn(6, 7, 2.0))), TRAINABLE, TOKEN)
    )
    by_turns = make_course(empty, TRAINABLE, TURN)
    assert (by_turns.before.tolist(), by_turns.reward.tolist()) == ([2, 4, 5], [1.0, 8.0, 6.0])
    # it has no last token to read a value after
    assert (by_turns.after.tolist(), by_turns.next.tolist()) == ([4, 6], [1, 3])
    assert by_turns.of_label.tolist() == [0, 0, 2]
