"""What a rollout actor writes of evaluations; its wiring is in tests/e2e/test_train.py."""

from dataclasses import replace

from actor_cases import make_trajectory

from segue.actors.rollout_actor import collect_group
from segue.rollout.trajectory import Outcome, PolicyVersion


def test_an_evaluations_group_spans_the_versions_that_sampled_its_tokens() -> None:
    # the prompt's tokens carry version (0, 0), which means nothing there
    first = make_trajectory([(1, 7), (1, 8)], task_id="eval-greedy-0")
    second = replace(make_trajectory([(2, 3)], task_id="eval-greedy-1"), seed=8)
    group = collect_group("eval-greedy", [first, second], made_by="rollout-1", version=PolicyVersion(2, 4))
    assert (group.first_version, group.last_version) == (PolicyVersion(1, 7), PolicyVersion(2, 3))
    assert [(t.task_id, t.group_id, t.index, t.seed) for t in group.trajectories] == [
        ("eval-greedy", "eval-greedy", 0, 7),
        ("eval-greedy", "eval-greedy", 1, 8),
    ]


def test_an_evaluations_group_without_a_sampled_token_is_of_the_present_weights() -> None:
    failed = make_trajectory([], outcome=Outcome.infrastructure_error)
    group = collect_group("eval-greedy", [failed], made_by="rollout-0", version=PolicyVersion(2, 4))
    assert (group.first_version, group.last_version) == (PolicyVersion(2, 4), PolicyVersion(2, 4))
