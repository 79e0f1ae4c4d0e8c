"""Sessions: the stream, its hash, its expert rows, forks."""

import hashlib

import numpy as np
import pytest
from rollout_cases import make_id

from segue.rollout.growing_array import GrowingArray
from segue.rollout.session import Session


def test_equal_streams_have_equal_hashes_however_they_were_appended():
    ids = np.arange(1000, dtype=np.int32) * 7
    whole, pieces = Session(make_id()), Session(make_id(1))
    whole.append(ids)
    for piece in np.split(ids, [1, 1, 300, 999]):
        pieces.append(piece.tolist() if len(piece) == 1 else piece)
    assert np.array_equal(pieces.token_ids, ids)
    assert whole.prefix_hash == pieces.prefix_hash
    # derived a second way: one digest over the bytes
    assert whole.prefix_hash == hashlib.blake2b(ids.astype("<i4").tobytes(), digest_size=16).hexdigest()
    pieces.append([1])
    assert whole.prefix_hash != pieces.prefix_hash


def test_a_fork_shares_the_past_and_nothing_after():
    parent = Session(make_id(None))
    parent.append([1, 2, 3])
    fork = Session(make_id(0), fork_of=parent)
    assert fork.fork_length == 3 and fork.prefix_hash == parent.prefix_hash
    fork.append([4])
    parent.append([5])
    assert fork.token_ids.tolist() == [1, 2, 3, 4]
    assert parent.token_ids.tolist() == [1, 2, 3, 5]
    assert fork.prefix_hash != parent.prefix_hash


def test_history_cannot_be_written():
    session = Session(make_id())
    session.append([1, 2])
    with pytest.raises(ValueError):
        session.token_ids[0] = 9


def test_only_rows_of_integers_are_tokens():
    session = Session(make_id())
    for wrong in ([[1, 2]], [0.5], ["a"], 3):
        with pytest.raises(ValueError, match="token ids must be a row of integers"):
            session.append(wrong)
    session.append([])
    assert len(session) == 0


def test_expert_rows_are_those_of_the_present_state():
    session = Session(make_id())
    session.append([1, 2, 3, 4])
    assert session.expert_ids is None
    session.record_experts(0, np.full((2, 3, 2), 5))
    session.record_experts(2, np.full((1, 3, 2), 6))
    rows = session.expert_ids
    assert rows is not None and rows.dtype == np.uint16
    # token 3 was never fed
    assert rows[:, 0, 0].tolist() == [5, 5, 6, 0]
    assert session.num_expert_rows == 3
    # the state was lost and two tokens were fed again
    session.record_experts(0, np.full((2, 3, 2), 7))
    assert session.num_expert_rows == 2
    assert session.expert_ids[:, 0, 0].tolist() == [7, 7, 0, 0]


def test_a_fork_inherits_rows_of_what_its_parent_fed():
    parent = Session(make_id(None))
    parent.append([1, 2, 3])
    fork = Session(make_id(0), fork_of=parent)
    parent.record_experts(0, np.arange(6).reshape(3, 1, 2))
    fork.inherit_experts(parent, 2)
    assert fork.num_expert_rows == 2
    assert fork.expert_ids is not None
    assert fork.expert_ids[:, 0].tolist() == [[0, 1], [2, 3], [0, 0]]


def test_views_of_a_growing_array_stay_right_while_it_grows():
    array = GrowingArray((2,), np.int64, capacity=1)
    array.append(np.array([[1, 2]]))
    view = array.values
    for value in range(100):
        array.append(np.full((3, 2), value))
    assert view.tolist() == [[1, 2]]
    assert len(array) == 301
    assert array.values[-3:, 0].tolist() == [99, 99, 99]
