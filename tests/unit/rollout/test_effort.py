"""What an episode beyond its budget of sampled tokens earns."""

from typing import Any

import numpy as np
import pytest
from rollout_cases import VERSION, make_id

from segue.learner.advantage import returns_to_go
from segue.rollout.engine.base import Completion, FinishReason
from segue.rollout.episode import Episode, PlayedTurn, TaskSpec
from segue.rollout.rewards.effort import BUDGET_KEY, charge
from segue.rollout.session import Session
from segue.rollout.stored_group import TrajectorySummary
from segue.rollout.trajectory import Outcome, Source, validate


def turn(start: int, length: int, **terms: float) -> PlayedTurn:
    """A turn of so many tokens from there on."""
    ints = np.zeros(length, np.int32)
    return PlayedTurn(
        start=start,
        completion=Completion(
            token_ids=ints,
            logprobs=np.full(length, -0.5, np.float32),
            policy_incarnation=ints + VERSION.incarnation,
            policy_step=ints + VERSION.step,
            finish_reason=FinishReason.stop,
        ),
        reward_terms=terms,
    )


def make_episode(budgets: dict[str, int], *turns: PlayedTurn, info: dict[str, Any]) -> Episode:
    session = Session(make_id())
    session.append(np.zeros(400, np.int32))
    task = TaskSpec(id="task", seed=1, budgets=budgets)
    return Episode(task=task, group_id="g", session_id=session.id, session=session, turns=list(turns), info=info)


@pytest.mark.parametrize(("num_last", "over"), [(61, -2.1), (60, None), (59, None)])
def test_one_token_beyond_the_budget_makes_the_sum_minus_one(num_last: int, over: float | None) -> None:
    # by hand, as the docstring: 60 tokens in the first turn and the rest in the second, of 120
    turns = (turn(5, 60, process=0.1), turn(100, num_last))
    episode = make_episode({"max": 120, "sum": 9}, *turns, info={"question_class": "max"})
    episode.outcome_terms["success"] = 1.0
    charge(episode)
    trajectory = episode.to_trajectory(Outcome.success, source=Source.policy, temperature=1.0)
    validate(trajectory)
    assert trajectory.info[BUDGET_KEY] == 120
    if over is None:
        assert trajectory.outcome_terms == {"success": 1.0} and trajectory.reward == 1.1
        return
    assert trajectory.outcome_terms == {"success": 1.0, "over_budget": pytest.approx(over)}
    assert trajectory.turns[0].reward_terms == {"process": 0.1}
    # rewards are compared as float32
    assert np.float32(trajectory.reward) == np.float32(TrajectorySummary.of(trajectory).reward) == -1.0
    # turn by turn: the second turn's return undoes what the first earned
    summary = TrajectorySummary.of(trajectory)
    assert returns_to_go(summary.turn_rewards, summary.outcome_reward, 1.0).tolist() == pytest.approx([-1.0, -1.1])


def test_a_task_of_a_class_without_a_budget_is_free_and_of_an_environment_without_classes_the_only_one() -> None:
    free = make_episode({"max": 1}, turn(5, 60), info={"question_class": "sum"})
    charge(free)
    assert free.info == {"question_class": "sum"} and free.outcome_terms == {}
    only = make_episode({"": 59}, turn(5, 60), info={})
    charge(only)
    assert only.info == {BUDGET_KEY: 59} and only.outcome_terms == {"over_budget": -1.0}


@pytest.mark.parametrize("earned", [0.1, 1e6, -1e6, 1.0 / 3.0, 123456.789])
def test_the_sum_is_minus_one_whatever_was_earned(earned: float) -> None:
    episode = make_episode({"": 1}, turn(5, 2, a=earned), turn(9, 2, b=-earned / 7), info={})
    episode.outcome_terms["c"] = earned / 3
    charge(episode)
    trajectory = episode.to_trajectory(Outcome.failure, source=Source.policy, temperature=1.0)
    assert np.float32(trajectory.reward) == np.float32(TrajectorySummary.of(trajectory).reward) == -1.0
