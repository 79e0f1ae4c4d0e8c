"""Weight updates: what is packed arrives bit for bit, or nothing is changed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from segue.model.weights import check_weights, copy_weights, pack_weights


def make_tensors(seed: int) -> dict[str, torch.Tensor]:
    """Tensors of three dtypes and odd sizes, one not contiguous, one a scalar."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a": torch.randn(3, 5, generator=generator),
        "b": torch.randn(7, generator=generator).to(torch.bfloat16),
        "c": torch.randn(4, 6, generator=generator, dtype=torch.float64).t(),
        "d": torch.randn((), generator=generator),
    }


def test_tensors_arrive_bit_for_bit_from_read_only_memory():
    source, target = make_tensors(0), make_tensors(1)
    update = pack_weights(source)
    update.data.flags.writeable = False
    check_weights(update, target)
    copy_weights(update, target)
    for name, tensor in source.items():
        assert torch.equal(target[name], tensor), name


def test_views_of_every_dtype_are_aligned():
    update = pack_weights(make_tensors(0))
    assert [entry.offset_bytes for entry in update.manifest] == [0, 64, 128, 320]
    # 15 float32, 7 bfloat16, 24 float64, 1 float32
    assert [entry.size_bytes for entry in update.manifest] == [60, 14, 192, 4]
    assert len(update.data) == 384


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("b"), r"missing \[\], extra \['b'\]"),
        (lambda tensors: tensors.update(e=torch.zeros(1)), r"missing \['e'\], extra \[\]"),
        (
            lambda tensors: tensors.update(a=torch.zeros(5, 3)),
            r"a must be .* \[5, 3\], got float32 \[3, 5\]",
        ),
        (lambda tensors: tensors.update(b=torch.zeros(7)), r"b must be torch.float32 \[7\], got bfloat16 \[7\]"),
    ],
)
def test_an_update_that_does_not_fit_is_refused(change, message):
    target = make_tensors(1)
    change(target)
    with pytest.raises(ValueError, match=message):
        check_weights(pack_weights(make_tensors(0)), target)


def test_bytes_that_changed_on_the_way_are_noticed():
    update = pack_weights(make_tensors(0))
    data = update.data.copy()
    data[130] ^= np.uint8(1)
    with pytest.raises(ValueError, match="c arrived with other bytes than were packed"):
        check_weights(replace(update, data=data), make_tensors(1))
