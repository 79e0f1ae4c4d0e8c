"""Demonstrators: their randomness, and the form of what they say."""

import random
from typing import Any


def demonstrator_rng(seed: int, num_steps: int) -> random.Random:
    """What a demonstrator draws from at one turn, so that an episode replayed from its seed is the same.

    Args:
        seed: of the episode.
        num_steps: calls that the episode has behind it.
    """
    return random.Random(f"demonstrator:{seed}:{num_steps}")


def check_turn(turn: Any) -> None:
    """Refuses what no turn can be made of; whether its calls can be run is for the environment to say.

    Raises:
        TypeError: it is not `{"response": str, "calls": [{"name": str, "arguments": dict}, ...]}`.
    """
    holds = isinstance(turn, dict) and turn.keys() == {"response", "calls"}
    holds = holds and isinstance(turn["response"], str) and isinstance(turn["calls"], (list, tuple))
    if not holds or not all(map(_is_call, turn["calls"])):
        form = '{"response": text, "calls": [{"name": text, "arguments": dict}, ...]}'
        raise TypeError(f"expert must return {form}, got {turn!r:.200}")


def _is_call(call: Any) -> bool:
    return (
        isinstance(call, dict)
        and call.keys() == {"name", "arguments"}
        and isinstance(call["name"], str)
        and isinstance(call["arguments"], dict)
        and all(isinstance(key, str) for key in call["arguments"])
    )
