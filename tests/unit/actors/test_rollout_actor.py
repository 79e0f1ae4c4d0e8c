"""What a rollout actor writes of evaluations, and its demonstrations; its wiring is in tests/e2e/test_train.py."""

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from actor_cases import make_group, make_trajectory

from segue.actors.group_record import GroupRecord
from segue.actors.rollout_actor import EvaluationRequest, RolloutActor, collect_group, save_when_there_is_room
from segue.actors.stages import StepPlan
from segue.actors.task import Task, member_seed
from segue.conf.schema import EnvConfig, RolloutConfig, SegueConfig, TrainConfig
from segue.envs.client import EnvClient
from segue.envs.tool import ToolCall
from segue.model.checkpoint import export_checkpoint
from segue.model.network import build_model
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, CallResult, Chat
from segue.rollout.engine.base import Completion, FinishReason
from segue.rollout.episode import PlayedTurn, SavedEpisode, TaskSpec
from segue.rollout.journal import Journal
from segue.rollout.trajectory import Outcome, PolicyVersion, Source
from segue.rollout.trajectory_file import load_group

PLAN = StepPlan(demonstrations=(None,) * 4)
TASK = Task(number=0, task_id="demonstration-0000000", seed=5, incarnation=0, plan=PLAN)


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


def test_a_group_is_not_kept_for_a_folder_that_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "groups" / "train-0000000.0.safetensors"
    with pytest.raises(OSError, match=r"could not be written: .*No such file or directory"):
        save_when_there_is_room(path, make_group(0), patience_s=float("inf"))


def test_a_demonstrator_that_hangs_costs_its_own_episode_alone(tmp_path: Path) -> None:
    limit = SegueConfig().eval.seed_start
    seeds = [member_seed(TASK, index, limit) for index in range(4)]
    config = SegueConfig(
        env=EnvConfig(
            id="faulty_envs:Demonstrated-v0",
            kwargs={"hanging_seed": seeds[1]},
            import_folder=str(Path(__file__).parents[1] / "envs"),
            call_timeout_s=2.0,
        ),
        rollout=RolloutConfig(max_sessions=3, max_turn_tokens=400, max_episode_tokens=4000),
    )
    (tmp_path / "groups").mkdir()
    actor = RolloutActor(config, name="rollout-0", run_folder=tmp_path, mark=None)

    async def play():
        await actor.start(None)
        try:
            return await actor.demonstrate(TASK)
        finally:
            await actor.stop()

    record = asyncio.run(play())
    group = load_group(tmp_path / "groups" / record.file, digest=record.digest)
    assert [(t.index, t.seed, t.source) for t in group.trajectories] == [
        (index, seed, Source.demonstrator) for index, seed in enumerate(seeds)
    ]
    outcomes = [trajectory.outcome for trajectory in group.trajectories]
    assert outcomes == [Outcome.success, Outcome.environment_error, Outcome.success, Outcome.success]
    assert "took longer than 2 s" in group.trajectories[1].info["cause"]


def test_a_killed_actors_task_goes_on_from_its_journals_which_end_with_its_group(tmp_path: Path) -> None:
    config = SegueConfig(
        env=EnvConfig(id="faulty_envs:Faulty-v0", import_folder=str(Path(__file__).parents[1] / "envs")),
        rollout=RolloutConfig(max_sessions=4, max_turn_tokens=8, max_episode_tokens=8000, journal_tokens=1),
        train=TrainConfig(group_size=2),
    )
    model = build_model(config.model, torch.float32)
    model.init_weights(torch.Generator().manual_seed(0))
    export_checkpoint(model, tmp_path / "model")
    (tmp_path / "groups").mkdir()
    task = Task(number=4, task_id="train-0000004", seed=5, incarnation=0)
    journal = Journal(tmp_path / "sessions", TaskSpec(id=task.task_id, seed=task.seed), 1)
    neighbour = Journal(tmp_path / "sessions", TaskSpec(id="train-0000005", seed=6), 1)

    async def leave_journals() -> SavedEpisode:
        """What a player that was killed behind its first turn has left."""
        chat = Chat(load_tokenizer(config.tokenizer))
        environments = EnvClient(config.env, 1)
        await environments.start()
        try:
            prompt = await environments.reset("a", task.seed, None)
            reply = await environments.step("a", ToolCall(name="add", arguments={"amount": 1}))
            calls = (AssistantCall(tool="add", arguments={"amount": 1}),)
            stream = [
                chat.render_task(prompt.system, prompt.tools, prompt.observation),
                chat.render_assistant(AssistantTurn(response="", calls=calls)),
                chat.render_tool_results([CallResult(tool="add", index=1, text=reply.observation)]),
            ]
            completion = Completion(
                token_ids=stream[1],
                logprobs=np.full(len(stream[1]), -0.5, np.float32),
                policy_incarnation=np.full(len(stream[1]), 0, np.int32),
                policy_step=np.full(len(stream[1]), 0, np.int32),
                finish_reason=FinishReason.stop,
            )
            turn = PlayedTurn(start=len(stream[0]), completion=completion, reward_terms=reply.reward_terms, num_calls=1)
            saved = SavedEpisode(
                attempt=0,
                token_ids=np.concatenate(stream),
                turns=[turn],
                info=prompt.info,
                used_s=1.0,
                environment=await environments.record("a"),
            )
        finally:
            await environments.stop()
        journal.write(saved)
        neighbour.write(saved)
        return saved

    async def play() -> GroupRecord:
        actor = RolloutActor(config, name="rollout-0", run_folder=tmp_path, mark=None)
        await actor.start(tmp_path / "model")
        try:
            return await actor.play(task)
        finally:
            await actor.stop()

    saved = asyncio.run(leave_journals())
    record = asyncio.run(play())
    new, resumed = load_group(tmp_path / "groups" / record.file, digest=record.digest).trajectories
    length = len(saved.token_ids)
    assert np.array_equal(resumed.token_ids[:length], saved.token_ids) and resumed.num_tokens > length
    assert [turn.reward_terms for turn in resumed.turns] == [{"progress": 1.0}, {}]
    # both were given the same prompt
    start = saved.turns[0].start
    assert np.array_equal(new.token_ids[:start], saved.token_ids[:start]) and len(new.turns) == 1
    assert not journal.has_begun and neighbour.has_begun


RATES = """
def count(episode, *, per_turn):
    return per_turn * len(episode.turns)
"""


def test_what_an_actor_plays_is_rated_and_keeps_to_its_tasks_budgets(tmp_path: Path) -> None:
    (tmp_path / "actor_terms.py").write_text(RATES)
    shutil.copy(Path(__file__).parents[1] / "envs" / "faulty_envs.py", tmp_path / "counting_envs.py")
    config = SegueConfig(
        env=EnvConfig(id="counting_envs:Faulty-v0", import_folder=str(tmp_path)),
        rollout=RolloutConfig(
            max_sessions=4,
            max_turn_tokens=8,
            max_episode_tokens=8000,
            reward_terms={"turns": {"term": "actor_terms:count", "kwargs": {"per_turn": 0.25}}},
        ),
        train=TrainConfig(group_size=2),
    )
    model = build_model(config.model, torch.float32)
    model.init_weights(torch.Generator().manual_seed(0))
    export_checkpoint(model, tmp_path / "model")
    (tmp_path / "groups").mkdir()
    # this environment names no classes
    task = Task(number=4, task_id="train-0000004", seed=5, incarnation=0, budgets={"": 7})

    async def play():
        actor = RolloutActor(config, name="rollout-0", run_folder=tmp_path, mark=None)
        await actor.start(tmp_path / "model")
        try:
            record = await actor.play(task)
            request = EvaluationRequest(
                name="eval-sampled", seeds=(9,), options={}, temperature=1.0, greedy=False, keep_as=None
            )
            return record, await actor.evaluate(request), await actor.stats()
        finally:
            await actor.stop()

    record, (held_out,), stats = asyncio.run(play())
    group = load_group(tmp_path / "groups" / record.file, digest=record.digest)
    for trajectory in group.trajectories:
        # random weights fill their turn of 8 tokens, or end it early
        num_sampled = trajectory.num_trainable
        expected = {"turns": 0.25} if num_sampled <= 7 else {"turns": 0.25, "over_budget": -1.25}
        assert trajectory.outcome_terms == expected
        assert trajectory.info["budget_tokens"] == 7
    assert any(trajectory.num_trainable == 8 for trajectory in group.trajectories)
    assert held_out.reward_terms == {"turns": 0.25} and "budget_tokens" not in held_out.info
    assert (stats.reward_terms.computed, stats.reward_terms.failed) == (3, 0)
