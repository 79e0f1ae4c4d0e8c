"""`segue simulate`: laws of its clock and engine, times worked out by hand, and the command."""

import json
import math
import re
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from segue.actors.cli.main import main
from segue.actors.errors import RunError
from segue.actors.simulation.engine import Engine, VersionCounts
from segue.actors.simulation.events import Events
from segue.actors.simulation.forecast import Forecast, forecast
from segue.actors.simulation.workload import Script, draw, draw_counts, draw_script
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
    "simulate.reset_s.median=1e-9",
    "simulate.call_s.median=1",
    "simulate.prefill_tokens_per_s=1000",
    "simulate.decode_step_s=0.01",
    "simulate.decode_session_s=0.005",
    "simulate.learner_step_s=0.5",
    "simulate.learner_tokens_per_s=220",
    "simulate.publish_s=0.2",
)


def simulate(*overrides: str) -> Forecast:
    return forecast(placed(load_config(overrides, "simulate"), 0), lambda: None)


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


def make_scripts(*overrides: str) -> list[Script]:
    config = load_config(overrides, "simulate")
    return [draw_script(config, 100, np.random.default_rng(seed)) for seed in range(200)]


def test_a_script_is_cut_where_a_run_cuts_it() -> None:
    scripts = make_scripts(
        "simulate.turns={median: 8, tail: 3}", "rollout.max_turns=12", "rollout.max_episode_tokens=9999"
    )
    lengths = [len(script.turns) for script in scripts]
    assert max(lengths) == 12 and min(lengths) >= 1 and np.median(lengths) == 8
    # turns of 60 tokens and replies of 30 on a prompt of 100: three whole ones fit 400, and 30 tokens of a fourth
    bounds = ("simulate.turns.median=8", "simulate.turn_tokens.tail=1", "simulate.observation_tokens.tail=1")
    (script, *_) = make_scripts(*bounds, "rollout.max_turns=8", "rollout.max_episode_tokens=400")
    assert [turn.tokens for turn in script.turns] == [60, 60, 60, 30]
    assert [turn.observation_tokens for turn in script.turns] == [30, 30, 30, 0]
    # a turn that grows too long calls nothing, and is the last
    (script, *_) = make_scripts(*bounds, "rollout.max_turn_tokens=50")
    assert [(turn.tokens, turn.call_s) for turn in script.turns] == [(50, 0.0)]
    # as is one whose call takes too long
    (script, *_) = make_scripts(*bounds, "simulate.call_s.median=40", "env.call_timeout_s=30")
    assert [(turn.tokens, turn.call_s) for turn in script.turns] == [(60, 30.0)]


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
    assert (engine.busy_s, engine.num_sampled) == (pytest.approx(0.5), 30)


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


@pytest.mark.parametrize("rate", [1e5, 1e9])
def test_nothing_hangs_where_the_clock_is_coarser_than_what_is_left(rate: float) -> None:
    events = Events()
    events.after(1e6, lambda: None)
    play(events)
    engine = Engine(events, SimulateConfig(prefill_tokens_per_s=rate, decode_step_s=1e-9), 2048)
    ends: list[str] = []
    for number in range(50):
        engine.feed(7, lambda: ends.append("fed"))
        engine.decode(3 + number, lambda counts: ends.append("sampled"))
    for _ in range(1000):
        events.advance()
    assert sorted(ends) == ["fed"] * 50 + ["sampled"] * 50


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
    assert (result.wait_share, result.age_max_steps) == (pytest.approx(0.0, abs=1e-9), 1.0)


def test_a_worker_is_at_one_call_at_a_time_and_an_episode_stays_with_its_own() -> None:
    assert simulate(*ONE_TURN, "env.workers=1").step_s == pytest.approx(4.0)
    # as many workers as sessions are enough, however the calls fall
    many = (*ONE_TURN, "train.group_size=4", "simulate.turns={median: 6, tail: 2}", "simulate.call_s.tail=5")
    speeds = [simulate(*many, "rollout.max_turns=20", f"env.workers={count}").steps_per_hour for count in (4, 40)]
    assert speeds[0] == speeds[1]
    assert simulate(*many, "rollout.max_turns=20", "env.workers=2").steps_per_hour < speeds[0]


def test_a_second_turn_reads_the_reply_first() -> None:
    turns = ("simulate.turns.median=2", "simulate.observation_tokens={median: 50, tail: 1}", "train.group_size=1")
    critic = ("learner.advantage.kind=turn_gae", "learner.critic.warmup_steps=0")
    result = simulate(*ONE_TURN, *turns, *critic, "simulate.reset_s.median=0.25")
    # prompt 0.1, reset 0.25, twice ten steps of 15 ms and a second, a reply of 0.05; 170 tokens are trained
    assert result.step_s == pytest.approx(0.1 + 0.25 + 2 * (0.15 + 1.0) + 0.05 + 0.5 + 170 / 220 + 0.2)


def test_an_episode_ends_when_its_time_is_over() -> None:
    turns = ("simulate.turns.median=4", "rollout.max_turns=4", "train.group_size=2", "rollout.max_episode_s=2")
    # prompt 0.1, the second call ends at 2.4 and more: two turns of 0.2 and a second, and what is read between
    result = simulate(*ONE_TURN, *turns, "simulate.observation_tokens={median: 1, tail: 1}")
    assert 2.4 + 1.5 < result.step_s < 2.7 + 1.5 + 0.2


def test_what_an_engine_can_do_is_the_same_however_far_ahead_it_may_play() -> None:
    # a learner that takes no time: all of it is the engine's
    bound = (*ONE_TURN, "simulate.call_s.median=1e-6", "simulate.learner_step_s=0", "simulate.publish_s=0")
    bound = (*bound, "simulate.learner_tokens_per_s=1e9", "simulate.turn_tokens.median=100", "env.workers=64")
    speeds = [simulate(*bound, f"train.max_staleness={k}", "train.steps=20") for k in (1, 4)]
    for speed in speeds:
        assert speed.engine_busy_share == pytest.approx(1.0, abs=0.02)
    # sessions that sample together share what a step costs
    assert 0.95 < speeds[1].steps_per_hour / speeds[0].steps_per_hour < 2.0


def test_two_actors_do_twice_as_much_where_rollout_is_what_takes_long() -> None:
    slow = (*ONE_TURN, "train.groups_per_step=8", "rollout.max_sessions=2", "simulate.publish_s=0")
    slow = (*slow, "simulate.learner_step_s=0", "simulate.learner_tokens_per_s=1e9")
    one, two = (simulate(*slow, f"cluster.rollout_actors={count}").step_s for count in (1, 2))
    assert one == pytest.approx(8 * 1.3, rel=1e-3) and two == pytest.approx(4 * 1.3, rel=1e-3)


@settings(max_examples=12)
@given(
    staleness=st.integers(0, 3), uses=st.integers(1, 2), groups=st.integers(1, 4), size=st.integers(2, 4),
    actors=st.integers(1, 3), seats=st.integers(4, 9), workers=st.integers(1, 6), tail=st.floats(1, 50),
    drops=st.booleans(),
)  # fmt: skip
def test_every_simulation_ends_and_its_parts_make_the_whole(
    staleness: int, uses: int, groups: int, size: int, actors: int, seats: int, workers: int, tail: float, drops: bool
) -> None:
    result = simulate(
        "train.steps=4", f"train.max_staleness={staleness}", f"train.max_uses={uses if staleness else 1}",
        f"train.on_exceed={'drop' if drops else 'mask'}", f"train.groups_per_step={groups}", f"train.group_size={size}",
        f"cluster.rollout_actors={actors}", "cluster.learner_ranks=1", f"rollout.max_sessions={seats}",
        f"env.workers={workers}", f"simulate.call_s={{median: 0.5, tail: {tail}}}", "simulate.turns.median=3",
    )  # fmt: skip
    assert math.isfinite(result.step_s) and result.step_s > 0
    shares = (result.wait_share, result.learn_share, result.publish_share)
    assert all(share >= 0 for share in shares) and sum(shares) == pytest.approx(1.0, abs=1e-6)
    assert 0 < result.engine_busy_share <= 1 and result.sampled_tokens_per_s > 0
    assert 0 <= result.age_mean_steps <= result.age_max_steps <= staleness


def test_a_group_waits_for_seats() -> None:
    # two groups of two, one after the other where only two sessions have a seat
    both = simulate(*ONE_TURN, "train.groups_per_step=2", "env.workers=4")
    apart = simulate(*ONE_TURN, "train.groups_per_step=2", "env.workers=4", "rollout.max_sessions=2")
    # prompts 0.1 s each, one after the other; the second one's turn is worked out in the tests of the engine
    assert both.step_s < apart.step_s == pytest.approx(2 * 1.3 + 0.5 + 2.0 + 0.2)


def test_staleness_pays_where_environments_are_slow_now_and_then_and_the_same_seed_says_the_same() -> None:
    slow = ("train.steps=20", "simulate.call_s={median: 1, tail: 20}", "env.workers=128", "train.groups_per_step=4")
    results = [simulate(*slow, f"train.max_staleness={bound}") for bound in (0, 1, 2)]
    speeds = [result.steps_per_hour for result in results]
    assert speeds == sorted(speeds) and speeds[2] > 1.2 * speeds[0]
    # weights change within turns, and what is trained is behind them by less than the bound
    assert 0.5 < results[1].age_mean_steps < 1 and results[2].age_max_steps == 2
    assert simulate(*slow).steps_per_hour == speeds[0] != simulate(*slow, "seed=1").steps_per_hour


def test_a_wait_that_would_end_a_run_is_told() -> None:
    with pytest.raises(RunError, match=r"step 1 waits 1 s for its groups; a run ends there, unless train.wait_timeout"):
        simulate(*ONE_TURN, "train.wait_timeout_s=1")


def test_the_command_tells_every_combination(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-m", "--json", *ONE_TURN, "train.max_staleness=0,1"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["overrides"], second["overrides"]) == (["train.max_staleness=0"], ["train.max_staleness=1"])
    assert (first["step_s"], second["step_s"]) == (pytest.approx(3.0), pytest.approx(1.7))
    assert main(["simulate", *ONE_TURN]) == 0
    assert re.search(r"1\+1 .* 1,200 .* 3.0 s .* 43%", capsys.readouterr().out)


def test_what_cannot_be_simulated_is_told_and_takes_no_other_along(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "-m", *ONE_TURN, "train.wait_timeout_s=2,1"]) == 2
    told = capsys.readouterr()
    assert "1,200" in told.out and "a run ends there" in told.err
    for override, what in (
        ("train.steps=0", "train.steps must be at least 1 to be simulated, got 0"),
        ("rollout.max_sessions=1", "rollout.max_sessions must be at least train.group_size (2) to be simulated, got 1"),
        ("simulate.call_s.tail=0.5", "simulate.call_s.tail must be at least 1, got 0.5"),
        ("simulate.turns.median=1e19", "simulate.turns.median must be at most 1000000000.0, got 1e+19"),
    ):
        assert main(["simulate", *ONE_TURN, override]) == 2
        assert what in capsys.readouterr().err
    assert main(["simulate", "-m", "--cfg", "job", "seed=1,2"]) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("# ")] == [
        "# segue simulate seed=1", "# segue simulate seed=2",
    ]  # fmt: skip
