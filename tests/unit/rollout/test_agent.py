"""The agent: every way an episode ends, what is recorded then, attempts, groups, demonstrations.

Engines are scripted; the environment answers from a list and writes down what it was asked.
"""

import asyncio
from typing import Any

import numpy as np
import pytest
from model_cases import make_config, make_model
from rollout_cases import VERSION, FakeEnvironments, make_engine, make_reply, make_sampling, run

from segue.conf.schema import EnvConfig, RolloutConfig, Skill
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure
from segue.model.tokenizer.byte import ByteTokenizer
from segue.rollout.agent import Agent, TaskPrefix
from segue.rollout.chat import AssistantCall, AssistantTurn, CallResult, Chat
from segue.rollout.demonstration import demonstration_script
from segue.rollout.engine.base import EngineFailure
from segue.rollout.engine.scripted import ScriptedEngine
from segue.rollout.episode import TaskSpec
from segue.rollout.session import Session
from segue.rollout.trajectory import Outcome, PolicyVersion, Source, Trajectory, validate, validate_group

CHAT = Chat(ByteTokenizer())
TASK = TaskSpec(id="task", seed=11, options={"level": 2})
CONFIG = RolloutConfig(max_turns=3, max_turn_tokens=400, max_episode_tokens=2000, max_episode_s=5.0, max_attempts=3)


def say(*places: str, response: str = "") -> np.ndarray:
    """Tokens of a turn that calls `look` once for each place."""
    calls = tuple(AssistantCall(tool="look", arguments={"at": place}) for place in places)
    return CHAT.render_assistant(AssistantTurn(response=response, calls=calls))


class Turns:
    """A script that gives the turns in order, whatever the session; an exception is raised in its place."""

    def __init__(self, *turns: Any) -> None:
        self._turns = list(turns)

    async def __call__(self, session: Session) -> np.ndarray:
        turn = self._turns.pop(0)
        if isinstance(turn, BaseException):
            raise turn
        if isinstance(turn, float):
            await asyncio.sleep(turn)
            return say("late")
        return turn


class PolicyEngine(ScriptedEngine):
    """A scripted engine whose tokens pass for a policy's."""

    source = Source.policy


def play(script: Any, environments: FakeEnvironments, **changes: Any) -> Trajectory:
    """One episode of a policy."""
    config = RolloutConfig(**{**{name: getattr(CONFIG, name) for name in CONFIG.__slots__}, **changes})
    engine = PolicyEngine(script, version=VERSION)
    agent = Agent(engine=engine, chat=CHAT, environments=environments, config=config, sampling=sampling())
    trajectory = run(
        agent.run_episode(TASK, group_id="g", index=2, prefix=TaskPrefix(TASK.id, engine, CHAT, num_siblings=1))
    )
    validate(trajectory)
    return trajectory


def sampling():
    """Training at temperature 0.8, with the chat's stop tokens."""
    return make_sampling(stop_ids=CHAT.stop_ids)


def prompt() -> list[int]:
    """The stream before the first turn."""
    return CHAT.render_task("", FakeEnvironments.tools, "go").tolist()


def results(*texts: str) -> list[int]:
    """The stream between two turns."""
    return CHAT.render_tool_results(
        [CallResult(tool="look", index=index, text=text) for index, text in enumerate(texts, start=1)]
    ).tolist()


def test_an_episode_is_recorded_token_by_token():
    first, second = say("a", "b", response="hm"), say("c")
    environments = FakeEnvironments(
        [
            make_reply("one", reward_terms={"process": 0.25, "efficiency": -0.5}),
            make_reply("two", reward_terms={"process": 0.5}, info={"query_correct": True}),
            make_reply("three", reward_terms={"success": 1.0}, terminated=True, info={"is_success": True}),
        ]
    )
    trajectory = play(Turns(first, second), environments)
    expected = [*prompt(), *first, *results("one", "two"), *second]
    assert trajectory.token_ids.tolist() == expected
    written = np.zeros(len(expected), bool)
    start = len(prompt())
    again = len(expected) - len(second)
    written[start : start + len(first)] = True
    written[again:] = True
    assert trajectory.trainable.tolist() == written.tolist()
    assert trajectory.policy_step.tolist() == [VERSION.step if own else 0 for own in written]
    assert trajectory.policy_incarnation.tolist() == [VERSION.incarnation if own else 0 for own in written]
    assert [(turn.start, turn.end) for turn in trajectory.turns] == [
        (start, start + len(first)),
        (again, len(expected)),
    ]
    assert [turn.reward_terms for turn in trajectory.turns] == [{"process": 0.75, "efficiency": -0.5}, {"success": 1.0}]
    assert [turn.num_calls for turn in trajectory.turns] == [2, 1]
    assert [turn.temperature for turn in trajectory.turns] == [0.8, 0.8]
    assert trajectory.reward == 1.25
    assert trajectory.outcome is Outcome.success
    assert (trajectory.task_id, trajectory.group_id, trajectory.index, trajectory.attempt) == ("task", "g", 2, 0)
    assert trajectory.seed == 11
    assert trajectory.info == {"kind": "fake", "query_correct": True, "is_success": True}
    assert environments.events == [
        ("reset", "task/2/0", 11, {"level": 2}),
        ("step", "task/2/0", "look", {"at": "a"}),
        ("step", "task/2/0", "look", {"at": "b"}),
        ("step", "task/2/0", "look", {"at": "c"}),
        ("close", "task/2/0"),
    ]


def test_calls_after_the_one_that_ends_the_episode_are_not_run():
    environments = FakeEnvironments([make_reply(), make_reply(terminated=True, info={"is_success": False})])
    trajectory = play(Turns(say("a", "b", "c")), environments)
    assert trajectory.outcome is Outcome.failure
    assert trajectory.turns[0].num_calls == 2
    # nothing follows the last turn
    assert trajectory.turns[-1].end == trajectory.num_tokens


@pytest.mark.parametrize(
    ("flags", "outcome"),
    [
        ({"truncated": True}, Outcome.truncated_turns),
        ({"truncated": True, "info": {"is_success": True}}, Outcome.success),
        ({"terminated": True, "truncated": True, "info": {"is_success": False}}, Outcome.failure),
        ({"terminated": True}, Outcome.failure),
    ],
)
def test_the_environment_has_the_last_word(flags, outcome):
    assert play(Turns(say("a")), FakeEnvironments([make_reply(**flags)])).outcome is outcome


def test_a_turn_without_calls_is_the_last_and_no_success():
    trajectory = play(Turns(say(response="it is 7")), FakeEnvironments())
    assert trajectory.outcome is Outcome.failure
    assert trajectory.trainable.sum() == len(say(response="it is 7"))


def test_a_malformed_turn_ends_the_episode_and_trains():
    # a bare end of message closes nothing that the generation prefix opened
    broken = np.array([CHAT.tokenizer.special.end_of_msg], np.int32)
    environments = FakeEnvironments([make_reply(reward_terms={"process": 0.5})])
    trajectory = play(Turns(say("a"), broken), environments)
    assert trajectory.outcome is Outcome.malformed
    assert trajectory.trainable[-1] and trajectory.reward == 0.5
    assert trajectory.info["cause"]


def test_an_argument_that_did_not_decode_is_answered_without_the_environment():
    special, encode = CHAT.tokenizer.special, CHAT.tokenizer.encode
    turn = say("a").tolist()
    # rewrite type="string" as type="number": the text "a" is no number
    pattern, other = encode("string"), encode("number")
    at = next(i for i in range(len(turn)) if turn[i : i + len(pattern)] == pattern)
    turn[at : at + len(pattern)] = other
    environments = FakeEnvironments([make_reply(terminated=True)])
    trajectory = play(Turns(np.array(turn, np.int32), say("b")), environments)
    assert [event[0] for event in environments.events] == ["reset", "step", "close"]
    assert [turn.num_calls for turn in trajectory.turns] == [0, 1]
    between = trajectory.token_ids[trajectory.turns[0].end : trajectory.turns[1].start].tolist()
    assert "error: " in CHAT.tokenizer.decode([token for token in between if token != special.sep])


def test_turns_are_bounded():
    environments = FakeEnvironments([make_reply(), make_reply(), make_reply()])
    trajectory = play(Turns(say("a"), say("b"), say("c")), environments)
    assert trajectory.outcome is Outcome.truncated_turns
    assert len(trajectory.turns) == 3
    assert trajectory.turns[-1].end == trajectory.num_tokens


def test_tokens_of_a_turn_are_bounded():
    trajectory = play(Turns(say("a")), FakeEnvironments(), max_turn_tokens=5)
    assert trajectory.outcome is Outcome.truncated_length
    assert trajectory.token_ids.tolist() == [*prompt(), *say("a")[:5]]
    assert trajectory.trainable.sum() == 5


def test_tokens_of_an_episode_are_bounded():
    room = len(prompt()) + len(say("a"))
    environments = FakeEnvironments([make_reply("seen")] * 3)
    # the turn fits but its result would fill the budget
    full = play(Turns(say("a")), environments, max_episode_tokens=room + len(results("seen")))
    assert full.outcome is Outcome.truncated_length and full.num_tokens == room
    # the second turn is cut at the budget
    cut = play(Turns(say("a"), say("b")), environments, max_episode_tokens=room + len(results("seen")) + 4)
    assert cut.outcome is Outcome.truncated_length and cut.num_tokens == room + len(results("seen")) + 4
    assert cut.turns[1].end - cut.turns[1].start == 4
    # the prompt alone fills it
    none = play(Turns(), environments, max_episode_tokens=len(prompt()))
    assert none.outcome is Outcome.truncated_length and none.turns == ()


def test_seconds_are_bounded():
    environments = FakeEnvironments([make_reply(reward_terms={"process": 1.0})])
    trajectory = play(Turns(say("a"), 30.0), environments, max_episode_s=0.05)
    assert trajectory.outcome is Outcome.truncated_time
    # the turn that was being sampled is not recorded, what was earned before is
    assert len(trajectory.turns) == 1 and trajectory.reward == 1.0
    assert environments.events[-1] == ("close", "task/2/0")


def test_an_environment_failure_is_the_episodes_own():
    environments = FakeEnvironments([make_reply(reward_terms={"process": 0.5}), EnvironmentFailure("it broke")])
    trajectory = play(Turns(say("a", "b")), environments)
    assert trajectory.outcome is Outcome.environment_error
    assert trajectory.attempt == 0 and trajectory.reward == 0.5 and trajectory.trainable.any()
    assert trajectory.info["cause"] == "it broke"


def test_an_infrastructure_failure_is_played_again():
    done = make_reply(terminated=True, info={"is_success": True})
    environments = FakeEnvironments([done], resets=[None, InfrastructureFailure("worker gone")])
    script = Turns(EngineFailure("no device"), say("a"))
    trajectory = play(script, environments)
    assert trajectory.outcome is Outcome.success
    assert trajectory.attempt == 2
    assert [event[:2] for event in environments.events] == [
        ("reset", "task/2/0"),
        ("close", "task/2/0"),
        ("reset", "task/2/1"),
        ("close", "task/2/1"),
        ("reset", "task/2/2"),
        ("step", "task/2/2"),
        ("close", "task/2/2"),
    ]


def test_an_infrastructure_failure_that_stays_is_masked():
    environments = FakeEnvironments([make_reply(reward_terms={"process": 9.0}), InfrastructureFailure("worker gone")])
    trajectory = play(Turns(*[say("a", "b")] * 3), environments)
    assert trajectory.outcome is Outcome.infrastructure_error
    assert trajectory.attempt == 2
    assert not trajectory.trainable.any() and trajectory.reward == 0.0
    assert trajectory.token_ids.tolist() == [*prompt(), *say("a", "b")]


def test_an_episode_that_never_began_holds_one_token():
    environments = FakeEnvironments(resets=[InfrastructureFailure("no worker")] * 3)
    trajectory = play(Turns(), environments)
    assert trajectory.outcome is Outcome.infrastructure_error
    assert trajectory.token_ids.tolist() == [0]
    failed = play(Turns(), FakeEnvironments(resets=[EnvironmentFailure("bad seed")]))
    assert failed.outcome is Outcome.environment_error and failed.token_ids.tolist() == [0]


@pytest.mark.parametrize("error", [EnvironmentSetupError("not found"), TimeoutError("ours"), ZeroDivisionError()])
def test_our_own_errors_rise(error):
    environments = FakeEnvironments(resets=[error])
    with pytest.raises(type(error)):
        play(Turns(), environments)
    assert environments.events[-1] == ("close", "task/2/0")


def make_agent(engine: Any, environments: FakeEnvironments) -> Agent:
    """An agent with this file's bounds."""
    return Agent(engine=engine, chat=CHAT, environments=environments, config=CONFIG, sampling=sampling())


def test_a_group_shares_its_prompt_and_keeps_its_order():
    async def script(session: Session) -> np.ndarray:
        # later siblings are faster
        for _ in range(10 - 3 * (session.id.index or 0)):
            await asyncio.sleep(0)
        return say(str(session.id.index))

    opened = []

    class Recording(PolicyEngine):
        def open(self, session_id, *, fork_of=None):
            opened.append((session_id.index, None if fork_of is None else fork_of.id.index))
            return super().open(session_id, fork_of=fork_of)

    environments = FakeEnvironments([make_reply(terminated=True, info={"is_success": True})])
    engine = Recording(script, version=VERSION)
    group = run(make_agent(engine, environments).run_group(TASK, group_id="g", size=3, made_by="actor"))
    validate_group(group)
    assert [trajectory.index for trajectory in group.trajectories] == [0, 1, 2]
    for index, trajectory in enumerate(group.trajectories):
        assert trajectory.token_ids.tolist() == [*prompt(), *say(str(index))]
    # the prefix first, without a parent; then the siblings, from it
    assert opened == [(None, None), (0, None), (1, None), (2, None)]
    assert (group.first_version, group.last_version, group.made_by) == (VERSION, VERSION, "actor")


def test_an_only_child_needs_no_prefix():
    opened = []

    class Recording(PolicyEngine):
        def open(self, session_id, *, fork_of=None):
            opened.append((session_id.index, fork_of))
            return super().open(session_id, fork_of=fork_of)

    engine = Recording(Turns(say("a")), version=VERSION)
    environments = FakeEnvironments([make_reply(terminated=True)])
    group = run(make_agent(engine, environments).run_group(TASK, group_id="g", size=1, made_by="actor"))
    assert group.trajectories[0].token_ids.tolist() == [*prompt(), *say("a")]
    assert opened == [(0, None)]


def test_a_sibling_that_is_told_something_else_gets_its_own_prompt():
    class Moody(FakeEnvironments):
        async def reset(self, episode_id, seed, options):
            self._observation = "stop" if episode_id == "task/1/0" else "go"
            return await super().reset(episode_id, seed, options)

    environments = Moody([make_reply(terminated=True)])
    engine = PolicyEngine(Turns(say("a"), say("a"), say("a")), version=VERSION)
    group = run(make_agent(engine, environments).run_group(TASK, group_id="g", size=3, made_by="actor"))
    streams = [trajectory.token_ids.tolist() for trajectory in group.trajectories]
    assert streams[0] == streams[2] == [*prompt(), *say("a")]
    assert streams[1] == [*CHAT.render_task("", FakeEnvironments.tools, "stop").tolist(), *say("a")]


def test_versions_of_a_group_span_a_swap():
    engine = PolicyEngine(Turns(say("a"), say("b")), version=VERSION)

    class Swapping(FakeEnvironments):
        async def step(self, episode_id, call):
            engine.version = PolicyVersion(1, VERSION.step + 1)
            return await super().step(episode_id, call)

    environments = Swapping([make_reply(), make_reply(terminated=True)])
    group = run(make_agent(engine, environments).run_group(TASK, group_id="g", size=1, made_by="actor"))
    validate_group(group)
    assert (group.first_version.step, group.last_version.step) == (VERSION.step, VERSION.step + 1)
    (trajectory,) = group.trajectories
    steps = [trajectory.policy_step[turn.start] for turn in trajectory.turns]
    assert steps == [VERSION.step, VERSION.step + 1]


def test_a_broken_sibling_cancels_the_others_and_rises():
    async def script(session: Session) -> np.ndarray:
        if session.id.index == 1:
            raise ZeroDivisionError("a bug of ours")
        await asyncio.sleep(30)
        return say("a")

    environments = FakeEnvironments([make_reply()])
    engine = PolicyEngine(script, version=VERSION)
    with pytest.raises(ZeroDivisionError, match="a bug of ours"):
        run(make_agent(engine, environments).run_group(TASK, group_id="g", size=3, made_by="actor"))
    assert sorted(event[1] for event in environments.events if event[0] == "close") == [
        "task/0/0",
        "task/1/0",
        "task/2/0",
    ]


def test_demonstrations_are_written_by_the_environment():
    environments = FakeEnvironments([make_reply(), make_reply(terminated=True, info={"is_success": True})])
    engine = ScriptedEngine(demonstration_script(environments, CHAT, Skill.fallible), version=PolicyVersion(0, 0))
    group = run(make_agent(engine, environments).run_group(TASK, group_id="g", size=2, made_by="actor"))
    validate_group(group)
    for trajectory in group.trajectories:
        assert trajectory.source is Source.demonstrator
        assert trajectory.outcome is Outcome.success
        turns = [trajectory.token_ids[turn.start : turn.end].tolist() for turn in trajectory.turns]
        assert turns == [say("0", response="fallible").tolist(), say("1", response="fallible").tolist()]
        assert trajectory.trainable.sum() == sum(map(len, turns))
        assert not trajectory.behaviour_logprob.any()


def test_the_sql_expert_solves_its_tasks():
    async def main():
        environments = EnvClient(EnvConfig(), 1)
        await environments.start()
        engine = ScriptedEngine(demonstration_script(environments, CHAT, Skill.expert), version=PolicyVersion(0, 0))
        agent = Agent(
            engine=engine,
            chat=CHAT,
            environments=environments,
            config=RolloutConfig(max_turn_tokens=2000, max_episode_tokens=10000),
            sampling=sampling(),
        )
        tasks = [TaskSpec(id=f"sql-{seed}", seed=seed) for seed in range(8)]
        try:
            return await asyncio.gather(
                *(agent.run_group(task, group_id=task.id, size=1, made_by="actor") for task in tasks)
            )
        finally:
            await environments.stop()

    for group in run(main()):
        validate_group(group)
        assert group.trajectories[0].outcome is Outcome.success


def test_a_native_engine_plays_a_group():
    model = make_model(make_config(vocab_size=CHAT.tokenizer.vocab_size))
    engine = make_engine(model, num_pages=400, prefill_chunk_tokens=100)
    config = RolloutConfig(max_turn_tokens=6, max_episode_tokens=1000)
    agent = Agent(engine=engine, chat=CHAT, environments=FakeEnvironments(), config=config, sampling=sampling())
    group = run(agent.run_group(TASK, group_id="g", size=4, made_by="actor"))
    validate_group(group)
    for trajectory in group.trajectories:
        # random weights write no turn: cut after six tokens, or ended too early
        assert trajectory.outcome in (Outcome.truncated_length, Outcome.malformed)
        assert trajectory.trainable.sum() == 6 or trajectory.token_ids[-1] in CHAT.stop_ids
        assert (trajectory.behaviour_logprob[trajectory.trainable] < 0).all()
        assert trajectory.expert_ids is not None and trajectory.expert_ids.shape == (trajectory.num_tokens, 4, 2)
    assert engine.stats.num_forked == 4
    assert engine.stats.prefill.num_tokens == len(prompt()) - 1
