"""Weights from the learner to the rollout actors: one flat buffer in the object store, mapped read-only by each reader.

The learner's rank 0 puts an update and hands out a ticket; the controller sends the ticket to every rollout actor; each
maps the buffer and copies it into its model between two decode steps. A node that lacks it draws it when the first of
its actors asks, once for all of them, and they share the pages: tests/e2e/test_cluster.py. Every tensor's digest is
taken where it was packed and checked where it is copied.
"""

from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import ObjectLostError

from segue.model.weights import WeightUpdate
from segue.rollout.trajectory import PolicyVersion


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightTicket:
    """A published version and where it lies."""

    version: PolicyVersion
    size_bytes: int
    reference: Any
    """Ray's reference to the `WeightUpdate`; owned by the actor that put it."""


def put_weights(update: WeightUpdate, version: PolicyVersion) -> WeightTicket:
    """Publish an update; one copy, into shared memory."""
    return WeightTicket(version=version, size_bytes=update.data.nbytes, reference=ray.put(update))


async def get_weights(ticket: WeightTicket) -> WeightUpdate:
    """The update, its data mapped read-only."""
    update: WeightUpdate = await ticket.reference
    assert not update.data.flags.writeable, "weights must be mapped, not copied"
    return update


def is_gone(error: BaseException) -> bool:
    """Whether this is what reading weights ends in after their publisher died."""
    return isinstance(error.__cause__, ObjectLostError)
