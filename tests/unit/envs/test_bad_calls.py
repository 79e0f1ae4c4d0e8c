"""Calls of a kind that only somebody who means it writes; those that are merely wrong are in test_client.py."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from segue.conf.schema import EnvConfig
from segue.envs.client import EnvClient
from segue.envs.tool import ToolCall

CONFIG = EnvConfig(id="faulty_envs:Faulty-v0", import_folder=str(Path(__file__).parent))


def nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"amount": "9" * 5_000_000}, "error: message must have at most 4194304 bytes, got 50"),
        ({"amount": nested(100_000)}, "error: message must be JSON without NaN: "),
        ({"amount": 10**5000}, "error: message must be JSON without NaN: Exceeds the limit"),
        ({"amount": float("inf")}, "error: message must be JSON without NaN: "),
        ({f"key {number}": number for number in range(100_000)}, "error: add needs amount"),
        (
            {"amount": 1, "\ud800": 2},
            'error: add takes no "\ud800"; it takes: amount',
        ),
        ({"amount": nested(50)}, "error: add.amount must be of type integer, got [[[["),
    ],
    ids=["huge", "deep", "long number", "infinite", "many keys", "surrogate", "nested"],
)
def test_a_call_that_is_huge_deep_or_odd_is_answered_shortly_and_harms_nothing(
    arguments: dict[str, Any], reason: str
) -> None:
    async def run() -> None:
        client = EnvClient(CONFIG, 1)
        await client.start()
        try:
            await client.reset("a", 10, None)
            reply = await client.step("a", ToolCall(name="add", arguments=arguments))
            assert reply.observation.startswith(reason)
            assert len(reply.observation) < 300
            assert (reply.reward_terms, reply.terminated, reply.truncated) == ({}, False, False)
            reply = await client.step("a", ToolCall(name="add", arguments={"amount": 1}))
            # 10 + 1, on the same worker
            assert (reply.observation, client.counters.workers_replaced) == ("11", 0)
        finally:
            await client.stop()

    asyncio.run(run())
