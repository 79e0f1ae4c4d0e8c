"""Terms beside the environment's: what they are given, where they run, what their failures come to.

Values that come from a model are in `test_judge.py`.
"""

import asyncio
import math
import sys
import threading
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rollout_cases import VERSION, FakeEnvironments, make_reply, make_sampling, run

from segue.conf.load import load_config
from segue.conf.reward_term import RewardTermSpec
from segue.conf.schema import RolloutConfig, SegueConfig
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure
from segue.learner.advantage import returns_to_go
from segue.model.tokenizer.byte import ByteTokenizer
from segue.rollout.agent import Agent
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.engine.scripted import ScriptedEngine
from segue.rollout.episode import TaskSpec
from segue.rollout.rewards.build import build_panel, check_terms
from segue.rollout.rewards.panel import NamedTerm, RewardPanel
from segue.rollout.rewards.term import FinishedEpisode
from segue.rollout.rewards.user_term import UserTerm
from segue.rollout.session import Session
from segue.rollout.stored_group import TrajectorySummary
from segue.rollout.trajectory import Outcome, Source, Trajectory, validate
from segue.rollout.xtml import MalformedTurn

CHAT = Chat(ByteTokenizer())
TASK = TaskSpec(id="task", seed=11)


def turn(*places: str, response: str = "") -> AssistantTurn:
    """A turn that calls `look` once for each place."""
    calls = tuple(AssistantCall(tool="look", arguments={"at": place}) for place in places)
    return AssistantTurn(response=response, calls=calls)


class PolicyEngine(ScriptedEngine):
    """A scripted engine whose tokens pass for a policy's, and which says how many sessions are open."""

    source = Source.policy

    def __init__(self, turns: list[Any]) -> None:
        super().__init__(self._say, version=VERSION)
        self._turns = list(turns)
        self.num_open = 0

    async def _say(self, session: Session) -> np.ndarray:
        said = self._turns.pop(0)
        if isinstance(said, Exception):
            raise said
        return CHAT.render_assistant(said) if isinstance(said, AssistantTurn) else said

    def open(self, session_id, *, fork_of=None):
        self.num_open += 1
        return super().open(session_id, fork_of=fork_of)

    def close(self, session: Session) -> None:
        self.num_open -= not session.is_closed
        super().close(session)


def play(engine: PolicyEngine, environments: FakeEnvironments, panel: RewardPanel, **bounds: Any) -> Trajectory:
    """One episode of an only child."""
    config = RolloutConfig(**({"max_turn_tokens": 400, "max_episode_tokens": 2000} | bounds))
    sampling = make_sampling(stop_ids=CHAT.stop_ids)
    agent = Agent(engine=engine, chat=CHAT, environments=environments, config=config, sampling=sampling, panel=panel)
    (trajectory,) = run(agent.run_group(TASK, group_id="g", size=1, made_by="actor")).trajectories
    validate(trajectory)
    return trajectory


def panel_of(timeout_s: float = 5.0, attempts: int = 1, **terms: Any) -> RewardPanel:
    """A panel of user's terms."""
    named = [
        NamedTerm(name=name, term=UserTerm(name, term), timeout_s=timeout_s, attempts=attempts)
        for name, term in terms.items()
    ]
    return RewardPanel(named)


SOLVED = make_reply(reward_terms={"success": 1.0}, terminated=True, info={"is_success": True})


def test_a_term_is_given_the_episode_as_text_read_from_its_tokens() -> None:
    given: list[FinishedEpisode] = []

    def note(episode: FinishedEpisode) -> float:
        given.append(episode)
        return 0.25

    environments = FakeEnvironments([make_reply("one", reward_terms={"process": 0.5}), make_reply("two"), SOLVED])
    first, last = turn("a", "b", response="<|sep|> hm"), turn("c")
    trajectory = play(PolicyEngine([first, last]), environments, panel_of(note=note))
    (episode,) = given
    assert (episode.system, episode.user, episode.outcome) == ("", "go", Outcome.success)
    assert [spoken.said for spoken in episode.turns] == [first, last]
    assert [spoken.results for spoken in episode.turns] == [("one", "two"), ()]
    assert [spoken.reward_terms for spoken in episode.turns] == [{"process": 0.5}, {"success": 1.0}]
    assert episode.turns[1].text.endswith("<|close|>message<|sep|><|end_of_msg|>")
    assert (episode.task_id, episode.index, episode.attempt, episode.seed) == ("task", 0, 0, 11)
    assert episode.info == {"kind": "fake", "is_success": True}
    assert episode.num_tokens == trajectory.num_tokens
    assert episode.num_sampled_tokens == trajectory.num_trainable
    # by hand: 0.5 of the first turn, 1 of the second, 0.25 of the outcome
    assert trajectory.outcome_terms == {"note": 0.25}
    assert trajectory.reward == 1.75


def test_what_a_term_does_to_the_episode_is_in_no_record() -> None:
    def spoils(episode: FinishedEpisode) -> float:
        episode.info["rows"].append({"no JSON"})
        episode.turns[0].reward_terms["success"] = float("nan")
        return 0.0

    solved = make_reply(reward_terms={"success": 1.0}, terminated=True, info={"is_success": True, "rows": [1]})
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([solved]), panel_of(spoils=spoils))
    assert trajectory.info["rows"] == [1]
    assert trajectory.turns[0].reward_terms == {"success": 1.0}


def test_what_a_term_does_to_the_episode_no_other_term_and_no_other_try_sees(monkeypatch: Any) -> None:
    monkeypatch.setattr("segue.rollout.rewards.panel._PAUSE_S", 0.0)
    seen: list[list[int]] = []

    def spoiling() -> Callable[[FinishedEpisode], float]:
        values = iter([math.nan, 0.0])

        def spoils(episode: FinishedEpisode) -> float:
            seen.append(list(episode.info["rows"]))
            episode.info["rows"].append(2)
            return next(values)

        return spoils

    solved = make_reply(reward_terms={"success": 1.0}, terminated=True, info={"is_success": True, "rows": [1]})
    panel = panel_of(attempts=2, first=spoiling(), second=spoiling())
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([solved]), panel)
    assert trajectory.outcome_terms == {"first": 0.0, "second": 0.0}
    assert seen == [[1]] * 4


def test_terms_run_side_by_side_the_async_ones_in_the_loop_and_the_others_in_threads() -> None:
    here, meeting = threading.get_ident(), threading.Barrier(2, timeout=10)
    threads: dict[str, int] = {}

    class Object:
        async def __call__(self, episode: FinishedEpisode) -> float:
            threads["async"] = threading.get_ident()
            await asyncio.sleep(0)
            return -0.5

    def met(name: str, episode: FinishedEpisode) -> bool:
        # both are inside, or neither comes back
        meeting.wait()
        threads[name] = threading.get_ident()
        return True

    terms = {
        "object": Object(),
        "one": partial(met, "one"),
        "two": partial(met, "two"),
        "numpy": lambda _: np.float32(2),
    }
    panel = panel_of(**terms)
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel)
    assert trajectory.outcome_terms == {"object": -0.5, "one": 1.0, "two": 1.0, "numpy": 2.0}
    assert list(trajectory.outcome_terms) == list(terms)
    assert threads["async"] == here and len({here, threads["one"], threads["two"]}) == 3
    assert (panel.counters.computed, panel.counters.failed, panel.counters.expired) == (4, 0, 0)


def test_a_term_may_rate_turn_by_turn_and_turn_returns_credit_it_there() -> None:
    panel = panel_of(steps=lambda episode: [0.5 * len(spoken.results) for spoken in episode.turns], all=lambda _: 0.25)
    environments = FakeEnvironments([make_reply(reward_terms={"steps": 1.0}), make_reply(), SOLVED])
    trajectory = play(PolicyEngine([turn("a", "b"), turn("c")]), environments, panel)
    # the environment's term of that name is of the same turn, and added to
    assert [t.reward_terms for t in trajectory.turns] == [{"steps": 2.0}, {"success": 1.0, "steps": 0.0}]
    assert trajectory.outcome_terms == {"all": 0.25} and trajectory.reward == 3.25
    summary = TrajectorySummary.of(trajectory)
    # by hand, discount 1/2: the last turn earned 1 and the outcome's 0.25, the first 2 + 1.25 / 2
    assert returns_to_go(summary.turn_rewards, summary.outcome_reward, 0.5).tolist() == [2.625, 1.25]
    scalar = panel_of(brief=lambda episode: np.where(len(episode.turns) > 1, 0.5, 0.0))
    trajectory = play(PolicyEngine([turn("a"), turn("b")]), FakeEnvironments([make_reply(), SOLVED]), scalar)
    assert trajectory.outcome_terms["brief"] == 0.5
    arrays = panel_of(steps=lambda episode: np.arange(len(episode.turns), dtype=np.float32))
    trajectory = play(PolicyEngine([turn("a"), turn("b")]), FakeEnvironments([make_reply(), SOLVED]), arrays)
    assert [t.reward_terms["steps"] for t in trajectory.turns] == [0.0, 1.0]


@pytest.mark.parametrize("value", [[], [1.0, 2.0], (1.0, float("nan")), ["1"], [None], np.zeros((1, 1))])
def test_values_of_turns_are_one_number_for_each(value: Any) -> None:
    panel = panel_of(steps=lambda _: value)
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel, max_attempts=1)
    assert trajectory.outcome is Outcome.infrastructure_error
    assert "must give a number in [-1e+06, 1e+06], or one for each of 1 turns" in trajectory.info["cause"]


def test_an_episode_is_rated_behind_the_end_of_its_session() -> None:
    engine = PolicyEngine([turn("a")])
    environments = FakeEnvironments([SOLVED])
    seen = []

    async def look(_: FinishedEpisode) -> float:
        seen.append((engine.num_open, environments.events[-1]))
        return 0.0

    play(engine, environments, panel_of(look=look))
    assert seen == [(0, ("close", "task/0/0"))]


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        1.1e6,
        -1.1e6,
        10**400,
        "0.5",
        None,
        [1.0, 2.0],
        np.array(np.nan),
        ZeroDivisionError(),
        StopIteration(),
    ],
)
def test_a_term_that_fails_is_infrastructure_and_its_episode_is_played_again(value: Any) -> None:
    values = [value, 0.5]

    def term(_: FinishedEpisode) -> Any:
        given = values.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    panel = panel_of(shaky=term)
    trajectory = play(PolicyEngine([turn("a"), turn("b")]), FakeEnvironments([SOLVED]), panel)
    assert (trajectory.attempt, trajectory.outcome, trajectory.reward) == (1, Outcome.success, 1.5)
    assert (panel.counters.computed, panel.counters.failed, panel.counters.expired) == (1, 1, 0)


def test_a_term_that_fails_is_asked_again_alone_and_its_episode_is_not_played_again(monkeypatch: Any) -> None:
    monkeypatch.setattr("segue.rollout.rewards.panel._PAUSE_S", 0.0)
    asked = {"once": 0, "late": 0, "broken": 0}

    def once(_: FinishedEpisode) -> float:
        asked["once"] += 1
        return 0.5

    async def late(_: FinishedEpisode) -> float:
        asked["late"] += 1
        await asyncio.sleep(60.0 if asked["late"] == 1 else 0.0)
        return 0.25

    def broken(_: FinishedEpisode) -> float:
        asked["broken"] += 1
        if asked["broken"] < 3:
            raise ConnectionError("away for a moment")
        return 0.125

    panel = panel_of(0.3, 3, once=once, late=late, broken=broken)
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel)
    assert (trajectory.attempt, trajectory.outcome, trajectory.reward) == (0, Outcome.success, 1.875)
    assert asked == {"once": 1, "late": 2, "broken": 3}
    assert (panel.counters.computed, panel.counters.failed, panel.counters.expired) == (3, 2, 1)
    assert sorted(panel.first_failures) == ["broken", "late"]
    assert panel.first_failures["broken"].startswith("reward term broken: ConnectionError: away for a moment")
    # beyond the last try the episode is played again, and its terms asked as often again
    asked["broken"] = -3
    trajectory = play(PolicyEngine([turn("a")] * 2), FakeEnvironments([SOLVED]), panel)
    assert (trajectory.attempt, asked["broken"]) == (1, 3)


def test_a_term_that_goes_on_failing_leaves_nothing_to_train_and_nothing_earned() -> None:
    def broken(_: FinishedEpisode) -> float:
        raise ConnectionError("no judge")

    panel = panel_of(fine=lambda _: 1.0, broken=broken)
    trajectory = play(PolicyEngine([turn("a")] * 3), FakeEnvironments([SOLVED]), panel, max_attempts=3)
    assert (trajectory.attempt, trajectory.outcome) == (2, Outcome.infrastructure_error)
    assert trajectory.info["cause"].startswith("reward term broken: ConnectionError: no judge")
    assert not trajectory.trainable.any() and trajectory.reward == 0.0 and trajectory.outcome_terms == {}
    assert panel.counters.failed == 3
    assert panel.first_failures == {"broken": trajectory.info["cause"]}


def test_a_term_that_is_late_is_infrastructure_whether_it_can_be_called_off_or_not() -> None:
    release, cancelled = threading.Event(), []

    async def waits(_: FinishedEpisode) -> float:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise
        return 0.0

    def hangs(_: FinishedEpisode) -> float:
        release.wait(10)
        return 0.0

    try:
        for name, term in {"waits": waits, "hangs": hangs}.items():
            panel = panel_of(0.05, **{name: term})
            trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel, max_attempts=1)
            assert trajectory.outcome is Outcome.infrastructure_error
            assert trajectory.info["cause"] == f"reward term {name} gave no value within 0.05 s"
            assert (panel.counters.computed, panel.counters.failed, panel.counters.expired) == (0, 0, 1)
    finally:
        release.set()
    assert cancelled == [True]


def test_a_term_that_cancels_itself_ends_nothing_else() -> None:
    async def cancels(_: FinishedEpisode) -> float:
        raise asyncio.CancelledError

    def also(_: FinishedEpisode) -> float:
        raise asyncio.CancelledError

    for term in (cancels, also):
        trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel_of(it=term), max_attempts=1)
        assert trajectory.outcome is Outcome.infrastructure_error
        assert trajectory.info["cause"] == "reward term it cancelled itself"


def test_a_failure_calls_the_other_terms_off() -> None:
    ended: list[str] = []

    async def waits(_: FinishedEpisode) -> float:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("waits")
        return 0.0

    async def breaks(_: FinishedEpisode) -> float:
        raise KeyError("x")

    panel = panel_of(waits=waits, breaks=breaks)
    trajectory = play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel, max_attempts=1)
    assert trajectory.outcome is Outcome.infrastructure_error and ended == ["waits"]


def test_all_terms_that_failed_are_told_and_a_fault_of_ours_is_not_hidden_behind_them() -> None:
    # each of the second kind has begun before one of the first kind calls it off
    begun = threading.Event()

    async def breaks(_: FinishedEpisode) -> float:
        await asyncio.to_thread(begun.wait, 20.0)
        raise KeyError("x")

    def breaks_called_off(error: Exception) -> Callable[[FinishedEpisode], Awaitable[float]]:
        begun.clear()

        async def term(_: FinishedEpisode) -> float:
            begun.set()
            try:
                await asyncio.sleep(60.0)
            except asyncio.CancelledError:
                raise error from None
            return 0.0

        return term

    def played(panel: RewardPanel) -> Trajectory:
        return play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel, max_attempts=1)

    panel = panel_of(timeout_s=30.0, one=breaks, other=breaks_called_off(KeyError("y")))
    first, second = played(panel).info["cause"].split("; ")
    assert first.startswith("reward term one: KeyError: 'x'") and second.startswith("reward term other: KeyError: 'y'")

    named = [
        NamedTerm(name=name, term=term, timeout_s=30.0, attempts=1)
        for name, term in {"one": UserTerm("one", breaks), "ours": breaks_called_off(AssertionError("ours"))}.items()
    ]
    with pytest.raises(AssertionError, match="ours"):
        played(RewardPanel(named))


def test_what_cannot_be_read_of_a_record_is_not_the_policys_fault(monkeypatch: Any) -> None:
    def read(*_: Any) -> None:
        raise MalformedTurn("a record that we wrote")

    monkeypatch.setattr("segue.rollout.agent.read_episode", read)
    with pytest.raises(MalformedTurn, match="that we wrote"):
        play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel_of(one=lambda _: 1.0))


def test_every_end_but_infrastructures_is_rated() -> None:
    broken = np.array([CHAT.tokenizer.special.end_of_msg], np.int32)
    ends: list[tuple[list[Any], list[Any], dict[str, int], Outcome, int]] = [
        ([turn(response="7")], [], {}, Outcome.failure, 1),
        ([turn("a")], [make_reply()], {"max_turns": 1}, Outcome.truncated_turns, 1),
        ([turn("a")], [], {"max_turn_tokens": 5}, Outcome.truncated_length, 1),
        ([turn("a"), broken], [make_reply()], {}, Outcome.malformed, 2),
        ([turn("a")], [EnvironmentFailure("it broke")], {}, Outcome.environment_error, 1),
    ]
    for turns, replies, bounds, outcome, num_turns in ends:
        rated: list[FinishedEpisode] = []
        panel = panel_of(count=lambda episode, rated=rated: rated.append(episode) or len(episode.turns))
        trajectory = play(PolicyEngine(turns), FakeEnvironments(replies), panel, **bounds)
        assert [episode.outcome for episode in rated] == [outcome]
        assert trajectory.outcome is outcome and trajectory.outcome_terms == {"count": num_turns}
    never = panel_of(count=lambda _: 1.0)
    lost = play(PolicyEngine([]), FakeEnvironments(resets=[InfrastructureFailure("no worker")] * 3), never)
    assert lost.outcome_terms == {} and never.counters.computed == 0
    unbegun = play(
        PolicyEngine([]), FakeEnvironments(resets=[EnvironmentFailure("bad seed")]), panel_of(one=lambda _: 1)
    )
    assert unbegun.outcome_terms == {"one": 1.0} and unbegun.turns == ()


def test_a_cut_or_malformed_turn_has_text_and_is_not_read() -> None:
    given: list[FinishedEpisode] = []
    panel = panel_of(note=lambda episode: given.append(episode) or 0)
    play(PolicyEngine([turn(response="abcdef")]), FakeEnvironments(), panel, max_turn_tokens=3)
    assert [(spoken.text, spoken.said) for spoken in given[0].turns] == [("abc", None)]


USERS = """
import functools

def brevity(episode, *, max_tokens):
    return 1.0 if episode.num_sampled_tokens <= max_tokens else 0.0

class Counter:
    def __init__(self, *, start=0):
        self.count = start
    def __call__(self, episode):
        self.count += 1
        return self.count

class Fussy:
    def __init__(self):
        raise RuntimeError("no key")

number = 3
"""


def config_of(folder: Path, term: str, **kwargs: Any) -> SegueConfig:
    """With one term of the module that the folder holds."""
    config = SegueConfig()
    config.env.import_folder = str(folder)
    config.rollout.reward_terms = {"mine": {"term": term, "kwargs": kwargs}}
    return config


def build(config: SegueConfig) -> RewardPanel | None:
    return build_panel(config, PolicyEngine([]), CHAT, torch.device("cpu"))


def test_functions_and_classes_of_the_launch_folder_are_terms(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "some_terms.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    panel = build(config_of(tmp_path, "some_terms:brevity", max_tokens=9))
    assert panel is not None
    values = [play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel).outcome_terms for _ in range(2)]
    assert values == [{"mine": 0.0}] * 2
    panel = build(config_of(tmp_path, "some_terms:Counter", start=4))
    assert panel is not None
    # built once: the second episode finds what the first left
    values = [play(PolicyEngine([turn("a")]), FakeEnvironments([SOLVED]), panel).outcome_terms for _ in range(2)]
    assert values == [{"mine": 5.0}, {"mine": 6.0}]
    assert build(SegueConfig()) is None


@pytest.mark.parametrize(
    ("term", "kwargs", "message"),
    [
        ("other_terms:x", {}, r"term=other_terms:x names module other_terms, which is neither installed nor in /"),
        ("more_terms:nothing", {}, "names nothing, which module more_terms has not"),
        ("more_terms:number", {}, "must name a function or a class, got 3"),
        ("more_terms:brevity", {}, r"must take \(the episode\), as rollout.reward_terms.mine.kwargs says: missing"),
        ("builtins:max", {}, r"must take \(the episode\), as .* says: no signature found for builtin"),
        ("more_terms:brevity", {"max": 3}, r"must take \(the episode, max\), as"),
    ],
)
def test_a_term_that_cannot_be_is_known_before_anything_starts(
    tmp_path: Path, monkeypatch: Any, term: str, kwargs: dict[str, Any], message: str
) -> None:
    (tmp_path / "more_terms.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(EnvironmentSetupError, match=message):
        check_terms(config_of(tmp_path, term, **kwargs), CHAT)


def test_a_class_that_cannot_be_built_says_so(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "fussy_terms.py").write_text(USERS)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(
        EnvironmentSetupError, match=r"mine.term=fussy_terms:Fussy cannot be built: RuntimeError: no key"
    ):
        build(config_of(tmp_path, "fussy_terms:Fussy"))


def test_the_documented_term_is_found_and_rates(tmp_path: Path, monkeypatch: Any) -> None:
    # text, a block, text, a block, …: the term and then the command
    _, code, _, command, *_ = (Path(__file__).parents[3] / "docs" / "rewards.md").read_text().split("```")
    (tmp_path / "my_terms.py").write_text(code.removeprefix("python\n"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    config = load_config(command.split()[2:], launch_folder=tmp_path)
    panel = build(config)
    assert panel is not None
    # 40 tokens at most: a turn of 30 characters and its end is longer
    values = [
        play(PolicyEngine([turn(response=response)]), FakeEnvironments(), panel).outcome_terms
        for response in ("x", "x" * 30)
    ]
    assert values == [{"brevity": 0.1}, {"brevity": 0.0}]


def test_a_spec_has_the_schemas_defaults() -> None:
    spec = RewardTermSpec(name="mine", term="a:b")
    assert (spec.kwargs, spec.timeout_s) == ({}, 60.0)
