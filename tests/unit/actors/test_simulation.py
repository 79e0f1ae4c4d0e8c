"""`segue simulate`: laws of its clock and engine, times worked out by hand, and the command."""

import json
import math
from functools import partial

import numpy as np
import pytest

from segue.actors.cli.main import main
from segue.actors.simulation.engine import Engine, VersionCounts
from segue.actors.simulation.events import Events
from segue.actors.simulation.forecast import Forecast, forecast
from segue.actors.simulation.workload import draw, draw_counts, draw_script
from segue.conf.load import load_config
from segue.conf.placement import placed
from segue.conf.schema import SimulateConfig, SpreadConfig
from segue.rollout.trajectory import PolicyVersion

# one group of two members, of one turn each
ONE_TURN = (
    "train.steps=5",
    "train.groups_per_step=1",
    "train.group_size=2",
    "cluster.rollout_actors=1",
    "cluster.learner_ranks=1",
    "env.workers=2",
    "simulate.turns.median=1",
    "simulate.prompt_tokens.median=100",
    "simulate.turn_tokens={median: 10, tail: 1}",
    "simulate.call_s.median=1",
    "simulate.prefill_tokens_per_s=1000",
    "simulate.decode_step_s=0.01",
    "simulate.decode_session_s=0.005",
    "simulate.learner_step_s=0.5",
    "simulate.learner_tokens_per_s=220",
    "simulate.publish_s=0.2",
)


def simulate(*overrides: str) -> Forecast:
    return forecast(placed(load_config(overrides, "simulate"), 0), lambda step: None)


def play(events: Events) -> None:
    while events.advance():
        pass


def test_events_happen_in_their_order_and_time_never_falls() -> None:
    events, seen = Events(), []

    def happen(name: str) -> None:
        seen.append((events.now, name))

    def first() -> None:
        happen("first")
        events.after(0.0, partial(happen, "at once"))
        events.after(0.5, partial(happen, "between"))

    events.after(2.0, partial(happen, "last"))
    events.after(1.0, first)
    events.after(1.0, partial(happen, "same time, later asked"))
    play(events)
    assert seen == [
        (1.0, "first"), (1.0, "same time, later asked"), (1.0, "at once"), (1.5, "between"), (2.0, "last"),
    ]  # fmt: skip


def test_a_spread_has_its_median_and_its_tail() -> None:
    values = draw(SpreadConfig(median=0.5, tail=20.0), 200_000, np.random.default_rng(0))
    assert np.median(values) == pytest.approx(0.5, rel=0.02)
    assert np.quantile(values, 0.99) == pytest.approx(10.0, rel=0.05)
    assert set(draw(SpreadConfig(median=3.0), 5, np.random.default_rng(0)).tolist()) == {3.0}
    assert min(draw_counts(SpreadConfig(median=0.01), 5, np.random.default_rng(0))) == 1


def test_a_script_has_as_many_of_everything_as_turns_and_no_more_than_the_bound() -> None:
    config = SimulateConfig(turns=SpreadConfig(median=8.0, tail=3.0))
    lengths = []
    for seed in range(200):
        script = draw_script(config, 12, np.random.default_rng(seed))
        assert len(script.turn_tokens) == len(script.call_s) == len(script.observation_tokens)
        lengths.append(len(script.turn_tokens))
    assert max(lengths) == 12 and min(lengths) >= 1 and np.median(lengths) == 8


def make_engine(events: Events, *, chunk_tokens: int = 100) -> Engine:
    """A decode step takes 10 ms and 10 for each session; a chunk 100 ms."""
    config = SimulateConfig(decode_step_s=0.01, decode_session_s=0.01, prefill_tokens_per_s=1000.0)
    engine = Engine(events, config, chunk_tokens)
    engine.swap(PolicyVersion(0, 0))
    return engine


def test_sessions_share_the_engine_and_each_ends_with_its_last_token() -> None:
    events = Events()
    engine = make_engine(events)
    ends: dict[str, float] = {}

    def done(name: str, counts: VersionCounts) -> None:
        ends[name] = events.now

    engine.decode(10, partial(done, "short"))
    engine.decode(20, partial(done, "long"))
    play(events)
    # ten steps of two sessions, 30 ms each, then ten of one, 20 ms each
    assert ends == {"short": pytest.approx(0.3), "long": pytest.approx(0.5)}
    assert (engine.busy_s, engine.num_sampled, engine.num_decoding) == (pytest.approx(0.5), 30, 0)


def test_what_is_fed_comes_between_decode_steps_and_in_order() -> None:
    events = Events()
    engine = make_engine(events)
    ends: list[tuple[str, float]] = []
    engine.feed(200, lambda: ends.append(("first", events.now)))
    engine.feed(50, lambda: ends.append(("second", events.now)))
    engine.decode(5, lambda counts: ends.append(("turn", events.now)))
    play(events)
    # two and a half iterations of 100 ms for a chunk and 20 for a step, then two and a half steps alone
    assert ends == [
        ("first", pytest.approx(0.24)), ("second", pytest.approx(0.3)), ("turn", pytest.approx(0.35)),
    ]  # fmt: skip


def test_a_turn_over_a_swap_says_which_weights_sampled_how_many_of_its_tokens() -> None:
    events = Events()
    engine = make_engine(events)
    told: dict[str, VersionCounts] = {}
    engine.decode(10, lambda counts: told.update(old=counts))
    events.after(0.08, lambda: engine.swap(PolicyVersion(0, 1)))
    events.after(0.08, lambda: engine.decode(10, lambda counts: told.update(new=counts)))
    play(events)
    # four steps of 20 ms before the swap
    assert told == {"old": [(PolicyVersion(0, 0), 4), (PolicyVersion(0, 1), 6)], "new": [(PolicyVersion(0, 1), 10)]}


def test_a_synchronous_step_is_the_sum_of_its_parts() -> None:
    result = simulate(*ONE_TURN)
    # 100 tokens of prompt 0.1 s, ten steps of 20 ms, a second of environment; 2 x 110 tokens 1 s and 0.5; 0.2
    assert result.step_s == pytest.approx(1.3 + 1.5 + 0.2)
    assert result.wait_share == pytest.approx(1.3 / 3.0)
    assert (result.learn_share, result.publish_share) == (pytest.approx(0.5), pytest.approx(0.2 / 3.0))
    assert result.steps_per_hour == pytest.approx(1200.0)
    # the engine is at work for 0.3 s of each
    assert result.engine_busy_share == pytest.approx(0.1)
    assert result.sampled_tokens_per_s == pytest.approx(20 / 3.0)
    assert (result.age_mean_steps, result.age_max_steps, result.masked_share) == (0.0, 0.0, 0.0)


def test_a_step_ahead_hides_what_is_shorter() -> None:
    result = simulate(*ONE_TURN, "train.max_staleness=1")
    # a group has two steps' time, and is played within one
    assert result.step_s == pytest.approx(1.7)
    assert (result.wait_share, result.age_max_steps) == (pytest.approx(0.0), 1.0)


def test_calls_wait_for_a_worker() -> None:
    result = simulate(*ONE_TURN, "env.workers=1")
    assert result.step_s == pytest.approx(4.0)


def test_a_group_waits_for_seats() -> None:
    # two groups of two, one after the other where only two sessions have a seat
    both = simulate(*ONE_TURN, "train.groups_per_step=2", "env.workers=4")
    apart = simulate(*ONE_TURN, "train.groups_per_step=2", "env.workers=4", "rollout.max_sessions=2")
    # prompts 0.1 s each, one after the other; the second one's turn is worked out in the tests of the engine
    assert both.step_s < apart.step_s == pytest.approx(2 * 1.3 + 0.5 + 2.0 + 0.2)


def test_staleness_pays_where_environments_are_slow_now_and_then_and_the_same_seed_says_the_same() -> None:
    slow = ("train.steps=20", "simulate.call_s={median: 1, tail: 20}", "env.workers=128", "train.groups_per_step=4")
    speeds = [simulate(*slow, f"train.max_staleness={bound}").steps_per_hour for bound in (0, 1, 2)]
    assert speeds == sorted(speeds) and speeds[2] > 1.5 * speeds[0]
    again = simulate(*slow)
    assert again.steps_per_hour == speeds[0]
    assert simulate(*slow, "seed=1").steps_per_hour != speeds[0]


def test_the_command_tells_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-m", "--json", *ONE_TURN, "train.max_staleness=0,1"]) == 0
    results = json.loads(capsys.readouterr().out)
    assert list(results) == ["train.max_staleness=0", "train.max_staleness=1"]
    assert math.isclose(results["train.max_staleness=0"]["step_s"], 3.0)
    assert main(["simulate", *ONE_TURN]) == 0
    assert "1,200" in capsys.readouterr().out
    assert main(["simulate", *ONE_TURN, "train.steps=1"]) == 2
    assert "train.steps must be at least 2 to be simulated, got 1" in capsys.readouterr().err
    assert main(["simulate", "simulate.call_s.tail=0.5"]) == 2
    assert "simulate.call_s.tail must be at least 1, got 0.5" in capsys.readouterr().err
