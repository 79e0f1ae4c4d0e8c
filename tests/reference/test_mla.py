"""Latent attention against its reference: ragged packing, prior rows, tiles, neighbours, decoding."""

from collections.abc import Callable

import pytest
import torch
from kernel_check import assert_as_accurate_as_reference, assert_equals_reference
from torch import Tensor

from segue.kernels.mla import tiles
from segue.kernels.mla.decode import absorbed_decode
from segue.kernels.mla.naive import naive_mla_attention, naive_mla_decode, naive_mla_max_logits
from segue.kernels.mla.op import mla_attention, mla_decode, mla_max_logits

SCALE = 0.25
LENGTHS = [
    ([5], [0]),
    ([1], [0]),
    ([1], [7]),
    ([3, 0, 1, 8], [0, 4, 9, 2]),
    ([0, 0], [0, 3]),
    ([63, 64, 65], [0, 0, 0]),
    ([130, 1, 200], [300, 1, 0]),
]
OWN, PRIOR = [40, 0, 1, 25], [9, 3, 30, 0]


def offsets_of(lengths: list[int]) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0)


def make_inputs(own: list[int], prior: list[int], *, small: bool = False) -> list[Tensor]:
    """q, rows, prior_rows, kv_b; head widths that are no powers of two."""
    heads, key, value, latent, shared = (2, 2, 3, 3, 1) if small else (3, 12, 10, 18, 6)
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return [
        normal(sum(own), heads, key + shared),
        normal(sum(own), latent + shared),
        normal(sum(prior), latent + shared),
        normal(heads, key + value, latent) / latent**0.5,
    ]


def pair(own: list[int], prior: list[int]) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    offsets, prior_offsets = offsets_of(own), offsets_of(prior)

    def fast(*inputs: Tensor) -> Tensor:
        return mla_attention(*inputs, offsets, prior_offsets, scale=SCALE)

    def naive(*inputs: Tensor) -> Tensor:
        return naive_mla_attention(*inputs, offsets, prior_offsets, SCALE)

    return fast, naive


@pytest.mark.parametrize(("own", "prior"), LENGTHS)
def test_equals_the_reference_in_fp64(own: list[int], prior: list[int]) -> None:
    assert_equals_reference(*pair(own, prior), make_inputs(own, prior))


@pytest.mark.parametrize(("key_tile", "query_tile"), [(64, 64), (16, 5), (5, 16), (1, 1)])
def test_tiles_change_nothing(key_tile: int, query_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEY_TILE", key_tile)
    monkeypatch.setattr(tiles, "QUERY_TILE", query_tile)
    assert_equals_reference(*pair(OWN, PRIOR), make_inputs(OWN, PRIOR))


@pytest.mark.parametrize(("own", "prior"), LENGTHS)
@pytest.mark.parametrize(("key_tile", "query_tile"), [(512, 128), (16, 5)])
def test_largest_scores_are_those_of_the_reference(
    own: list[int], prior: list[int], key_tile: int, query_tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiles, "KEY_TILE", key_tile)
    monkeypatch.setattr(tiles, "QUERY_TILE", query_tile)
    inputs, borders = make_inputs(own, prior), (offsets_of(own), offsets_of(prior))
    found = mla_max_logits(*inputs, *borders, scale=SCALE)
    torch.testing.assert_close(found, naive_mla_max_logits(*inputs, *borders, SCALE), rtol=1e-13, atol=1e-13)
    assert bool(found.isfinite().all()) == bool(sum(own))


def test_a_score_with_a_later_key_is_none() -> None:
    # only shared keys, 1 and 5: scores are 3 * 1 of the first query with itself, 2 * 1 and 2 * 5 of the second with
    # both, while 3 * 5 lies in the future
    q, rows = torch.tensor([[[0.0, 3.0]], [[0.0, 2.0]]]), torch.tensor([[0.0, 1.0], [0.0, 5.0]])
    offsets, none = torch.tensor([0, 2]), torch.tensor([0, 0])
    found = mla_max_logits(q, rows, rows[:0], torch.zeros(1, 2, 1), offsets, none, scale=0.5)
    assert found.tolist() == [5.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("own", "prior"), [([500, 65], [0, 0]), ([64, 1, 100], [600, 63, 0])])
def test_is_as_accurate_as_the_reference(own: list[int], prior: list[int], dtype: torch.dtype) -> None:
    assert_as_accurate_as_reference(*pair(own, prior), make_inputs(own, prior), dtype)


@pytest.mark.parametrize("key_tile", [512, 2])
def test_backward_passes_gradcheck(key_tile: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEY_TILE", key_tile)
    own, prior = [3, 0, 2], [2, 1, 0]
    inputs = [tensor.requires_grad_() for tensor in make_inputs(own, prior, small=True)]
    for operator in pair(own, prior):
        assert torch.autograd.gradcheck(operator, inputs)


def test_large_scores_stay_finite() -> None:
    inputs = make_inputs(OWN, PRIOR)
    inputs[0] *= 1e3
    assert_equals_reference(*pair(OWN, PRIOR), inputs)


def test_a_sequence_gets_no_gradient_from_another_or_from_the_future() -> None:
    q, rows, prior_rows, kv_b = make_inputs(OWN, PRIOR)
    leaves = [q.requires_grad_(), rows.requires_grad_(), prior_rows.requires_grad_()]
    # the 11th token of the last sequence: rows 41..51 are seen, nothing of the prior (that sequence has none)
    pair(OWN, PRIOR)[0](*leaves, kv_b)[51].sum().backward()
    assert rows.grad is not None and prior_rows.grad is not None and q.grad is not None
    assert torch.equal(rows.grad.abs().sum(1) > 0, (torch.arange(66) >= 41) & (torch.arange(66) <= 51))
    assert torch.equal(prior_rows.grad, torch.zeros_like(prior_rows))
    assert torch.equal(q.grad.abs().sum((1, 2)) > 0, torch.arange(66) == 51)


def test_an_edited_neighbour_leaves_the_bits_alone() -> None:
    def run(inputs: list[Tensor]) -> list[Tensor]:
        leaves = [tensor.float().requires_grad_() for tensor in inputs[:3]]
        out = pair(OWN, PRIOR)[0](*leaves, inputs[3].float())
        return [out, *torch.autograd.grad(out.square().sum(), leaves)]

    inputs = make_inputs(OWN, PRIOR)
    edited = [tensor.clone() for tensor in inputs]
    # first sequence: own rows 0..39, prior rows 0..8
    for tensor, end in zip(edited[:3], (40, 40, 9), strict=True):
        tensor[:end] = 3.0
    for before, after, end in zip(run(inputs), run(edited), (40, 40, 40, 9), strict=True):
        assert torch.equal(before[end:], after[end:]) and not torch.equal(before[:end], after[:end])


def test_own_and_prior_rows_are_one_history() -> None:
    # a segment after 30 carried rows equals the tail of the whole sequence, output and gradient of the rows
    inputs = make_inputs([50], [0])
    whole = [tensor.requires_grad_() for tensor in inputs]
    out = pair([50], [0])[0](*whole)
    (grad_whole,) = torch.autograd.grad(out[30:].sum(), whole[1])
    rows = inputs[1].detach()
    carried, own = rows[:30].clone().requires_grad_(), rows[30:].clone().requires_grad_()
    tail = pair([20], [30])[0](inputs[0][30:].detach(), own, carried, inputs[3].detach())
    grads = torch.autograd.grad(tail.sum(), (carried, own))
    assert torch.allclose(tail, out[30:], rtol=1e-12, atol=1e-13)
    assert torch.allclose(torch.cat(grads), grad_whole, rtol=1e-12, atol=1e-13)


def test_same_input_twice_and_no_grad_mode_give_the_same_bits() -> None:
    inputs = [tensor.float().requires_grad_() for tensor in make_inputs(OWN, PRIOR)]
    fast, _ = pair(OWN, PRIOR)
    first = fast(*inputs)
    with torch.no_grad():
        assert torch.equal(fast(*inputs), first)
    grads = torch.autograd.grad(first.sum(), inputs)
    again = torch.autograd.grad(fast(*inputs).sum(), inputs)
    assert all(torch.equal(one, two) for one, two in zip(grads, again, strict=True))


def test_output_is_at_least_fp32() -> None:
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        inputs = [tensor.to(dtype) for tensor in make_inputs(OWN, PRIOR)]
        assert pair(OWN, PRIOR)[0](*inputs).dtype == expected


def make_pages(lengths: list[int], page_size: int, rows: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Pages in shuffled order whose unwritten places hold large numbers, and the table."""
    num_pages = [-(-length // page_size) for length in lengths]
    order = torch.randperm(sum(num_pages) + 2, generator=torch.Generator().manual_seed(8)).tolist()
    pages = torch.full((len(order), page_size, rows[0].shape[1]), 1e4, dtype=rows[0].dtype)
    table = torch.full((len(lengths), max(num_pages)), order.pop())
    for n, sequence in enumerate(rows):
        for i, part in enumerate(sequence.split(page_size)):
            table[n, i] = page = order.pop()
            pages[page, : len(part)] = part
    return pages, table


@pytest.mark.parametrize("page_size", [1, 4, 64])
def test_decoding_equals_the_reference_and_the_last_query_of_attention(page_size: int) -> None:
    # page borders at 4 and 64, one below and one above; a sequence of one row
    lengths = [1, 3, 4, 5, 63, 64, 65, 130]
    q, rows, none, kv_b = make_inputs(lengths, [0] * 8)
    pages, table = make_pages(lengths, page_size, list(rows.split(lengths)))
    last = offsets_of(lengths)[1:] - 1
    out = mla_decode(q[last], pages, table, torch.tensor(lengths), kv_b, scale=SCALE)
    expected = naive_mla_decode(q[last], pages, table, torch.tensor(lengths), kv_b, SCALE)
    whole = pair(lengths, [0] * 8)[0](q, rows, none, kv_b)
    assert torch.allclose(out, expected, rtol=1e-11, atol=1e-12)
    assert torch.allclose(out, whole[last], rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("pages_at_once", [1, 2, 5])
def test_decoding_in_tiles_equals_the_reference(pages_at_once: int) -> None:
    # sequences that end before, at and after the borders of tiles
    lengths, page_size = [1, 4, 5, 8, 9, 20, 21, 65], 4
    q, rows, _, kv_b = make_inputs(lengths, [0] * 8)
    pages, table = make_pages(lengths, page_size, list(rows.split(lengths)))
    last = offsets_of(lengths)[1:] - 1
    # columns that no sequence reaches
    table = torch.cat([table, table[:, :1].expand(-1, 7)], 1)
    out = absorbed_decode(q[last], pages, table, torch.tensor(lengths), kv_b, SCALE, pages_at_once * page_size)
    expected = naive_mla_decode(q[last], pages, table, torch.tensor(lengths), kv_b, SCALE)
    assert torch.allclose(out, expected, rtol=1e-11, atol=1e-12)


def test_decoding_in_bf16_gives_fp32_close_to_the_reference() -> None:
    lengths = [33, 64, 7]
    q, rows, _, kv_b = (tensor.bfloat16() for tensor in make_inputs(lengths, [0] * 3))
    pages, table = make_pages(lengths, 16, list(rows.split(lengths)))
    last = offsets_of(lengths)[1:] - 1
    out = mla_decode(q[last], pages, table, torch.tensor(lengths), kv_b, scale=SCALE)
    expected = naive_mla_decode(q[last].double(), pages, table, torch.tensor(lengths), kv_b.double(), SCALE)
    assert out.dtype == torch.float32
    assert (out - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_decoding_is_bit_identical_when_a_neighbour_or_an_unwritten_row_is_edited() -> None:
    lengths, page_size = [33, 64, 7, 65], 16
    q, rows, _, kv_b = (tensor.float() for tensor in make_inputs(lengths, [0] * 4))
    last = offsets_of(lengths)[1:] - 1
    outs = []
    for neighbour, padding in ((1.0, 0.0), (-2.0, 1e4)):
        own = list(rows.split(lengths))
        own[1] = own[1] * neighbour
        pages, table = make_pages(lengths, page_size, own)
        pages[pages == 1e4] = padding
        query = q[last].clone()
        query[1] *= neighbour
        outs.append(mla_decode(query, pages, table, torch.tensor(lengths), kv_b, scale=SCALE))
    assert not torch.equal(outs[0][1], outs[1][1])
    assert torch.equal(outs[0][[0, 2, 3]], outs[1][[0, 2, 3]])
