"""On CPU a token's results have the same bits whatever tokens are computed beside it: alone, among few, among many.

Sizes are chosen so that an operator's forms for few and for many tokens are all met, and so that vectors have rests.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from segue.kernels.attn_res.op import attn_res_mix
from segue.kernels.common.product import linear
from segue.kernels.kda.op import kda, kda_step
from segue.kernels.mla.decode import absorbed_decode
from segue.kernels.mla.op import mla_attention
from segue.kernels.moe.op import experts, route
from segue.kernels.norm.op import gated_head_norm, rms_norm
from segue.kernels.short_conv.op import short_conv, short_conv_step
from segue.kernels.situ.op import situ_glu, swiglu
from segue.rollout.sampling import sample

NUM_ROWS = 300
DECAYS = {"A_log_H": torch.tensor([0.1, -0.1, 0.0]), "dt_bias": torch.linspace(-10.0, -9.0, 96), "lower_bound": -5.0}


def draw(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(7 + sum(shape)))


# MKL's strict mode, which several threads need, is of Intel's processors
NUM_THREADS = [1, 2] if "GenuineIntel" in Path("/proc/cpuinfo").read_text() else [1]


@pytest.fixture(autouse=True, params=NUM_THREADS)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


def subsets(size: int) -> list[Tensor]:
    """Rows in any order: one, few, many, all."""
    generator = torch.Generator().manual_seed(0)
    counts = [1, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 100, 171, size]
    return [torch.randperm(size, generator=generator)[:count] for count in counts if count <= size]


def multiply(x: Tensor, num_outputs: int) -> Tensor:
    return linear(x, draw(num_outputs, x.shape[1]))


def rows_of_routes(logits: Tensor) -> Tensor:
    routes = route(logits, draw(32) * 0.1, top_k=4, renormalize=True, scaling=2.5, replay_ids=None)
    return torch.cat([routes.scores, routes.expert_ids, routes.weights, routes.cutoff[:, None]], 1)


def weigh_experts(z: Tensor, logits: Tensor) -> Tensor:
    routes = route(logits, draw(32) * 0.1, top_k=4, renormalize=True, scaling=2.5, replay_ids=None)
    matrices = draw(32, 48, 20), draw(32, 48, 20) * 0.5, draw(32, 20, 48)
    return experts(z, routes.expert_ids, routes.weights, *matrices, beta=4.0, linear_beta=25.0)


def step_kda(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, beta: Tensor, state: Tensor) -> Tensor:
    o, new_state = kda_step(q, k, v, gates, beta, state_NHVK=state, **DECAYS)
    return torch.cat([o.flatten(1), new_state.flatten(1)], 1)


def step_conv(x: Tensor, state: Tensor) -> Tensor:
    y, new_state = short_conv_step(x, draw(33, 4), state)
    return torch.cat([y, new_state.flatten(1)], 1)


def decode_mla(q: Tensor, table: Tensor, lengths: Tensor, tile_rows: int) -> Tensor:
    # as wide as the longest of those at hand needs
    width = -(-int(lengths.max()) // 16)
    return absorbed_decode(q, draw(NUM_ROWS * 4, 16, 56), table[:, :width], lengths, draw(3, 60, 40), 0.2, tile_rows)


LENGTHS = torch.from_numpy(np.random.default_rng(0).integers(1, 700, NUM_ROWS))
TABLE = torch.from_numpy(np.random.default_rng(1).integers(0, NUM_ROWS * 4, (NUM_ROWS, 44)))
R = NUM_ROWS
OF_ROWS: dict[str, tuple[Callable[..., Tensor], tuple[Tensor, ...]]] = {
    "one output": (lambda x: multiply(x, 1), (draw(R, 96),)),
    "few outputs": (lambda x: multiply(x, 3), (draw(R, 96),)),
    "many outputs": (lambda x: multiply(x, 579), (draw(R, 96),)),
    "many inputs": (lambda x: multiply(x, 40), (draw(R, 1000),)),
    "rms_norm": (lambda x: rms_norm(x, draw(97), 1e-5), (draw(R, 97),)),
    "gated_head_norm": (lambda o, g: gated_head_norm(o, g, draw(11), 1e-5), (draw(R, 3, 11), draw(R, 33))),
    "attn_res_mix": (lambda *x: attn_res_mix(x, draw(96), draw(96), 1e-5), tuple(draw(R, 96) * i for i in (1, 2, 3))),
    "situ_glu": (lambda g, u: situ_glu(g, u, 4.0, 25.0), (draw(R, 47), draw(R, 47) * 2)),
    "swiglu": (swiglu, (draw(R, 47), draw(R, 47) * 2)),
    "route": (rows_of_routes, (draw(R, 32),)),
    "experts": (weigh_experts, (draw(R, 20), draw(R, 32))),
    "kda_step": (step_kda, (*(draw(R, 3, 32) * i for i in (1, 2, 3, 4)), draw(R, 3), draw(R, 3, 32, 32))),
    "short_conv_step": (step_conv, (draw(R, 33), draw(R, 3, 33))),
    "mla_decode": (lambda *x: decode_mla(*x, tile_rows=2048), (draw(R, 3, 36), TABLE, LENGTHS)),
    "mla_decode in tiles": (lambda *x: decode_mla(*x, tile_rows=96), (draw(R, 3, 36), TABLE, LENGTHS)),
    "sample": (lambda x, n: torch.stack(sample(x, n), 1), (draw(R, 501), draw(R).double().sigmoid())),
}


@pytest.mark.parametrize("name", OF_ROWS)
def test_a_rows_bits_are_its_own(name: str) -> None:
    operator, inputs = OF_ROWS[name]
    among_all = operator(*inputs)
    for rows in subsets(NUM_ROWS):
        assert torch.equal(operator(*(x[rows] for x in inputs)), among_all[rows]), len(rows)


SEQUENCES = (1, 2, 3, 5, 15, 16, 17, 31, 33, 64, 65, 100, 129, 257, 511, 600)
PRIOR = (0, 700, 3, 513, 64, 0, 1, 40, 200, 0, 511, 90, 0, 300, 7, 512)


def pack(sequences: Sequence[int], lengths: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Indices of the sequences' tokens in the pack of all, and the offsets of a pack of theirs."""
    ends = np.cumsum([0, *lengths])
    own = [torch.arange(ends[n], ends[n + 1]) for n in sequences]
    return torch.cat(own), torch.tensor([0, *np.cumsum([len(tokens) for tokens in own])])


def feed_kda(sequences: Sequence[int]) -> list[Tensor]:
    tokens, offsets = pack(sequences, SEQUENCES)
    total = sum(SEQUENCES)
    q, k, v, gates = (draw(total, 3, 32)[tokens] * i for i in (1, 2, 3, 4))
    state = draw(len(SEQUENCES), 3, 32, 32)[list(sequences)]
    o, new_state = kda(q, k, v, gates, draw(total, 3)[tokens], state_NHVK=state, offsets_N=offsets, **DECAYS)
    pieces = o.split(offsets.diff().tolist())
    return [torch.cat([own.flatten(), last.flatten()]) for own, last in zip(pieces, new_state, strict=True)]


def feed_conv(sequences: Sequence[int]) -> list[Tensor]:
    tokens, offsets = pack(sequences, SEQUENCES)
    x, state = draw(sum(SEQUENCES), 33)[tokens], draw(len(SEQUENCES), 3, 33)[list(sequences)]
    y, new_state = short_conv(x, draw(33, 4), state, offsets)
    pieces = y.split(offsets.diff().tolist())
    return [torch.cat([own.flatten(), last.flatten()]) for own, last in zip(pieces, new_state, strict=True)]


def feed_mla(sequences: Sequence[int]) -> list[Tensor]:
    (tokens, offsets), (prior, prior_offsets) = pack(sequences, SEQUENCES), pack(sequences, PRIOR)
    q, rows, prior_rows = draw(sum(SEQUENCES), 3, 36)[tokens], draw(sum(SEQUENCES), 56)[tokens], draw(sum(PRIOR), 56)
    o = mla_attention(q, rows, prior_rows[prior], draw(3, 60, 40), offsets, prior_offsets, scale=0.2)
    return list(o.split(offsets.diff().tolist()))


@pytest.mark.parametrize("operator", [feed_kda, feed_conv, feed_mla])
def test_a_sequences_bits_are_its_own(operator: Callable[[Sequence[int]], list[Tensor]]) -> None:
    num = len(SEQUENCES)
    among_all = operator(range(num))
    random = np.random.default_rng(0)
    for sequences in [
        *([n] for n in range(num)),
        *(random.permutation(num)[:count].tolist() for count in (2, 3, 5, 9)),
    ]:
        for n, result in zip(sequences, operator(sequences), strict=True):
            assert torch.equal(result, among_all[n]), (n, sequences)
