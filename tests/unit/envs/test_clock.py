"""The clock of an episode: what counts, and what a wait behind a neighbour costs."""

import asyncio
from pathlib import Path

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.client import EnvClient
from segue.envs.clock import EpisodeClock, present_clock
from segue.envs.errors import EnvironmentFailure
from segue.envs.tool import ToolCall


def test_seconds_outside_of_waits_are_bounded() -> None:
    async def play() -> None:
        with pytest.raises(TimeoutError):
            async with EpisodeClock(0.05) as clock:
                assert present_clock() is clock
                with clock.wait():
                    pass
                await asyncio.sleep(30)
        assert clock.has_expired

    asyncio.run(play())


def test_waits_may_overlap_and_cost_nothing() -> None:
    async def play() -> None:
        loop = asyncio.get_running_loop()
        async with EpisodeClock(0.2) as clock:
            with clock.wait():
                clock.begin_wait()
                await asyncio.sleep(0.3)
            # one of the two goes on
            await asyncio.sleep(0.3)
            clock.end_wait()
        assert not clock.has_expired
        # what is left is what was not used
        started = loop.time()
        with pytest.raises(TimeoutError):
            async with EpisodeClock(0.2) as clock:
                with clock.wait():
                    await asyncio.sleep(0.3)
                started = loop.time()
                await asyncio.sleep(30)
        assert 0.1 < loop.time() - started < 10

    asyncio.run(play())


def test_seconds_used_before_count() -> None:
    async def play() -> None:
        async with EpisodeClock(100.0) as clock:
            clock.spend(40.0)
            with clock.wait():
                # what this test itself takes lies between
                assert 40.0 <= clock.used_s < 60.0
                clock.spend(20.0)
                assert 60.0 <= clock.used_s < 80.0
            assert not clock.has_expired
        with pytest.raises(TimeoutError):
            async with EpisodeClock(100.0) as clock:
                clock.spend(100.0)
                await asyncio.sleep(30)
        assert clock.has_expired

    asyncio.run(play())


def test_nothing_is_bounded_where_no_clock_was_entered() -> None:
    async def play() -> None:
        clock = EpisodeClock(0.01)
        with present_clock().wait(), clock.wait():
            await asyncio.sleep(0.02)
        async with clock:
            pass
        # a wait may end after its episode
        clock.begin_wait()
        clock.end_wait()
        assert not clock.has_expired

    asyncio.run(play())


def test_an_episode_does_not_pay_for_hanging_neighbours() -> None:
    limits = {"call_timeout_s": 2.0, "start_timeout_s": 60.0, "max_observation_chars": 100}
    config = EnvConfig(id="faulty_envs:Faulty-v0", import_folder=str(Path(__file__).parent), **limits)

    async def play() -> None:
        client = EnvClient(config, 1)
        await client.start()
        try:
            names = ("a", "b", "innocent")
            for name in names:
                await client.reset(name, 10, None)
            hanging = [asyncio.ensure_future(client.step(name, ToolCall(name="hang"))) for name in names[:2]]
            # two deadlines of 2 s, two replaced workers and a replay lie before its call
            async with EpisodeClock(2.5) as clock:
                reply = await client.step("innocent", ToolCall(name="add", arguments={"amount": 1}))
            assert reply.observation == "11" and not clock.has_expired
            results = await asyncio.gather(*hanging, return_exceptions=True)
            assert all(isinstance(result, EnvironmentFailure) for result in results)
        finally:
            await client.stop()

    asyncio.run(play())
