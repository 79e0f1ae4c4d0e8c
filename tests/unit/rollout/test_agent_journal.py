"""Episodes that go on from their journals: the same trajectories as uninterrupted ones, whatever the cut.

A kill is an error of ours that rises out of the environment: what stands in the folder then is all that the next player
has. The files themselves are in test_journal.py, environments in other processes in tests/unit/envs/test_client.py.
"""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_cases import make_config, make_model
from rollout_cases import VERSION, FakeEnvironments, make_engine, make_reply, make_sampling, run

from segue.conf.schema import EnvConfig, RolloutConfig
from segue.envs.client import EnvClient
from segue.envs.clock import present_clock
from segue.envs.errors import InfrastructureFailure, RestoreFailure
from segue.envs.tool import ToolCall
from segue.model.tokenizer.byte import ByteTokenizer
from segue.rollout.agent import Agent
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.engine.base import EngineFailure
from segue.rollout.engine.scripted import ScriptedEngine
from segue.rollout.episode import TaskSpec
from segue.rollout.journal import Journal
from segue.rollout.session import Session
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, validate_group

CHAT = Chat(ByteTokenizer())
TASK = TaskSpec(id="train-0000004", seed=11)
LATER = PolicyVersion(VERSION.incarnation + 1, VERSION.step - 2)


class Killed(Exception):
    """Stands for a process that is gone."""


class KilledEnvironments:
    """Other environments, whose player is killed under its call number `at`."""

    def __init__(self, environments: Any, at: int) -> None:
        self._environments = environments
        self._calls_left = at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._environments, name)

    async def step(self, episode_id: str, call: ToolCall) -> Any:
        self._calls_left -= 1
        if self._calls_left < 0:
            raise Killed
        return await self._environments.step(episode_id, call)


class PolicyEngine(ScriptedEngine):
    """A scripted engine whose tokens pass for a policy's; writes down what it opens."""

    source = Source.policy

    def __init__(self, script: Any, *, version: PolicyVersion = VERSION) -> None:
        super().__init__(script, version=version)
        self.opened: list[Any] = []

    def open(self, session_id: Any, *, fork_of: Session | None = None) -> Session:
        self.opened.append(session_id)
        return super().open(session_id, fork_of=fork_of)


def say(*calls: ToolCall) -> np.ndarray:
    """Tokens of a turn of these calls."""
    calls_said = tuple(AssistantCall(tool=call.name, arguments=call.arguments) for call in calls)
    return CHAT.render_assistant(AssistantTurn(response="", calls=calls_said))


def look(*places: str) -> np.ndarray:
    """Tokens of a turn that calls `look` once for each place."""
    return say(*(ToolCall(name="look", arguments={"at": place}) for place in places))


def add(*amounts: int) -> np.ndarray:
    """Tokens of a turn that adds to the counter of the faulty environments and draws."""
    return say(*(ToolCall(name="add", arguments={"amount": amount}) for amount in amounts), ToolCall(name="draw"))


class Turns:
    """A script that knows its turn from the session's tokens alone."""

    def __init__(self, *turns: np.ndarray) -> None:
        self._turns = turns

    async def __call__(self, session: Session) -> np.ndarray:
        # a declaration and the user's message end before the first turn
        num_left = int((session.token_ids == CHAT.tokenizer.special.end_of_msg).sum()) - 2
        for turn in self._turns:
            if not num_left:
                return turn
            # a turn ends its own message, and those of its results follow
            num_left -= 1 + len(CHAT.parse_assistant(turn).calls)
        raise AssertionError(f"no turn of the script begins here: {num_left}")


def make_agent(engine: Any, environments: Any, *, chat: Chat = CHAT, **changes: Any) -> Agent:
    """An agent that writes a part at the end of every turn."""
    values = {"max_turns": 9, "max_turn_tokens": 400, "max_episode_tokens": 20000, "journal_tokens": 1}
    return Agent(
        engine=engine,
        chat=chat,
        environments=environments,
        config=RolloutConfig(**(values | changes)),
        sampling=make_sampling(stop_ids=chat.stop_ids),
    )


async def play(agent: Agent, folder: Path | None, *, incarnation: int = 0, size: int = 1) -> Group:
    """A valid group of the task, as a run of this incarnation draws it."""
    group_id = f"{TASK.id}.{incarnation}"
    group = await agent.run_group(TASK, group_id=group_id, size=size, made_by="actor", journals=folder)
    validate_group(group)
    return group


async def play_killed(agent: Agent, folder: Path, *, size: int = 1) -> None:
    """Play until the player is killed."""
    with pytest.raises(Killed):
        await play(agent, folder, size=size)


def assert_same(left: Trajectory, right: Trajectory, *, but: tuple[str, ...] = ("group_id",)) -> None:
    for member in fields(Trajectory):
        a, b = getattr(left, member.name), getattr(right, member.name)
        if member.name in but:
            continue
        if isinstance(a, np.ndarray):
            assert a.dtype == b.dtype and np.array_equal(a, b), member.name
        else:
            assert a == b, member.name


def num_parts(folder: Path) -> int:
    """Parts of all journals."""
    return len(list(folder.glob("*/part-*.safetensors")))


COUNTING = Turns(add(1), add(2, 3), add(4), add(), add(5, 6), say(ToolCall(name="finish")))
# calls of the turns before the last
NUM_CALLS = 2 + 3 + 2 + 1 + 3


@pytest.mark.parametrize("env_id", ["Faulty-v0", "Saved-v0"])
@pytest.mark.parametrize(
    ("journal_tokens", "kept"),
    [
        # parts written before call 0, 1, ..: one a turn
        (1, [0, 0, 1, 1, 1, 2, 2, 3, 4, 4, 4, 5]),
        # the third turn is too short for one
        (400, [0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4]),
    ],
)
def test_an_episode_cut_at_any_call_goes_on_to_the_same_trajectory(
    tmp_path: Path, env_id: str, journal_tokens: int, kept: list[int]
) -> None:
    folder = Path(__file__).parents[1] / "envs"
    config = EnvConfig(id=f"faulty_envs:{env_id}", import_folder=str(folder))

    async def scenario() -> None:
        environments = EnvClient(config, 1)
        await environments.start()
        try:
            agent = make_agent(PolicyEngine(COUNTING), environments, journal_tokens=journal_tokens)
            (whole,) = (await play(agent, None)).trajectories
            assert whole.outcome is Outcome.success and len(whole.turns) == 6 and whole.reward == 21.0
            for at in range(NUM_CALLS + 1):
                journals = tmp_path / str(at)
                killed = make_agent(agent.engine, KilledEnvironments(environments, at), journal_tokens=journal_tokens)
                await play_killed(killed, journals)
                assert num_parts(journals) == kept[at]
                (resumed,) = (await play(agent, journals, incarnation=1)).trajectories
                assert_same(resumed, whole)
            # every cut behind the first part was restored
            assert environments.counters.episodes_restored == sum(map(bool, kept))
        finally:
            await environments.stop()

    run(scenario())


def test_a_native_engine_goes_on_from_the_tokens(tmp_path: Path) -> None:
    class LooseChat(Chat):
        """Any of a third of all tokens ends a turn, and every turn is a call: what random weights can write."""

        stop_ids = tuple(range(0, CHAT.tokenizer.vocab_size, 3))

        def parse_assistant(self, ids: Any) -> AssistantTurn:
            return AssistantTurn(response="", calls=(AssistantCall(tool="look", arguments={"at": str(ids[0])}),))

    model = make_model(make_config(vocab_size=CHAT.tokenizer.vocab_size))
    environments = FakeEnvironments([*[make_reply(f"seen {n}") for n in range(5)], make_reply(terminated=True)])

    async def play_to_its_end(at: int | None, folder: Path | None) -> Group:
        engine = make_engine(model, num_pages=1000, prefill_chunk_tokens=100)
        around = environments if at is None else KilledEnvironments(environments, at)
        agent = make_agent(engine, around, chat=LooseChat(CHAT.tokenizer))
        return await (play(agent, folder, size=2) if at is None else play_killed(agent, folder, size=2))

    whole = run(play_to_its_end(None, None))
    for at in (3, 6, 9):
        journals = tmp_path / str(at)
        run(play_to_its_end(at, journals))
        saved = {t.index: Journal(journals, TASK, t.index).load() for t in whole.trajectories}
        assert any(saved.values())
        resumed = run(play_to_its_end(None, journals))
        for left, right in zip(resumed.trajectories, whole.trajectories, strict=True):
            # the states were built in other pieces
            assert_same(left, right, but=("behaviour_logprob", "expert_ids"))
            assert np.abs(left.behaviour_logprob - right.behaviour_logprob).max() <= 1e-4
            episode = saved[left.index]
            num_saved = 0 if episode is None else len(episode.token_ids)
            assert np.array_equal(left.behaviour_logprob[:num_saved], right.behaviour_logprob[:num_saved])
            # rows of all tokens that were fed
            assert left.expert_ids is not None and left.expert_ids.shape == right.expert_ids.shape
            assert (left.expert_ids[:-1] == right.expert_ids[:-1]).mean() > 0.99


def test_tokens_keep_the_versions_that_sampled_them(tmp_path: Path) -> None:
    script = Turns(look("a"), look("b"), look("c"))
    environments = FakeEnvironments([make_reply(), make_reply(), make_reply(terminated=True)])
    run(play_killed(make_agent(PolicyEngine(script), KilledEnvironments(environments, 1)), tmp_path))
    group = run(play(make_agent(PolicyEngine(script, version=LATER), environments), tmp_path, incarnation=1, size=2))
    resumed, new = group.trajectories
    versions = [(resumed.policy_incarnation[turn.start], resumed.policy_step[turn.start]) for turn in resumed.turns]
    old, later = ((version.incarnation, version.step) for version in (VERSION, LATER))
    assert versions == [old, later, later]
    assert [(new.policy_incarnation[turn.start], new.policy_step[turn.start]) for turn in new.turns] == [later] * 3
    assert (group.group_id, group.first_version, group.last_version) == (f"{TASK.id}.1", VERSION, LATER)


def test_turns_that_were_played_count(tmp_path: Path) -> None:
    script = Turns(*(look(place) for place in "abcdef"))
    environments = FakeEnvironments([make_reply()] * 6)
    run(play_killed(make_agent(PolicyEngine(script), KilledEnvironments(environments, 2)), tmp_path))
    group = run(play(make_agent(PolicyEngine(script), environments, max_turns=4), tmp_path))
    (trajectory,) = group.trajectories
    assert trajectory.outcome is Outcome.truncated_turns and len(trajectory.turns) == 4


def test_seconds_that_were_used_count(tmp_path: Path) -> None:
    class Slow(FakeEnvironments):
        async def step(self, episode_id: str, call: ToolCall) -> Any:
            # as if it had taken so long
            present_clock().spend(20.0)
            for _ in range(5):
                await asyncio.sleep(0)
            return await super().step(episode_id, call)

    script = Turns(look("a"), look("b"), look("c"), look("d"))
    environments = Slow([make_reply(), make_reply(), make_reply(), make_reply(terminated=True)])
    agent = make_agent(PolicyEngine(script), environments, max_episode_s=70.0)
    (whole,) = run(play(agent, None)).trajectories
    assert whole.outcome is Outcome.truncated_time and len(whole.turns) == 4
    killed = make_agent(agent.engine, KilledEnvironments(environments, 2), max_episode_s=70.0)
    run(play_killed(killed, tmp_path))
    saved = Journal(tmp_path, TASK, 0).load()
    # two calls of 20 s, and what this test itself took
    assert saved is not None and 40.0 <= saved.used_s < 60.0
    (resumed,) = run(play(agent, tmp_path)).trajectories
    assert_same(resumed, whole, but=())


def test_a_journal_takes_none_of_an_episodes_time(tmp_path: Path) -> None:
    used = []

    class SlowToRecord(FakeEnvironments):
        async def record(self, episode_id: str) -> Any:
            used.append(present_clock().used_s)
            await asyncio.sleep(0.01)
            used.append(present_clock().used_s)
            return await super().record(episode_id)

    environments = SlowToRecord([make_reply(), make_reply(terminated=True)])
    run(play(make_agent(PolicyEngine(Turns(look("a"), look("b"))), environments), tmp_path))
    before, after = used
    assert after == before
    saved = Journal(tmp_path, TASK, 0).load()
    assert saved is not None and saved.used_s == before


@pytest.mark.parametrize("journal_tokens", [0, 10_000])
def test_a_short_episode_is_never_written(tmp_path: Path, journal_tokens: int) -> None:
    script = Turns(look("a"), look("b"), look("c"))
    environments = FakeEnvironments([make_reply(), make_reply(), make_reply(terminated=True)])
    agent = make_agent(PolicyEngine(script), environments, journal_tokens=journal_tokens)
    run(play(agent, tmp_path / "journals"))
    assert not (tmp_path / "journals").exists()
    assert [event[0] for event in environments.events] == ["reset", "step", "step", "step", "close"]


def test_a_further_attempt_goes_on_from_the_journal_with_noise_of_its_own(tmp_path: Path) -> None:
    script = Turns(look("a"), look("b"), look("c"))

    class Failing(FakeEnvironments):
        num_failures = 1

        async def step(self, episode_id: str, call: ToolCall) -> Any:
            if call.arguments == {"at": "c"} and self.num_failures:
                self.num_failures -= 1
                raise InfrastructureFailure("worker gone")
            return await super().step(episode_id, call)

    environments = Failing([make_reply(), make_reply(), make_reply(terminated=True)])
    engine = PolicyEngine(script)
    (trajectory,) = run(play(make_agent(engine, environments), tmp_path)).trajectories
    assert trajectory.outcome is Outcome.failure and len(trajectory.turns) == 3
    assert trajectory.attempt == 1 and [session_id.attempt for session_id in engine.opened] == [0, 1]
    assert [event[:2] for event in environments.events if event[0] != "record"] == [
        ("reset", "train-0000004/0/0"),
        ("step", "train-0000004/0/0"),
        ("step", "train-0000004/0/0"),
        ("close", "train-0000004/0/0"),
        ("restore", "train-0000004/0/1"),
        ("step", "train-0000004/0/1"),
        ("close", "train-0000004/0/1"),
    ]


def test_attempts_before_a_kill_count(tmp_path: Path) -> None:
    script = Turns(look("a"), look("b"), look("c"))

    async def fail_third(session: Session) -> np.ndarray:
        turn = await script(session)
        if np.array_equal(turn, look("c")) and session.id.attempt == 0:
            raise EngineFailure("no device")
        return turn

    # the second attempt goes on from the second turn, and writes a part after the third
    environments = FakeEnvironments([make_reply()] * 4)
    agent = make_agent(PolicyEngine(fail_third), KilledEnvironments(environments, 3), max_turns=4)
    script = Turns(look("a"), look("b"), look("c"), look("d"))
    run(play_killed(agent, tmp_path))
    engine = PolicyEngine(script)
    (trajectory,) = run(play(make_agent(engine, environments, max_turns=4), tmp_path)).trajectories
    assert trajectory.attempt == 1 and [session_id.attempt for session_id in engine.opened] == [1]

    async def fail(session: Session) -> np.ndarray:
        raise EngineFailure("no device")

    engine = PolicyEngine(fail)
    (trajectory,) = run(play(make_agent(engine, environments, max_attempts=3), tmp_path)).trajectories
    assert trajectory.outcome is Outcome.engine_error
    assert [session_id.attempt for session_id in engine.opened] == [1, 2]


def test_an_environment_that_answers_differently_has_the_episode_begin_anew(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "envs"
    config = EnvConfig(id="faulty_envs:Faulty-v0", import_folder=str(folder))
    script = Turns(say(ToolCall(name="clock")), add(1), say(ToolCall(name="finish")))

    async def scenario() -> None:
        environments = EnvClient(config, 1)
        await environments.start()
        try:
            agent = make_agent(PolicyEngine(script), environments)
            # under the last call
            await play_killed(make_agent(agent.engine, KilledEnvironments(environments, 3)), tmp_path)
            assert num_parts(tmp_path) == 2
            saved = Journal(tmp_path, TASK, 0).load()
            assert saved is not None
            (trajectory,) = (await play(agent, tmp_path)).trajectories
            assert trajectory.outcome is Outcome.success and len(trajectory.turns) == 3
            # the clock says another time
            assert not np.array_equal(trajectory.token_ids[: len(saved.token_ids)], saved.token_ids)
            assert trajectory.attempt == 0
            # its parts stand in the place of the old ones
            again = Journal(tmp_path, TASK, 0).load()
            assert again is not None
            assert np.array_equal(trajectory.token_ids[: len(again.token_ids)], again.token_ids)
            assert environments.counters.episodes_lost == 1
        finally:
            await environments.stop()

    run(scenario())


@pytest.mark.parametrize(
    ("error", "attempts", "restored"),
    [(RestoreFailure("it is another"), [0], False), (InfrastructureFailure("no worker"), [1], True)],
)
def test_a_journal_is_given_up_only_where_it_can_never_be_restored(
    tmp_path: Path, error: Exception, attempts: list[int], restored: bool
) -> None:
    script = Turns(look("a"), look("b"))
    replies = [make_reply(reward_terms={"process": 0.5}), make_reply(terminated=True)]
    run(play_killed(make_agent(PolicyEngine(script), KilledEnvironments(FakeEnvironments(replies), 1)), tmp_path))
    engine, environments = PolicyEngine(script), FakeEnvironments(replies, resets=[error])
    (trajectory,) = run(play(make_agent(engine, environments), tmp_path)).trajectories
    assert trajectory.outcome is Outcome.failure and trajectory.reward == 0.5
    assert [session_id.attempt for session_id in engine.opened] == attempts
    assert ("reset" in [event[0] for event in environments.events]) is not restored
