"""What episodes are like: how many turns of how many tokens, and how long the environment takes over each."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import SegueConfig, SpreadConfig

# the 99th percentile of the standard normal distribution
_Z99 = 2.3263478740408408
# beyond any bound on tokens
_MAX_COUNT = 1e9

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn, as it will go."""

    tokens: int
    """Sampled; > 0."""
    call_s: float
    """The environment's time over it, seconds."""
    observation_tokens: int
    """Of its reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """An episode, as it will go."""

    reset_s: float
    """The environment's time until there is a task, seconds."""
    turns: tuple[Turn, ...]


def draw_script(config: SegueConfig, prompt_tokens: int, rng: Rng) -> Script:
    """An episode's script, cut where a run's bounds on turns, tokens and calls cut it."""
    spreads, rollout, limit_s = config.simulate, config.rollout, config.env.call_timeout_s
    (num_turns,) = draw_counts(spreads.turns, 1, rng)
    num_turns = min(num_turns, rollout.max_turns)
    sampled = draw_counts(spreads.turn_tokens, num_turns, rng)
    seconds = draw(spreads.call_s, num_turns, rng).tolist()
    replies = draw_counts(spreads.observation_tokens, num_turns, rng)
    (reset_s,) = draw(spreads.reset_s, 1, rng).tolist()
    turns: list[Turn] = []
    left = rollout.max_episode_tokens - prompt_tokens
    for tokens, call_s, reply in zip(sampled, seconds, replies, strict=True):
        bound = max(min(rollout.max_turn_tokens, left), 1)
        is_cut = tokens > bound or call_s > limit_s
        # a turn that is cut calls nothing, and a call that is cut replies nothing
        turns.append(
            Turn(
                tokens=min(tokens, bound), call_s=0.0 if tokens > bound else min(call_s, limit_s),
                observation_tokens=0 if is_cut else reply,
            )
        )  # fmt: skip
        left -= tokens + reply
        if is_cut or left <= 0:
            break
    return Script(reset_s=min(reset_s, limit_s), turns=tuple(turns))


def draw(spread: SpreadConfig, count: int, rng: Rng) -> NDArray[np.float64]:
    """Draws of a lognormal quantity, float64 [count].

    Example:
        Median 0.5 and tail 20: half lie below 0.5, one in a hundred above 10.
    """
    sigma = math.log(spread.tail) / _Z99
    return spread.median * np.exp(sigma * rng.standard_normal(count))


def draw_counts(spread: SpreadConfig, count: int, rng: Rng) -> tuple[int, ...]:
    """The same, rounded to whole numbers of at least 1."""
    return tuple(np.clip(np.rint(draw(spread, count, rng)), 1, _MAX_COUNT).astype(int).tolist())
