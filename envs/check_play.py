"""Episodes that a check plays, and what each of them showed."""

import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from segue.envs.client import EnvClient
from segue.envs.reply import Inspection, ResetReply, StepReply
from segue.envs.space import ToolCalls
from segue.envs.tool import ToolCall, ToolSpec

_NUM_EARLY_CALLS = 8
# more than the calls of an episode, most often, so that no two have the same arguments
_SEED_STRIDE = 10**4


@dataclass(kw_only=True, slots=True)
class Played:
    """One episode as far as it was played."""

    seed: int
    begin: ResetReply
    calls: list[ToolCall] = field(default_factory=list)
    replies: list[StepReply] = field(default_factory=list)
    inspections: list[Inspection] = field(default_factory=list)
    """After the reset and after each call."""
    slowest_s: float = 0.0
    """Of the reset and the calls, as the client sees them."""

    @property
    def has_ended(self) -> bool:
        """True where the environment said so."""
        return bool(self.replies) and (self.replies[-1].terminated or self.replies[-1].truncated)

    def shown(self) -> list[dict[str, Any]]:
        """What must come back when the calls are run again."""
        return [_begun(self.begin), *map(shown, self.replies)]


def shown(reply: StepReply) -> dict[str, Any]:
    """What of a reply must come back when its call is run again; info may hold times and the like."""
    return {
        "observation": reply.observation,
        "reward terms": reply.reward_terms,
        "terminated": reply.terminated,
        "truncated": reply.truncated,
        "is_success": reply.info.get("is_success"),
    }


async def begin(client: EnvClient, seed: int) -> Played:
    """Begins an episode, whose name is the seed."""
    started = time.monotonic()
    played = Played(seed=seed, begin=await client.reset(str(seed), seed, None))
    played.slowest_s = time.monotonic() - started
    return played


async def play(client: EnvClient, played: Played, max_calls: int, *, late: Container[str]) -> None:
    """Plays an episode that has begun, with calls that the tools accept, arbitrary otherwise.

    Args:
        played: is kept up to date, so that a failure leaves what came before it.
        late: names of tools that are called after the others.
    """
    name = str(played.seed)
    played.inspections.append(await client.inspect(name))
    arbitrary = _arbitrary_calls(played.begin.tools, late, played.seed)
    while played.begin.tools and not played.has_ended and len(played.calls) < max_calls:
        if played.inspections[0].is_foreign:
            # the space itself draws what it takes
            call = ToolCall(**(await client.expert(name, "expert"))["calls"][0])
        else:
            call = next(arbitrary)
        played.calls.append(call)
        started = time.monotonic()
        played.replies.append(await client.step(name, call))
        played.slowest_s = max(played.slowest_s, time.monotonic() - started)
        played.inspections.append(await client.inspect(name))
    await client.close(name)


async def replay(client: EnvClient, seed: int, calls: list[ToolCall]) -> list[dict[str, Any]]:
    """Runs calls from a seed, until the episode ends; returns what it showed."""
    name = f"{seed} again"
    found = [_begun(await client.reset(name, seed, None))]
    for call in calls:
        reply = await client.step(name, call)
        found.append(shown(reply))
        if reply.terminated or reply.truncated:
            break
    await client.close(name)
    return found


def find_difference(expected: list[dict[str, Any]], found: list[dict[str, Any]]) -> str | None:
    """Where two accounts of the same calls part, in words; None where they do not."""
    for number, (first, second) in enumerate(zip(expected, found, strict=False)):
        for key, value in first.items():
            if second[key] != value:
                when = f"after call {number}" if number else "after the reset"
                return f"{key} {when}: {value!r:.80}, then {second[key]!r:.80}"
    if len(expected) != len(found):
        return f"the episode showed {len(expected) - 1} calls, then {len(found) - 1}"
    return None


def _arbitrary_calls(tools: tuple[ToolSpec, ...], late: Container[str], seed: int) -> Iterator[ToolCall]:
    """Each tool in turn, from another one on for each seed, but those that come late; then any."""
    early = [spec for spec in tools if spec.name not in late] or list(tools)
    for number in count():
        is_early = number < max(len(early), _NUM_EARLY_CALLS)
        some = (early[(seed + number) % len(early)],) if is_early else tools
        yield _sample(some, _SEED_STRIDE * seed + number)


def _sample(tools: tuple[ToolSpec, ...], seed: int) -> ToolCall:
    samples = ToolCalls(tools)
    samples.seed(seed)
    return samples.sample()


def _begun(begin: ResetReply) -> dict[str, Any]:
    return {"observation": begin.observation, "system": begin.system, "tools": [spec.name for spec in begin.tools]}
