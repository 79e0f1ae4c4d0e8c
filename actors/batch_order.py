"""Which groups make the next batch, and when it waits for one that is still played.

The oldest come first. A group that finished early may overtake one that is still played, but never so that the slow one
could not be trained in time any more: else long episodes would be left out more often than short ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a group stands in the order."""

    number: int
    """Of its task."""
    oldest_step: int
    """Learner steps that the weights of its oldest token have seen; of one in flight, those at its start."""
    is_used: bool = False
    """It has trained before: it fills a batch for which there is nothing new."""


def next_batch(
    ready: Sequence[Place], in_flight: Sequence[Place], *, count: int, step: int, max_staleness: int | None
) -> list[Place] | None:
    """The batch of `count` groups, or None while it must wait.

    Args:
        ready: finished groups.
        in_flight: groups that are still played.
        step: learner steps done.
        max_staleness: oldest age that trains; None where nothing ages: then no group overtakes another.
    Invariants:
        Where every batch of a run was chosen so, with groups for `max_staleness` + 1 batches in flight or ready, every
        group trains for the first time with all its tokens within the bound, whatever finishes first:
        tests/property/test_controller_schedules.py.
    Example:
        At bound 1 and two groups a batch, groups 0 to 3 were begun at step 0. Step 0 may train 1 and 3, whichever
        finish first; step 1 waits for 0 and 2, for at step 2 their tokens would be two steps old.
    """
    order = sorted(ready, key=lambda place: (place.is_used, place.oldest_step, place.number))
    batch, left = order[:count], order[count:]
    if len(batch) < count or _must_wait(batch, left, in_flight, count, step, max_staleness):
        return None
    return batch


def _must_wait(
    batch: list[Place],
    left: list[Place],
    in_flight: Sequence[Place],
    count: int,
    step: int,
    max_staleness: int | None,
) -> bool:
    if max_staleness is None:
        return any(place.number < batch[-1].number for place in in_flight)
    for num_ahead in range(max_staleness + 1):
        # groups as old as this must have trained when `num_ahead` batches more are done
        oldest_step = step + num_ahead - max_staleness
        num_flying = sum(place.oldest_step <= oldest_step for place in in_flight)
        num_left = sum(place.oldest_step <= oldest_step and not place.is_used for place in left)
        if num_flying and num_flying + num_left > num_ahead * count:
            return True
    return False
