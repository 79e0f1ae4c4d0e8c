"""What a rollout actor writes of evaluations, and its demonstrations; its wiring is in tests/e2e/test_train.py."""

import asyncio
from dataclasses import replace
from pathlib import Path

from actor_cases import make_trajectory

from segue.actors.rollout_actor import RolloutActor, collect_group
from segue.actors.task import Task, member_seed
from segue.conf.schema import EnvConfig, PretrainConfig, RolloutConfig, SegueConfig
from segue.rollout.trajectory import Outcome, PolicyVersion, Source
from segue.rollout.trajectory_file import load_group

TASK = Task(number=0, task_id="demonstration-0000000", seed=5, incarnation=0)


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
        pretrain=PretrainConfig(episodes_per_step=4),
    )
    (tmp_path / "groups").mkdir()
    actor = RolloutActor(config, name="rollout-0", run_folder=tmp_path)

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
