"""What episodes are like: how many turns of how many tokens, and how long the environment takes over each."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import SimulateConfig, SpreadConfig

# the 99th percentile of the standard normal distribution
_Z99 = 2.3263478740408408

Rng = np.random.Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """An episode, as it will go."""

    turn_tokens: tuple[int, ...]
    """Sampled in each turn; > 0."""
    call_s: tuple[float, ...]
    """The environment's time over each turn, seconds."""
    observation_tokens: tuple[int, ...]
    """Of its reply to each turn."""


def draw_script(config: SimulateConfig, max_turns: int, rng: Rng) -> Script:
    """An episode's script; `max_turns` bounds its turns."""
    num_turns = min(draw_counts(config.turns, 1, rng)[0], max_turns)
    return Script(
        turn_tokens=draw_counts(config.turn_tokens, num_turns, rng),
        call_s=tuple(draw(config.call_s, num_turns, rng).tolist()),
        observation_tokens=draw_counts(config.observation_tokens, num_turns, rng),
    )


def draw(spread: SpreadConfig, count: int, rng: Rng) -> NDArray[np.float64]:
    """Draws of a lognormal quantity, float64 [count].

    Example:
        Median 0.5 and tail 20: half lie below 0.5, one in a hundred above 10.
    """
    sigma = math.log(spread.tail) / _Z99
    return spread.median * np.exp(sigma * rng.standard_normal(count))


def draw_counts(spread: SpreadConfig, count: int, rng: Rng) -> tuple[int, ...]:
    """The same, rounded to whole numbers of at least 1."""
    return tuple(np.maximum(np.rint(draw(spread, count, rng)), 1).astype(int).tolist())
