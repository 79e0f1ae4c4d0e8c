"""Workers under their keepers: what is left of an environment's programs and output, however it ends.

Episodes and their neighbours are in test_client.py, the bound of output on its own in test_output.py.
"""

import asyncio
import contextlib
import re
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
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentFailure
from segue.envs.output import BURST_BYTES, BYTES_PER_S
from segue.envs.tool import ToolCall

CONFIG = EnvConfig(
    id="faulty_envs:Faulty-v0", import_folder=str(Path(__file__).parent), call_timeout_s=2.0, start_timeout_s=60.0
)


def play(scenario: Callable[[EnvClient], Awaitable[None]], config: EnvConfig = CONFIG) -> None:
    async def run() -> None:
        client = EnvClient(config, 1)
        await client.start()
        try:
            await client.reset("a", 10, None)
            await scenario(client)
        finally:
            await client.stop()

    asyncio.run(run())


def has_ended(pid: int) -> bool:
    """True where no process of this number runs; a zombie is left to whoever adopted it."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    return True


def wait_until_ended(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while not all(map(has_ended, pids)):
        assert time.monotonic() < deadline, [pid for pid in pids if not has_ended(pid)]
        time.sleep(0.02)


async def leave_behind(client: EnvClient) -> list[int]:
    pids: list[int] = (await client.step("a", ToolCall(name="leave_behind"))).info["pids"]
    assert not any(map(has_ended, pids))
    return pids


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", "took longer than 2 s; its worker was killed"),
        ("vanish", r"died under it \(exit status 7\)"),
        ("crash", r"died under it \(exit status -6\)"),
        ("end_group", r"died under it \(exit status -15\)"),
    ],
)
def test_whatever_a_worker_started_ends_with_it(fault: str, message: str) -> None:
    async def scenario(client: EnvClient) -> None:
        pids = await leave_behind(client)
        with pytest.raises(EnvironmentFailure, match=message):
            await client.step("a", ToolCall(name=fault))
        # killed before the worker is replaced, those of other sessions included
        assert all(map(has_ended, pids))
        await client.reset("a", 10, None)
        assert (await client.step("a", ToolCall(name="add", arguments={"amount": 1}))).observation == "11"

    play(scenario)


def test_orphans_that_end_leave_no_zombies() -> None:
    async def scenario(client: EnvClient) -> None:
        keeper = (await client.step("a", ToolCall(name="orphan", arguments={"number": 20}))).info["keeper"]
        deadline = time.monotonic() + 10
        while len(psutil.Process(keeper).children()) > 1:
            assert time.monotonic() < deadline, psutil.Process(keeper).children()
            await asyncio.sleep(0.02)
        # the worker's end is still told as its own
        with pytest.raises(EnvironmentFailure, match=r"died under it \(exit status 7\)"):
            await client.step("a", ToolCall(name="vanish"))

    play(scenario)


def test_whatever_a_worker_started_ends_with_the_client() -> None:
    found: list[int] = []

    async def scenario(client: EnvClient) -> None:
        found.extend(await leave_behind(client))

    play(scenario)
    assert len(found) == 3 and all(map(has_ended, found))


def test_whatever_a_worker_started_ends_with_a_killed_rollout_actor(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        textwrap.dedent(
            f"""
            import asyncio
            from segue.conf.schema import EnvConfig
            from segue.envs.client import EnvClient
            from segue.envs.tool import ToolCall

            async def main():
                client = EnvClient(EnvConfig(id={CONFIG.id!r}, import_folder={CONFIG.import_folder!r}), 1)
                await client.start()
                await client.reset("a", 1, None)
                print(*(await client.step("a", ToolCall(name="leave_behind"))).info["pids"], flush=True)
                await client.step("a", ToolCall(name="hang"))

            asyncio.run(main())
            """
        )
    )
    parent = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pids = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(pids) == 3 and not any(map(has_ended, pids))
    pids += [child.pid for child in psutil.Process(parent.pid).children(recursive=True)]
    parent.kill()
    parent.wait()
    parent.stdout.close()
    wait_until_ended(pids)


def test_a_flood_of_output_is_bounded_and_holds_nobody_up(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(client: EnvClient) -> None:
        started = time.monotonic()
        # 20 MB on each output and 20 MB by a child
        reply = await client.step("a", ToolCall(name="spill", arguments={"size": 20}))
        assert reply.observation == "spilt"
        assert (await client.step("a", ToolCall(name="add", arguments={"amount": 1}))).observation == "11"
        spans.append(time.monotonic() - started)

    spans: list[float] = []
    play(scenario, replace(CONFIG, call_timeout_s=30.0))
    text = capfd.readouterr().err
    notes = [int(count) for count in re.findall(r"\[env worker: (\d+) bytes of output left out\]", text)]
    num_passed = text.count("s" * 9)
    assert 0 < num_passed * 9 <= BURST_BYTES + BYTES_PER_S * spans[0]
    # what a program printed besides, such as the end of a line, is counted too
    assert sum(notes) > 60e6 - BURST_BYTES - BYTES_PER_S * spans[0]


def test_the_last_words_of_a_worker_are_passed_on(capfd: pytest.CaptureFixture[str]) -> None:
    async def scenario(client: EnvClient) -> None:
        with pytest.raises(EnvironmentFailure, match="died under it"):
            await client.step("a", ToolCall(name="crash"))

    play(scenario)
    assert "last words\n" in capfd.readouterr().err
