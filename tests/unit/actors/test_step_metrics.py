"""Metrics of a step from its episodes and counters, by hand; the clock against its own parts."""

import time
from dataclasses import fields

import pytest
from actor_cases import make_episode

from segue.actors.evaluation import evaluate
from segue.actors.lineage import Staleness
from segue.actors.metrics import pattern_of
from segue.actors.rollout_stats import RolloutStats
from segue.actors.step_metrics import (
    StepClock,
    batch_metrics,
    effort_metrics,
    environment_metrics,
    evaluation_metrics,
    reward_term_metrics,
    rollout_metrics,
    staleness_metrics,
)
from segue.envs.client import EnvCounters
from segue.rollout.rewards.panel import RewardCounters
from segue.rollout.trajectory import Outcome


def test_batch_metrics_leave_infrastructure_failures_out_of_every_mean_but_their_own_share() -> None:
    episodes = [
        make_episode(reward=1.0, reward_terms={"success": 1.0}, info={"query_correct": True, "level": 1}),
        make_episode(reward=0.0, reward_terms={}, outcome=Outcome.malformed, attempt=1, info={"query_correct": False}),
        make_episode(reward=0.0, reward_terms={}, outcome=Outcome.truncated_turns, num_turns=5),
        make_episode(reward=0.0, reward_terms={}, outcome=Outcome.infrastructure_error, num_turns=0, num_tokens=1),
    ]
    found = batch_metrics(episodes)
    third = pytest.approx(1 / 3)
    assert found["batch/success/mean"] == third
    assert found["batch/reward/mean"] == third
    # variance of (1, 0, 0) is 1/3 - 1/9
    assert found["batch/reward/std"] == pytest.approx((2 / 9) ** 0.5)
    assert found["batch/reward_term/success"] == third
    assert found["batch/check/query_correct"] == third
    assert found["batch/turns/mean"] == 3.0
    assert found["batch/tokens/mean"] == 100.0
    assert found["batch/malformed/share"] == third
    assert found["batch/truncated/share"] == third
    assert found["batch/environment_error/share"] == 0.0
    assert found["batch/infrastructure/share"] == 0.25
    assert found["batch/replayed/share"] == 0.25
    assert "batch/check/level" not in found


def test_an_environment_that_its_own_episode_broke_is_counted_and_judged() -> None:
    episodes = [make_episode(), make_episode(reward=0.0, reward_terms={}, outcome=Outcome.environment_error)]
    found = batch_metrics(episodes)
    assert found["batch/environment_error/share"] == 0.5
    assert found["batch/success/mean"] == 0.5
    assert found["batch/infrastructure/share"] == 0.0


def test_rollout_metrics_are_gains_over_seconds_of_all_actors() -> None:
    def stats(prefill: int, prefill_s: float, sampled: int, decode_s: float, missed: int) -> RolloutStats:
        return RolloutStats(
            num_prefill_tokens=prefill,
            prefill_s=prefill_s,
            num_decode_tokens=sampled,
            decode_s=decode_s,
            num_missed=missed,
            environments=EnvCounters(),
        )

    # two actors each
    before = stats(100, 1.0, 10, 2.0, 0) + stats(0, 0.0, 0, 0.0, 1)
    after = stats(300, 2.0, 30, 4.0, 0) + stats(100, 1.0, 10, 1.0, 4)
    assert rollout_metrics(before, after) == {
        "rollout/prefill/tokens_per_s": (200 + 100) / (1 + 1),
        "rollout/decode/tokens_per_s": (20 + 10) / (2 + 1),
        "rollout/missed/sessions": 3,
    }
    assert rollout_metrics(after, after)["rollout/decode/tokens_per_s"] is None


def test_environment_metrics_are_gains() -> None:
    before = EnvCounters(episodes=4, calls=9, workers_died=1, environment_failures=2)
    after = EnvCounters(
        episodes=11,
        calls=29,
        workers_died=2,
        workers_replaced=1,
        episodes_restored=3,
        environment_failures=7,
        calls_expired=4,
        episodes_lost=5,
    )
    assert environment_metrics(before, after) == {
        "env/episodes/begun": 7,
        "env/episodes/failed": 5,
        "env/episodes/restored": 3,
        "env/episodes/lost": 5,
        "env/calls/answered": 20,
        "env/calls/expired": 4,
        "env/workers/died": 1,
        "env/workers/replaced": 1,
    }


def test_every_counter_of_the_env_client_is_a_metric() -> None:
    # counters 1, 2, 4, 8, …: each sum of some of them is another number
    powers = {field.name: 2**i for i, field in enumerate(fields(EnvCounters))}
    found = environment_metrics(EnvCounters(), EnvCounters(**powers))
    assert sorted(found.values()) == sorted(powers.values())


def test_effort_metrics_are_of_episodes_with_a_budget_that_infrastructure_did_not_end() -> None:
    episodes = [
        make_episode(info={"budget_tokens": 30}, reward_terms={"success": 1.0, "over_budget": -2.0}),
        make_episode(info={"budget_tokens": 60}),
        make_episode(info={"budget_tokens": 90}, outcome=Outcome.engine_error),
        make_episode(info={}),
    ]
    assert effort_metrics(episodes) == {"effort/budget/mean_tokens": 45.0, "effort/over_budget/share": 0.5}
    assert effort_metrics(episodes[3:]) == {"effort/budget/mean_tokens": None, "effort/over_budget/share": None}


def test_reward_term_metrics_are_gains_and_a_mean_over_what_was_asked() -> None:
    before = RewardCounters(computed=4, failed=1, expired=1, wall_s=3.0)
    after = RewardCounters(computed=7, failed=2, expired=5, wall_s=7.0)
    # 3 + 1 + 4 terms in 4 seconds
    assert reward_term_metrics(before, after) == {
        "reward/terms/computed": 3,
        "reward/terms/failed": 1,
        "reward/terms/expired": 4,
        "reward/term/wall_s": 0.5,
    }
    assert reward_term_metrics(after, after)["reward/term/wall_s"] is None


def test_staleness_metrics() -> None:
    staleness = Staleness(num_fresh=6, num_old=2, sum_steps=9, max_steps=3)
    assert staleness_metrics(staleness) == {
        "staleness/age/mean_steps": 1.5,
        "staleness/age/max_steps": 3,
        "staleness/masked/share": 0.25,
    }


def test_evaluation_metrics_carry_mode_class_and_check() -> None:
    episodes = [make_episode(info={"question_class": "max", "query_correct": True})]
    assert evaluation_metrics("greedy", evaluate(episodes), 2.5) == {
        "eval/wall/s": 2.5,
        "eval/greedy/success": 1.0,
        "eval/greedy/reward": 1.0,
        "eval/greedy/tokens": 100.0,
        "eval/greedy/turns": 2.0,
        "eval/greedy/malformed": 0.0,
        "eval/greedy/truncated": 0.0,
        "eval/greedy/environment_error": 0.0,
        "eval/greedy/infrastructure": 0.0,
        "eval/greedy/check/query_correct": 1.0,
        "eval/greedy/class/max": 1.0,
    }


def test_a_slash_in_an_environments_own_names_does_not_split_a_metrics_name() -> None:
    episodes = [make_episode(reward_terms={"a/b": 1.0}, info={"question_class": "c/d", "e/f": True})]
    names = {*batch_metrics(episodes), *evaluation_metrics("sampled", evaluate(episodes), 1.0)}
    assert {"batch/reward_term/a_b", "batch/check/e_f", "eval/sampled/check/e_f", "eval/sampled/class/c_d"} <= names
    for name in names:
        pattern_of(name)


def test_the_clock_adds_up_a_steps_parts_and_foresees_the_rest() -> None:
    clock = StepClock()
    clock.begin_step()
    for _ in range(2):
        with clock.part("wait"):
            time.sleep(0.01)
    with clock.part("learn"):
        time.sleep(0.01)
    first = clock.end_step(steps_left=3)
    assert first["loop/wait/wall_s"] >= 0.02 and first["loop/learn/wall_s"] >= 0.01
    assert first["loop/step/wall_s"] >= first["loop/wait/wall_s"] + first["loop/learn/wall_s"]
    assert first["loop/eta/s"] == pytest.approx(3 * first["loop/step/wall_s"])
    clock.begin_step()
    second = clock.end_step(steps_left=2)
    assert set(second) == {"loop/step/wall_s", "loop/eta/s"}
    mean_s = (first["loop/step/wall_s"] + second["loop/step/wall_s"]) / 2
    assert second["loop/eta/s"] == pytest.approx(2 * mean_s)
