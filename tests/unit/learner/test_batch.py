"""Flat arrays of a step and the tensors of a micro-step, against loops over single tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from segue.learner.batch import TokenBatch
from segue.learner.schedule import MicroStep, Segment, SegmentSchedule


def make_batch(lengths, seed=0, with_routes=False):
    rng = np.random.default_rng(seed)
    tokens = [rng.integers(0, 1000, n) for n in lengths]
    labels = [np.append(False, rng.random(n - 1) < 0.5) for n in lengths]
    temperature = [rng.uniform(0.5, 2.0, n).astype(np.float32) for n in lengths]
    routes = [rng.integers(0, 8, (n, 3, 2)) for n in lengths] if with_routes else None
    return tokens, labels, temperature, routes, TokenBatch.pack(tokens, labels, temperature, routes)


def test_the_documented_example():
    batch = TokenBatch.pack(
        [np.array([5, 6, 7]), np.array([8, 9])],
        [np.array([False, False, True]), np.array([False, True])],
        [np.ones(3, np.float32), np.full(2, 2.0, np.float32)],
    )
    step = MicroStep(segments=(Segment(trajectory=0, start=0, end=3), Segment(trajectory=1, start=0, end=2)))
    inputs = batch.inputs(step)
    assert inputs.token_ids.tolist() == [5, 6, 7, 8, 9]
    assert inputs.offsets.tolist() == [0, 3, 5]
    assert inputs.label_positions.tolist() == [1, 3]
    assert inputs.label_ids.tolist() == [7, 9]
    assert inputs.temperature.tolist() == [1.0, 2.0]
    assert inputs.label_numbers.tolist() == [0, 1]
    assert inputs.replay_ids.shape[0] == 0


@given(st.lists(st.integers(1, 300), min_size=1, max_size=6), st.booleans())
def test_every_label_is_predicted_once_by_the_token_before_it(lengths, with_routes):
    tokens, labels, temperature, routes, batch = make_batch(lengths, with_routes=with_routes)
    numbers = {}
    for i, labels_T in enumerate(labels):
        for t in np.flatnonzero(labels_T):
            numbers[i, int(t)] = len(numbers)
    assert batch.num_labels == len(numbers)
    schedule = SegmentSchedule.build(lengths, 1, 64, 128, pair_cost=0.0).ranks[0]
    seen = []
    for step in schedule.swept + schedule.last:
        inputs = batch.inputs(step)
        fed = [(segment.trajectory, t) for segment in step.segments for t in range(segment.start, segment.end)]
        assert inputs.token_ids.tolist() == [tokens[i][t] for i, t in fed]
        predicted = [(fed[p][0], fed[p][1] + 1) for p in inputs.label_positions.tolist()]
        assert inputs.label_ids.tolist() == [tokens[i][t] for i, t in predicted]
        assert inputs.temperature.tolist() == [temperature[i][t] for i, t in predicted]
        assert inputs.label_numbers.tolist() == [numbers[key] for key in predicted]
        if routes is not None:
            assert inputs.replay_ids.tolist() == [routes[i][t].tolist() for i, t in fed]
        seen += predicted
    assert sorted(seen) == sorted(numbers)


def test_labels_of_trajectories_keep_the_order_asked_for():
    _, labels, _, _, batch = make_batch([10, 20, 5])
    counts = [int(row.sum()) for row in labels]
    first = np.arange(counts[0])
    third = np.arange(counts[0] + counts[1], sum(counts))
    assert batch.label_numbers([2, 0]).tolist() == [*third, *first]
    assert batch.label_numbers([]).tolist() == []


def test_a_dummy_feeds_one_token_for_nobody():
    inputs = make_batch([10])[-1].inputs(MicroStep(segments=()))
    assert inputs.token_ids.tolist() == [0]
    assert inputs.offsets.tolist() == [0, 1]
    assert inputs.label_numbers.tolist() == []


def test_a_label_that_nothing_predicts_is_refused():
    one = np.ones(2, np.float32)
    good, bad = np.array([False, True]), np.array([True, False])
    with pytest.raises(ValueError, match="is_label must be False at index 0, got True in trajectory 1"):
        TokenBatch.pack([np.arange(2)] * 2, [good, bad], [one, one])
