"""Recall as a function of distance: how likely the turn that answers is, by the tokens between fact and question.

Held-out archives are played by the expert, who quotes the fact and answers rightly, and the model is asked how likely
it finds that turn: the probability that it would say it, were it sampled at temperature 1 behind the same turns.
Lengths beyond the longest trained one show how far a model without position embeddings carries.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from segue.model.tokenizer.base import Tokenizer
from segue.rollout.trajectory import Int32Array, Trajectory

NUM_QUARTERS = 4
"""Parts of an archive in which the fact may lie; the first is nearest to the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecallPoint:
    """What archives of one length said of facts in one quarter."""

    length: int
    """Of the archives, in tokens."""
    quarter: int
    """From 1, nearest to the question."""
    distance_tokens: float
    """Mean over the episodes, from the end of the fact to the turn that answers, which the question precedes."""
    probability: float
    """Mean over the episodes of the answering turn's."""
    logprob: float
    """Mean of its logarithm, nats."""


def recall_options(length: int, quarter: int) -> dict[str, Any]:
    """Reset options of an archive whose only decisive fact lies in one quarter."""
    region = [1.0 - quarter / NUM_QUARTERS, 1.0 - (quarter - 1) / NUM_QUARTERS]
    return {"length_tokens": length, "fact_region": region, "classes": ["recall"]}


def answering_turn_only(trajectory: Trajectory, tokenizer: Tokenizer) -> Trajectory:
    """The trajectory with nothing trainable but its last turn, which quotes the fact and answers.

    `info` gains `distance_tokens`.

    Raises:
        ValueError: there is no such turn, or the fact does not stand in the stream.
    """
    if not trajectory.turns:
        raise ValueError("an episode must have a turn that answers, got none")
    turn, ids = trajectory.turns[-1], trajectory.token_ids
    trainable = trajectory.trainable.copy()
    trainable[: turn.start] = False
    (fact,) = trajectory.info["facts"]
    distance = turn.start - _end_of(np.array(tokenizer.encode(fact), np.int32), ids)
    return replace(trajectory, trainable=trainable, info={**trajectory.info, "distance_tokens": distance})


def recall_point(length: int, quarter: int, distances: Sequence[float], logprobs: Sequence[float]) -> RecallPoint:
    """Means over the episodes of one length and quarter.

    Args:
        distances: tokens.
        logprobs: of the answering turns, nats.
    """
    return RecallPoint(
        length=length,
        quarter=quarter,
        distance_tokens=sum(distances) / len(distances),
        probability=sum(map(math.exp, logprobs)) / len(logprobs),
        logprob=sum(logprobs) / len(logprobs),
    )


def _end_of(wanted: Int32Array, stream: Int32Array) -> int:
    """Index behind the first occurrence."""
    windows = np.lib.stride_tricks.sliding_window_view(stream, len(wanted))
    places = np.flatnonzero((windows == wanted).all(axis=1))
    if not len(places):
        raise ValueError("the fact must stand in the stream")
    return int(places[0]) + len(wanted)
