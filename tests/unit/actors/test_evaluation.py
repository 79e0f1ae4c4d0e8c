"""Figures of a set of episodes, counted by hand."""

from actor_cases import make_episode

from segue.actors.console import evaluation_line
from segue.actors.evaluation import evaluate
from segue.actors.step_metrics import evaluation_metrics
from segue.actors.summary import rows_before_and_after
from segue.rollout.trajectory import Outcome


def test_shares_are_counted_per_class_and_check() -> None:
    episodes = [
        make_episode(
            info={"question_class": "max", "query_correct": True, "is_success": True}, reward=1.2, num_tokens=90
        ),
        make_episode(
            info={"question_class": "max", "query_correct": True},
            outcome=Outcome.failure,
            reward=0.1,
            reward_terms={"process": 0.1},
            num_turns=4,
        ),
        make_episode(
            info={"question_class": "sum", "query_correct": False},
            outcome=Outcome.malformed,
            reward=0.0,
            reward_terms={},
        ),
    ]
    found = evaluate(episodes).to_json()
    assert found["episodes"] == 3
    assert found["success"] == 1 / 3
    assert found["checks"] == {"query_correct": 2 / 3}
    assert found["success_by_class"] == {"max": {"success": 0.5, "episodes": 2}, "sum": {"success": 0.0, "episodes": 1}}
    assert found["reward"] == (1.2 + 0.1 + 0.0) / 3
    assert found["reward_terms"] == {"process": 0.1 / 3, "success": 1.0 / 3}
    assert found["tokens"] == (90 + 100 + 100) / 3
    assert found["turns"] == (2 + 4 + 2) / 3
    assert found["outcomes"] == {"failure": 1, "malformed": 1, "success": 1}


def test_infrastructure_failures_are_no_verdict() -> None:
    episodes = [
        make_episode(),
        make_episode(outcome=Outcome.infrastructure_error, reward=0.0),
        make_episode(outcome=Outcome.engine_error, reward=0.0),
        make_episode(outcome=Outcome.environment_error, reward=0.0),
    ]
    found = evaluate(episodes)
    # the environment's own failure is the episode's; the other two are nobody's
    assert (found.success.count, found.success.total) == (1, 2)
    assert found.outcomes == {"engine_error": 1, "environment_error": 1, "infrastructure_error": 1, "success": 1}
    assert found.to_json()["odd_ends"] == {
        "malformed": 0.0,
        "truncated": 0.0,
        "environment_error": 0.5,
        "infrastructure": 0.5,
    }


def test_an_evaluation_that_infrastructure_ended_is_no_score_of_zero() -> None:
    found = evaluate([make_episode(outcome=Outcome.infrastructure_error)] * 3)
    figures = found.to_json()
    assert [figures[name] for name in ("episodes", "success", "reward", "tokens", "turns")] == [0, *[None] * 4]
    assert figures["outcomes"] == {"infrastructure_error": 3}
    values = evaluation_metrics("greedy", found, 2.0)
    assert [values[f"eval/greedy/{name}"] for name in ("success", "reward", "tokens", "turns")] == [None] * 4
    assert evaluation_line(5, values) == "evaluation after step 5: greedy infrastructure 1.000"
    assert rows_before_and_after({"after": {"greedy": figures}}) == [
        ("greedy success", None, None),
        ("greedy infrastructure", None, 1.0),
    ]


def test_how_episodes_ended_is_told_beside_success() -> None:
    ends = [Outcome.success, Outcome.failure, Outcome.malformed, Outcome.truncated_turns]
    broken = make_episode(outcome=Outcome.environment_error, info={"cause": "step of episode 4: broken"})
    found = evaluate([*(make_episode(outcome=outcome) for outcome in ends), broken])
    assert (found.num_breakdowns, found.first_cause) == (1, "step of episode 4: broken")
    values = evaluation_metrics("sampled", found, 2.0)
    line = "evaluation: sampled success 0.200  sampled malformed 0.200  sampled truncated 0.200  "
    assert evaluation_line(None, values) == line + "sampled environment_error 0.200"
    # a class may have such a name
    assert evaluation_line(None, {"eval/sampled/class/malformed": 1.0, "eval/sampled/success": 1.0}) == (
        "evaluation: sampled success 1.000"
    )
