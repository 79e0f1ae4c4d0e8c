"""KDA's GPU kernels, run by Triton's interpreter on a CPU, against the per-token recurrence in fp64.

Covered: values, states and every gradient in fp32 at small sizes, ragged packing, carried states, slow and saturated
decay, repeated keys, bits that must not change, the fused decoding step, refused sizes. Not covered: bf16 products,
head width 128 and what the compiler makes of the kernels; `benchmarks/bench_kda.py` checks these on a GPU.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tolerances import ERROR_FLOOR, KDA_STRONG_DECAY_ERROR, KDA_STRONG_DECAY_GRADIENT_ERROR, TIMES_NAIVE

from segue.kernels.kda.decode import kda_decode
from segue.kernels.kda.triton_layout import CHUNK, chunk_table

PROGRAM = Path(__file__).parents[1] / "interpreted_kda.py"
CASES = ["packed", "slow", "saturated", "repeated keys", "wide"]


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What the interpreted kernels gave, in a process of their own."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-P", "-W", "ignore", str(PROGRAM)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES)
def test_kernels_and_their_gradients_are_as_accurate_as_the_recurrence(results: dict[str, Any], case: str) -> None:
    for name, (error, error_plain) in results["errors"][case].items():
        bound = TIMES_NAIVE * error_plain + ERROR_FLOOR[torch.float32]
        # exponents of a whole chunk's decay lose digits, and the gradient of strong decay is a small difference
        strong = KDA_STRONG_DECAY_ERROR
        if case == "saturated" and name in ("gate_logits", "A_log", "dt_bias"):
            strong = KDA_STRONG_DECAY_GRADIENT_ERROR
        assert error <= max(bound, strong), (name, error, error_plain)


@pytest.mark.parametrize("what", ["two equal calls", "gradient mode", "later tokens", "neighbours", "strides"])
def test_bits_do_not_depend_on(results: dict[str, Any], what: str) -> None:
    assert results["bits"][what]


@pytest.mark.parametrize("num_new", ["1", "4"])
def test_fused_decoding_equals_the_operators_that_it_joins(results: dict[str, Any], num_new: str) -> None:
    for name, error in results["decode"][num_new].items():
        assert error < ERROR_FLOOR[torch.float32], name


def test_decoding_in_a_pool_continues_each_slot_and_leaves_the_others() -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    N, L, H, D = 2, 3, 2, 4
    tokens = [normal(N, L, 3 * H * D), normal(N, L, H * D), normal(N, L, H), normal(N, L, H * D)]
    parameters = [normal(4, 3 * H * D), normal(H), normal(H * D), normal(D)]
    pools = [normal(3, H, D, D), normal(3, 3, 3 * H * D)]
    together, apart = [x.clone() for x in pools], [x.clone() for x in pools]
    slots = torch.tensor([2, 0])
    y = kda_decode(*tokens, *parameters, *together, slots, lower_bound=-5.0, eps=1e-5)
    for i in range(L):
        one = [x[:, i : i + 1] for x in tokens]
        y_one = kda_decode(*one, *parameters, *apart, slots, lower_bound=-5.0, eps=1e-5)
        assert torch.equal(y[:, i : i + 1], y_one)
    for a, b, before in zip(together, apart, pools, strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a[1], before[1])
        assert not torch.equal(a[[0, 2]], before[[0, 2]])


def test_decoding_refuses_sizes_that_disagree() -> None:
    x = torch.zeros(1, 1, 6)
    pools = [torch.zeros(2, 1, 2, 2), torch.zeros(2, 3, 6)]
    gate, beta, one = torch.zeros(1, 1, 2), torch.zeros(1, 1, 1), torch.zeros(1)
    with pytest.raises(ValueError, match=r"taps must be \[4, 6\], got \[3, 6\]"):
        kda_decode(
            x, gate, beta, gate, torch.zeros(3, 6), one, gate[0, 0], gate[0, 0], *pools, torch.tensor([0]),
            lower_bound=-5.0, eps=1e-5,
        )  # fmt: skip


def test_chunks_lie_sequence_after_sequence_and_the_longest_start_first() -> None:
    table = chunk_table(torch.tensor([0, 3, 3, 3 + CHUNK + 1]), CHUNK + 4, 3, torch.device("cpu"))
    assert table.num_chunks == 3
    # first token of each chunk, and its sequence's end
    assert table.chunks.tolist() == [[0, 3], [3, 68], [67, 68]]
    # sequence, first token, end, first chunk
    assert table.sequences.tolist() == [[2, 3, 68, 1], [0, 0, 3, 0], [1, 3, 3, 1]]


def test_offsets_that_do_not_cover_the_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="offsets must rise from 0 to 4 over 1 sequences"):
        chunk_table(torch.tensor([0, 3]), 4, 1, torch.device("cpu"))
