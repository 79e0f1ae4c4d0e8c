"""A demonstrator's randomness."""

import random


def demonstrator_rng(seed: int, num_steps: int) -> random.Random:
    """What a demonstrator draws from at one turn, so that an episode replayed from its seed is the same.

    Args:
        seed: of the episode.
        num_steps: calls that the episode has behind it.
    """
    return random.Random(f"demonstrator:{seed}:{num_steps}")
