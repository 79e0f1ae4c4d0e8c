"""PackedInputs: layout of ragged sequences."""

import pytest
import torch

from segue.model.inputs import PackedInputs


def test_pack_lays_sequences_one_after_another() -> None:
    inputs = PackedInputs.pack([torch.tensor([5, 6]), torch.tensor([], dtype=torch.int64), torch.tensor([7])])
    assert inputs.token_ids.tolist() == [5, 6, 7]
    assert inputs.offsets.tolist() == [0, 2, 2, 3]
    assert inputs.lengths.tolist() == [2, 0, 1]
    assert inputs.num_sequences == 3


def test_rows_of_batches_are_refused() -> None:
    with pytest.raises(ValueError, match=r"token_ids must be \[T\]"):
        PackedInputs(token_ids=torch.zeros(2, 3, dtype=torch.int64), offsets=torch.tensor([0, 3]))
