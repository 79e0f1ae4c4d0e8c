"""The env client over real worker processes: faults and who pays for them. Not covered here: `sql` (its own files)."""

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from segue.conf.schema import EnvConfig
from segue.envs.client import SNAPSHOT_EVERY_STEPS, EnvClient
from segue.envs.episode_record import EpisodeRecord
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure, RestoreFailure
from segue.envs.reply import StepReply
from segue.envs.tool import ToolCall

CONFIG = EnvConfig(
    id="faulty_envs:Faulty-v0",
    import_folder=str(Path(__file__).parent),
    call_timeout_s=2.0,
    start_timeout_s=60.0,
    max_observation_chars=100,
)


def play(scenario: Callable[[EnvClient], Awaitable[None]], config: EnvConfig = CONFIG, num_workers: int = 1) -> None:
    """Runs a scenario on a started client, then checks that nothing is left of it."""

    async def run() -> None:
        client = EnvClient(config, num_workers)
        await client.start()
        try:
            await scenario(client)
        finally:
            await client.stop()

    before = children()
    asyncio.run(run())
    assert children() <= before


def children() -> set[psutil.Process]:
    """All that this process started and has not reaped; other tests may have left some."""
    return set(psutil.Process().children(recursive=True))


def wait_until_gone(pids: list[int]) -> None:
    """Returns when no process of these runs; a zombie is left to whoever adopted it."""
    deadline = time.monotonic() + 10
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            while psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                assert time.monotonic() < deadline, pid
                time.sleep(0.02)


async def add(client: EnvClient, episode_id: str, amount: int) -> StepReply:
    return await client.step(episode_id, ToolCall(name="add", arguments={"amount": amount}))


async def worker_pid(client: EnvClient, episode_id: str) -> int:
    pid = (await client.step(episode_id, ToolCall(name="pid"))).info["pid"]
    assert isinstance(pid, int)
    return pid


def test_an_episode_runs_in_another_process_and_ends_with_its_success() -> None:
    async def scenario(client: EnvClient) -> None:
        task = await client.reset("a", 5, None)
        assert (task.observation, task.system, task.info) == ("count from 5", "", {"seed": 5})
        assert "add" in [tool.name for tool in task.tools]
        reply = await add(client, "a", 3)
        # 5 + 3
        assert (reply.observation, reply.reward_terms, reply.terminated) == ("8", {"progress": 3.0}, False)
        said = (await client.step("a", ToolCall(name="pid"))).info
        assert said["pid"] != os.getpid()
        # relative paths mean the same here and in a run, whose actors work in its folder
        assert said["folder"] == CONFIG.import_folder != os.getcwd()
        last = await client.step("a", ToolCall(name="finish"))
        assert (last.terminated, last.truncated, last.info["is_success"]) == (True, False, True)
        await client.close("a")
        with pytest.raises(ValueError, match="must name an open episode"):
            await add(client, "a", 1)
        await client.close("a")
        # reset, add, pid, finish
        assert (client.counters.episodes, client.counters.calls) == (1, 4)

    play(scenario)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fail", r"step of episode bad: RuntimeError: broken inside \(.*faulty_envs.py:\d+ in fail\)"),
        ("leave", "SystemExit: 3"),
        ("nan_reward", r"reward term broken of tool nan_reward must lie in \[-1e\+06, 1e\+06\], got nan"),
        ("nan_info", "info.loss must be finite, got nan"),
        ("wrong_type", "tool wrong_type must return a ToolResult, got 'text'"),
        ("flood_info", "message must have at most 4194304 bytes"),
    ],
)
def test_an_environment_that_breaks_its_contract_ends_its_episode_alone(fault: str, message: str) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("good", 10, None)
        await client.reset("bad", 20, None)
        pid = await worker_pid(client, "good")
        with pytest.raises(EnvironmentFailure, match=message):
            await client.step("bad", ToolCall(name=fault))
        with pytest.raises(ValueError, match="must name an open episode"):
            await add(client, "bad", 1)
        assert (await add(client, "good", 1)).observation == "11"
        assert await worker_pid(client, "good") == pid
        assert client.counters.environment_failures == 1
        assert client.counters.workers_replaced == 0

    play(scenario)


@pytest.mark.parametrize(
    ("fault", "message", "num_workers_lost"),
    [
        # run once more, since a worker may also be killed from outside
        ("vanish", r"died under it \(exit status 7\)", 2),
        ("die", r"died under it \(exit status -9\)", 2),
        ("hang", "step of episode bad took longer than 2 s; its worker was killed", 1),
    ],
)
def test_neighbours_of_a_lost_worker_are_replayed_from_their_seeds(
    fault: str, message: str, num_workers_lost: int
) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("good", 10, None)
        await client.reset("bad", 20, None)
        await add(client, "good", 5)
        drawn = (await client.step("good", ToolCall(name="draw"))).observation
        pid = await worker_pid(client, "good")
        with pytest.raises(EnvironmentFailure, match=message):
            await client.step("bad", ToolCall(name=fault))
        # 10 + 5 + 1: the state is back, and so is the generator's
        assert (await add(client, "good", 1)).observation == "16"
        assert (await client.step("good", ToolCall(name="draw"))).observation != drawn
        assert await worker_pid(client, "good") != pid
        counters = client.counters
        # the good one after the last loss, the bad one after the first
        assert (counters.workers_replaced, counters.episodes_restored) == (num_workers_lost, num_workers_lost)
        assert (counters.environment_failures, counters.episodes_lost) == (1, 0)

    play(scenario)


def test_a_replayed_episode_goes_on_as_an_undisturbed_one() -> None:
    draws: dict[bool, list[str]] = {}

    async def scenario(client: EnvClient, is_disturbed: bool) -> None:
        await client.reset("good", 10, None)
        first = (await client.step("good", ToolCall(name="draw"))).observation
        if is_disturbed:
            await client.reset("bad", 20, None)
            with pytest.raises(EnvironmentFailure):
                await client.step("bad", ToolCall(name="die"))
        draws[is_disturbed] = [first, (await client.step("good", ToolCall(name="draw"))).observation]

    for is_disturbed in (False, True):
        play(lambda client, is_disturbed=is_disturbed: scenario(client, is_disturbed))  # type: ignore[misc]
    assert draws[True] == draws[False]


def test_a_neighbour_that_replays_differently_is_lost_as_infrastructure() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("clock", 10, None)
        await client.reset("bad", 20, None)
        await client.step("clock", ToolCall(name="clock"))
        with pytest.raises(EnvironmentFailure):
            await client.step("bad", ToolCall(name="die"))
        with pytest.raises(RestoreFailure, match="episode clock could not be restored: replayed, step gave"):
            await add(client, "clock", 1)
        assert client.counters.episodes_lost == 1
        # the name is free again: the episode may be played anew
        await client.reset("clock", 10, None)
        assert (await add(client, "clock", 1)).observation == "11"

    play(scenario)


def test_a_long_episode_is_restored_from_its_snapshot() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("good", 0, None)
        # the reset and these make SNAPSHOT_EVERY_STEPS calls; the clock could not be replayed
        for _ in range(SNAPSHOT_EVERY_STEPS - 2):
            await add(client, "good", 1)
        await client.step("good", ToolCall(name="clock"))
        before = (await client.step("good", ToolCall(name="draw"))).observation
        await client.reset("bad", 20, None)
        with pytest.raises(EnvironmentFailure):
            await client.step("bad", ToolCall(name="die"))
        assert (await add(client, "good", 1)).observation == str(SNAPSHOT_EVERY_STEPS - 2 + 1)
        # the generator went on, too
        assert (await client.step("good", ToolCall(name="draw"))).observation != before
        # and the bad one, whose call ran twice
        assert client.counters.episodes_restored == 2

    play(scenario, replace(CONFIG, id="faulty_envs:Saved-v0"))


async def record_a_count(client: EnvClient) -> tuple[EpisodeRecord, str]:
    """The record of an episode from 7 that added 5 and drew, and what its next draw gives."""
    await client.reset("old", 7, None)
    await add(client, "old", 5)
    await client.step("old", ToolCall(name="draw"))
    record = await client.record("old")
    drawn = (await client.step("old", ToolCall(name="draw"))).observation
    await client.close("old")
    return record, drawn


@pytest.mark.parametrize(("env_id", "makes_snapshots"), [("Faulty-v0", False), ("Saved-v0", True)])
def test_a_recorded_episode_goes_on_in_other_processes(env_id: str, makes_snapshots: bool) -> None:
    records: list[tuple[EpisodeRecord, str]] = []

    async def first(client: EnvClient) -> None:
        records.append(await record_a_count(client))

    async def second(client: EnvClient) -> None:
        record, drawn = records[0]
        # a snapshot of now with the two steps behind it, or the reset and two steps to replay
        assert (record.snapshot is not None) == makes_snapshots
        assert (record.num_snapshot_steps, len(record.calls)) == ((2, 0) if makes_snapshots else (0, 3))
        await client.restore("new", 7, record)
        # the state and the generator's
        assert (await client.step("new", ToolCall(name="draw"))).observation == drawn
        assert (await add(client, "new", 1)).observation == "13"
        counters = client.counters
        assert (counters.episodes, counters.episodes_restored, counters.calls) == (0, 1, 2)
        # it can be recorded again, and its neighbours' faults cost it nothing either
        again = await client.record("new")
        assert again.num_snapshot_steps + len(again.calls) == (4 if makes_snapshots else 5)
        await client.reset("bad", 20, None)
        with pytest.raises(EnvironmentFailure):
            await client.step("bad", ToolCall(name="die"))
        assert (await add(client, "new", 1)).observation == "14"

    config = replace(CONFIG, id=f"faulty_envs:{env_id}")
    play(first, config)
    play(second, config)


def test_a_recorded_episode_that_answers_differently_is_not_restored() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("clock", 10, None)
        await client.step("clock", ToolCall(name="clock"))
        record = await client.record("clock")
        await client.close("clock")
        with pytest.raises(RestoreFailure, match="episode clock could not be restored: replayed, step gave"):
            await client.restore("clock", 10, record)
        # the name is free again
        await client.reset("clock", 10, None)
        assert (await add(client, "clock", 1)).observation == "11"
        with pytest.raises(ValueError, match="episode_id must be new"):
            await client.restore("clock", 10, record)

    play(scenario)


def test_a_recorded_episode_without_a_worker_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: EnvClient) -> None:
        record, drawn = await record_a_count(client)
        await client.reset("a", 10, None)
        with pytest.raises(EnvironmentFailure, match="died under it"):
            await client.step("a", ToolCall(name="die"))
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(InfrastructureFailure, match="could not be started") as caught:
            await client.restore("new", 7, record)
        assert not isinstance(caught.value, RestoreFailure)
        monkeypatch.undo()
        await client.restore("new", 7, record)
        assert (await client.step("new", ToolCall(name="draw"))).observation == drawn

    play(scenario)


def test_a_worker_killed_between_two_calls_costs_no_episode() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        await client.reset("b", 20, None)
        pid = await worker_pid(client, "a")
        os.kill(pid, signal.SIGKILL)
        psutil.Process(pid).wait(5)
        assert (await add(client, "a", 1)).observation == "11"
        assert (await add(client, "b", 1)).observation == "21"
        counters = client.counters
        assert (counters.workers_died, counters.workers_replaced, counters.episodes_restored) == (1, 1, 2)
        assert counters.environment_failures == 0

    play(scenario)


def test_a_worker_killed_under_a_call_costs_no_episode(tmp_path: Path) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        await client.reset("b", 20, None)
        await add(client, "a", 5)
        pid = await worker_pid(client, "a")
        mark = tmp_path / "mark"
        call = asyncio.ensure_future(client.step("a", ToolCall(name="hang_once", arguments={"path": str(mark)})))
        while not mark.exists():
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        # 10 + 5 + 1
        assert (await call).observation == "16"
        assert (await add(client, "b", 1)).observation == "21"
        counters = client.counters
        assert (counters.workers_died, counters.workers_replaced, counters.episodes_restored) == (1, 1, 2)
        assert (counters.environment_failures, counters.episodes_lost) == (0, 0)
        # a call that kills the next worker, too, is guilty
        await add(client, "a", 1)
        with pytest.raises(EnvironmentFailure, match="died under it"):
            await client.step("b", ToolCall(name="die"))
        assert (await add(client, "a", 1)).observation == "18"

    play(scenario, replace(CONFIG, call_timeout_s=30.0))


def test_a_worker_killed_under_a_snapshot_costs_no_episode(tmp_path: Path) -> None:
    mark = tmp_path / "mark"

    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        await add(client, "a", 5)
        pid = await worker_pid(client, "a")
        recording = asyncio.ensure_future(client.record("a"))
        while not mark.exists():
            await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGKILL)
        record = await recording
        assert (record.num_snapshot_steps, record.calls) == (2, ())
        assert (await add(client, "a", 1)).observation == "16"
        assert client.counters.environment_failures == 0

    config = replace(CONFIG, id="faulty_envs:SlowlySaved-v0", kwargs={"mark": str(mark)}, call_timeout_s=30.0)
    play(scenario, config)


def test_an_episode_that_begins_on_a_killed_worker_begins_on_the_next(tmp_path: Path) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("other", 20, None)
        pid = await worker_pid(client, "other")
        begin = asyncio.ensure_future(client.reset("a", 10, {"fault": "doze"}))
        # some turns of the loop, and the request is on its way
        for _ in range(20):
            await asyncio.sleep(0)
        os.kill(pid, signal.SIGKILL)
        assert (await begin).observation == "count from 10"
        assert (await add(client, "a", 1)).observation == "11"
        assert client.counters.environment_failures == 0

    play(scenario)


def test_calls_that_wait_behind_a_hanging_one_do_not_expire_with_it() -> None:
    async def scenario(client: EnvClient) -> None:
        for name in ("hung", "b", "c"):
            await client.reset(name, 10, None)
        hung = asyncio.ensure_future(client.step("hung", ToolCall(name="hang")))
        waiting = [asyncio.ensure_future(add(client, name, 1)) for name in ("b", "c")]
        with pytest.raises(EnvironmentFailure, match="took longer"):
            await hung
        assert [(await call).observation for call in waiting] == ["11", "11"]
        assert client.counters.calls_expired == 1

    play(scenario)


def test_an_answer_that_came_in_time_counts_however_busy_this_process_was() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        call = asyncio.ensure_future(client.step("a", ToolCall(name="doze")))
        # some turns of the loop, and the request is on its way
        for _ in range(20):
            await asyncio.sleep(0)
        writer = client._workers[0]._writer
        assert writer is not None
        # the loop is held up until the answer lies in the socket and the deadline has passed
        started = time.monotonic()
        assert select.select([writer.get_extra_info("socket").fileno()], [], [], 30)[0]
        time.sleep(max(0.0, started + CONFIG.call_timeout_s + 0.2 - time.monotonic()))
        assert (await call).observation == "awake"
        assert (client.counters.calls_expired, client.counters.workers_replaced) == (0, 0)

    play(scenario)


def test_an_episode_that_ends_while_it_begins_leaves_nothing_behind() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("other", 20, None)
        pid = await worker_pid(client, "other")
        begin = asyncio.ensure_future(client.reset("a", 10, {"fault": "doze"}))
        # some turns of the loop, and the request is on its way
        for _ in range(20):
            await asyncio.sleep(0)
        begin.cancel()
        await client.close("a")
        # the worker may hold the name no longer, or it would die of the second reset
        await client.reset("a", 30, None)
        assert (await add(client, "a", 1)).observation == "31"
        assert await worker_pid(client, "a") == pid
        assert client.counters.workers_died == 0

    play(scenario)


def test_what_an_environment_lacks_is_no_fault_of_the_environment() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        await client.reset("b", 20, None)
        with pytest.raises(InfrastructureFailure, match="the judge is down"):
            await client.step("a", ToolCall(name="lack"))
        assert (await add(client, "b", 1)).observation == "21"
        counters = client.counters
        assert (counters.episodes_lost, counters.environment_failures, counters.workers_replaced) == (1, 0, 0)

    play(scenario)


def test_a_worker_that_the_system_refuses_is_no_fault_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        with pytest.raises(EnvironmentFailure, match="died under it"):
            await client.step("a", ToolCall(name="die"))
        monkeypatch.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(InfrastructureFailure, match=r"an env worker could not be started: .*No such file"):
            await client.reset("b", 20, None)
        monkeypatch.undo()
        await client.reset("b", 20, None)
        assert (await add(client, "b", 1)).observation == "21"

    play(scenario)


def test_what_an_environment_started_is_killed_with_its_worker(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        with pytest.raises(EnvironmentFailure, match="took longer"):
            await client.step("a", ToolCall(name="hang_with_child"))

    play(scenario)
    wait_until_gone([int(capfd.readouterr().err.split("child ")[1].split()[0])])


def test_printing_cannot_reach_the_frames() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        assert (await client.step("a", ToolCall(name="shout"))).observation == "printed"
        assert (await add(client, "a", 1)).observation == "11"

    play(scenario)


def test_long_observations_are_cut_and_say_so() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        reply = await client.step("a", ToolCall(name="flood", arguments={"size": 2_000_000}))
        assert reply.observation == "y" * 100 + "\n[cut: 100 of 2000000 characters]"
        reply = await client.step("a", ToolCall(name="flood", arguments={"size": 100}))
        assert reply.observation == "y" * 100

    play(scenario)


def test_a_bad_call_is_answered_and_harms_nothing() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        for call, reason in [
            (ToolCall(name="nope"), 'error: no tool "nope"; tools: add, draw'),
            (ToolCall(name="add"), "error: add needs amount"),
            (ToolCall(name="add", arguments={"amount": "5"}), 'error: add.amount must be of type integer, got "5"'),
            (ToolCall(name="add", arguments={"amount": 5, "x": 1}), 'error: add takes no "x"; it takes: amount'),
            (ToolCall(name="add", arguments={"amount": float("nan")}), "error: message must be JSON without NaN"),
        ]:
            reply = await client.step("a", call)
            assert reply.observation.startswith(reason)
            assert (reply.reward_terms, reply.terminated, reply.truncated) == ({}, False, False)
        assert (await add(client, "a", 1)).observation == "11"

    play(scenario)


def test_a_task_that_cannot_begin_ends_its_episode_alone() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("good", 10, None)
        with pytest.raises(EnvironmentFailure, match="reset of episode bad: RuntimeError: no such task"):
            await client.reset("bad", 20, {"fault": "raise"})
        with pytest.raises(EnvironmentFailure, match="reset of episode bad took longer than 2 s"):
            await client.reset("bad", 20, {"fault": "hang"})
        assert (await add(client, "good", 1)).observation == "11"

    play(scenario)


def test_a_cancelled_call_leaves_the_worker_in_step() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        await client.reset("b", 20, None)
        call = asyncio.ensure_future(add(client, "a", 1))
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        # the cancelled call's answer is not taken for this one's
        assert (await add(client, "b", 1)).observation == "21"
        assert (await add(client, "a", 1)).observation == "12"

    play(scenario)


def test_episodes_spread_over_the_workers_and_names_are_unique() -> None:
    async def scenario(client: EnvClient) -> None:
        for name in ("a", "b", "c", "d"):
            await client.reset(name, 10, None)
        pids = [await worker_pid(client, name) for name in ("a", "b", "c", "d")]
        # two workers, two episodes each
        assert sorted(pids.count(pid) for pid in set(pids)) == [2, 2]
        with pytest.raises(ValueError, match="episode_id must be new"):
            await client.reset("a", 10, None)

    play(scenario, num_workers=2)


def test_stopping_ends_calls_that_still_run() -> None:
    async def scenario(client: EnvClient) -> None:
        await client.reset("a", 10, None)
        call = asyncio.ensure_future(client.step("a", ToolCall(name="hang")))
        await asyncio.sleep(0.2)
        await client.stop()
        with pytest.raises(InfrastructureFailure, match="was stopped"):
            await call

    play(scenario)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (replace(CONFIG, id="faulty_envs:Nothing-v0"), "env.id=faulty_envs:Nothing-v0 cannot be built: NameNotFound"),
        (replace(CONFIG, id="no_such_module:X-v0"), "names module no_such_module, which is neither installed nor in"),
        (replace(CONFIG, kwargs={"size": 3}), r"cannot be built: TypeError: .* with kwargs \({'size': 3}\)"),
        (replace(CONFIG, id="faulty_envs:Choosing-v0"), "actions of Choosing must be Discrete"),
        (replace(CONFIG, success_return=1.0), "env.success_return must be null"),
    ],
)
def test_an_environment_that_cannot_be_built_says_so_at_the_start(config: EnvConfig, message: str) -> None:
    async def run() -> None:
        client = EnvClient(config, 2)
        with pytest.raises(EnvironmentSetupError, match=message):
            await client.start()

    before = children()
    asyncio.run(run())
    assert children() <= before


def test_a_worker_that_does_not_start_in_time_is_killed() -> None:
    async def run() -> None:
        client = EnvClient(replace(CONFIG, id="faulty_envs:Slow-v0", start_timeout_s=1.5), 1)
        with pytest.raises(InfrastructureFailure, match=r"did not start within 1.5 s"):
            await client.start()

    before = children()
    asyncio.run(run())
    assert children() <= before


def test_workers_die_with_their_parent_even_while_they_hang(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            import psutil
            from segue.conf.schema import EnvConfig
            from segue.envs.client import EnvClient
            from segue.envs.tool import ToolCall

            async def main():
                hanging = EnvClient(EnvConfig(id={CONFIG.id!r}, import_folder={CONFIG.import_folder!r}), 1)
                querying = EnvClient(EnvConfig(), 1)
                await hanging.start()
                await querying.start()
                await hanging.reset("a", 1, None)
                print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
                await hanging.step("a", ToolCall(name="hang"))

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    # two keepers, the hanging worker, the querying worker and its query process
    assert len(pids) == 5
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_gone(pids)
