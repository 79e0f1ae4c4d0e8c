"""The Python environment whole: worker, sandbox, grader. Every attack is played through the tool."""

import asyncio

import pytest
from env_cases import measure_demonstrator
from python_attacks import (
    ALLOCATE,
    ESCAPE,
    FILL_SCRATCH,
    FLOOD,
    FOOL_GRADER,
    FORK_BOMB,
    HIDDEN_MEMORY,
    KILL_ALL,
    LOOK_AROUND,
    MANY_FILES,
    OUTLIVE,
    OVERWRITE_FILES,
    WRITE_OUTSIDE,
)
from python_tricks import ADOPT, ATTRIBUTES, DEEP_TREE, EXHAUST, OUTPUT, PAGE_TABLES, SHARED_BY_THE_MACHINE

from segue.conf.schema import EnvConfig
from segue.envs.client import EnvClient
from segue.envs.factory import EnvFactory
from segue.envs.python.task import TRAINING_CLASSES, Split, make_problem
from segue.envs.tool import ToolCall
from segue.envs.tool_env import ToolEnv
from segue.envs.truth import MAX_REWARD

pytestmark = pytest.mark.system


def make_python() -> ToolEnv:
    factory = EnvFactory(EnvConfig(id="python"))
    factory.check()
    return factory.make()


def run(code: str) -> ToolCall:
    return ToolCall(name="run_python", arguments={"code": code})


@pytest.mark.parametrize("options", [{}, {"split": "heldout_kinds"}, {"level": 2, "split": "heldout_seeds"}])
def test_the_expert_earns_all_there_is_in_the_sandbox(options: dict[str, object]) -> None:
    env = EnvFactory(EnvConfig(id="python", kwargs=options)).make()
    report = measure_demonstrator(env, "expert", range(16), "output_correct")
    assert (report.success, report.tool_correct, report.mean_reward) == (1.0, 1.0, pytest.approx(MAX_REWARD))


def test_files_that_a_program_writes_mean_nothing_to_the_grader() -> None:
    env = make_python()
    env.reset(seed=3)
    _, reward, terminated, _, info = env.step(run(FOOL_GRADER))
    assert (reward, terminated, info["output_correct"]) == (0.0, False, False)
    _, reward, terminated, _, info = env.step(ToolCall(name="answer", arguments={"text": "right"}))
    assert (reward, terminated, info["is_success"]) == (0.0, True, False)


def test_a_program_that_spoils_its_files_spoils_no_other_run() -> None:
    env = make_python()
    # a total of a file's numbers
    problem = make_problem(3, 1, Split.train, TRAINING_CLASSES)
    assert problem.kind == "total"
    env.reset(seed=3)
    (name,) = problem.files
    assert env.step(run(OVERWRITE_FILES))[0] == name
    observation, reward, *_ = env.step(run(problem.program))
    assert (observation, reward) == (problem.truth, 0.1)


def test_the_worker_survives_every_attack() -> None:
    attacks = (
        WRITE_OUTSIDE, LOOK_AROUND, ESCAPE, HIDDEN_MEMORY, KILL_ALL, FORK_BOMB, ALLOCATE, FILL_SCRATCH, MANY_FILES,
        OUTLIVE, FLOOD, FOOL_GRADER, PAGE_TABLES, SHARED_BY_THE_MACHINE, ADOPT, EXHAUST, DEEP_TREE, ATTRIBUTES, OUTPUT,
    )  # fmt: skip

    async def play() -> None:
        client = EnvClient(EnvConfig(id="python", kwargs={"max_calls": 60}), num_workers=1)
        await client.start()
        try:
            await client.reset("attacked", 3, None)
            await client.reset("neighbour", 3, None)
            await client.reset("patient neighbour", 3, None)
            for attack in attacks:
                reply = await client.step("attacked", run(attack))
                assert (reply.reward_terms, reply.terminated, reply.truncated) == ({}, False, False)
                # the neighbours on the same worker notice nothing
                reply = await client.step("neighbour", run("print('here')"))
                assert reply.observation == "here"
            total = 0.0
            while True:
                turn = await client.expert("patient neighbour", "expert")
                reply = await client.step("patient neighbour", ToolCall(**turn["calls"][0]))
                total += sum(reply.reward_terms.values())
                if reply.terminated:
                    break
            assert total == pytest.approx(MAX_REWARD)
            counters = client.counters
            assert (counters.workers_replaced, counters.environment_failures, counters.episodes_lost) == (0, 0, 0)
        finally:
            await client.stop()

    asyncio.run(play())
