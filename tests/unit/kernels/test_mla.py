"""Memory of latent attention: what outlives a tile. Bad shapes. Values are compared in tests/reference/test_mla.py."""

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from segue.kernels.mla import tiles
from segue.kernels.mla.op import mla_attention, mla_decode

HEADS, KEY, SHARED, VALUE, LATENT = 2, 4, 2, 3, 5


class _Storages(TorchDispatchMode):
    """Records shape and operation of every tensor that does not share memory with a known one."""

    def __init__(self, *known: Tensor) -> None:
        super().__init__()
        self.known = {tensor.untyped_storage().data_ptr() for tensor in known}
        self.alive: list[Tensor] = []
        self.created: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.known.add(tensor.untyped_storage().data_ptr())
                # kept alive, so that no address is used twice
                self.alive.append(tensor)
                self.created.append((str(func), tuple(tensor.shape)))
        return result


def make_inputs(num_tokens: int, num_prior: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    shapes = [
        (num_tokens, HEADS, KEY + SHARED),
        (num_tokens, LATENT + SHARED),
        (num_prior, LATENT + SHARED),
        (HEADS, KEY + VALUE, LATENT),
    ]
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def test_only_the_prior_rows_and_their_gradient_have_the_trajectory_s_length(monkeypatch: pytest.MonkeyPatch) -> None:
    num_tokens, num_prior, tile = 30, 2000, 50
    monkeypatch.setattr(tiles, "KEY_TILE", tile)
    inputs = make_inputs(num_tokens, num_prior)
    with _Storages(*inputs) as storages:
        out = mla_attention(
            *inputs, torch.tensor([0, num_tokens]), torch.tensor([0, num_prior]), scale=0.4
        )  # fmt: skip
        out.sum().backward()
    long = [shape for _, shape in storages.created if max(shape, default=0) > max(tile, num_tokens) * HEADS * 10]
    assert long == [(num_prior, LATENT + SHARED)]
    assert inputs[2].grad is not None and inputs[2].grad.shape == (num_prior, LATENT + SHARED)


def test_saved_for_backward_is_inputs_output_and_one_number_a_query_and_head() -> None:
    inputs = make_inputs(30, 70)
    saved: list[tuple[int, ...]] = []

    def record(tensor: Tensor) -> Tensor:
        saved.append(tuple(tensor.shape))
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        out = mla_attention(*inputs, torch.tensor([0, 30]), torch.tensor([0, 70]), scale=0.4)
    assert sorted(saved) == sorted([*(tuple(tensor.shape) for tensor in inputs), tuple(out.shape), (HEADS, 30, 1)])


def test_keys_that_no_query_of_a_tile_sees_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "KEY_TILE", 10)
    monkeypatch.setattr(tiles, "QUERY_TILE", 10)
    inputs = [tensor.detach() for tensor in make_inputs(40, 0)]
    with _Storages(*inputs) as storages:
        mla_attention(*inputs, torch.tensor([0, 40]), torch.tensor([0, 0]), scale=0.4)
    # 4 query tiles see 1, 2, 3 and 4 key tiles
    assert storages.created.count(("aten.bmm.default", (HEADS, 10, 10))) == 1 + 2 + 3 + 4


@pytest.mark.parametrize(
    ("index", "shape"),
    [(0, (6, HEADS + 1, KEY + SHARED)), (1, (5, LATENT + SHARED)), (2, (4, LATENT)), (3, (HEADS + 1, 7, LATENT))],
)
def test_shapes_that_do_not_fit_are_refused(index: int, shape: tuple[int, ...]) -> None:
    inputs = make_inputs(6, 4)
    inputs[index] = torch.zeros(shape)
    with pytest.raises(ValueError, match="must be"):
        mla_attention(*inputs, torch.tensor([0, 6]), torch.tensor([0, 4]), scale=0.4)


def test_offsets_that_do_not_span_the_rows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must span 6 own and 4 prior rows, got \[0, 5\] and \[0, 4\]"):
        mla_attention(*make_inputs(6, 4), torch.tensor([0, 5]), torch.tensor([0, 4]), scale=0.4)


def test_decoding_refuses_a_table_of_another_batch() -> None:
    q, _, _, kv_b = make_inputs(3, 0)
    pages, table = torch.zeros(4, 8, LATENT + SHARED), torch.zeros(2, 1, dtype=torch.int64)
    with pytest.raises(ValueError, match="must have 3 rows, got 2 and 3"):
        mla_decode(q, pages, table, torch.ones(3, dtype=torch.int64), kv_b, scale=0.4)
