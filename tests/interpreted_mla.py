"""The GPU kernels of latent attention in Triton's interpreter, on CPU tensors: prints one JSON object of results.

A program of its own, since Triton decides when it is imported whether it interprets: TRITON_INTERPRET=1 must be set.
The interpreter has no bf16 products, so all is fp32, and it is slow: few heads of small widths.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from kernel_check import outputs_and_gradients, relative_error

from segue.kernels.mla import triton_op
from segue.kernels.mla.naive import naive_mla_attention, naive_mla_decode
from segue.kernels.mla.triton_decode import triton_decode

NAMES = ["o", "q", "rows", "prior_rows", "kv_b"]
# widths of keys, shared keys, values and latents; own and prior rows of each sequence
CASES = {
    "packed": ((32, 16, 32, 48), [1, 15, 16, 1, 17, 63, 0, 64, 65], [0] * 9),
    "carried": ((32, 16, 32, 48), [40, 0, 1, 70], [9, 3, 130, 0]),
    "parts": ((16, 16, 16, 24), [140, 3, 70], [150, 1, 0]),
    "tiles": ((16, 16, 16, 24), [140, 3, 70, 0], [150, 1, 0, 5]),
    "widths": ((64, 32, 16, 40), [33, 1], [40, 20]),
}
# numbers of expanded rows, and of score gradients, at once
LIMITS = {"parts": (0, 1 << 30), "tiles": (1 << 28, 2 * 128 * 128 * 2)}
# heads, widths of keys, shared keys, values and latents, rows of a page, rows of each sequence; two or fewer are split
DECODING = {
    "ragged": (3, (32, 16, 32, 48), 64, [1, 3, 63, 64, 65, 130, 300]),
    "split": (2, (16, 8, 16, 24), 16, [200]),
    "ragged splits": (2, (16, 8, 16, 24), 16, [130, 17]),
    "odd pages": (2, (16, 8, 16, 24), 48, [5, 49]),
    "many heads": (20, (16, 64, 16, 64), 16, [5, 90]),
}


def make_offsets(lengths: list[int]) -> tuple[int, ...]:
    """Borders of packed sequences."""
    return 0, *itertools.accumulate(lengths)


def make_inputs(case: str, seed: int = 0) -> list[Tensor]:
    """q, rows, prior_rows, kv_b in fp32."""
    (key, shared, value, latent), own, prior = CASES[case]
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    T, P, H = sum(own), sum(prior), 2
    rows, prior_rows = normal(T, latent + shared), normal(P, latent + shared)
    return [normal(T, H, key + shared), rows, prior_rows, normal(H, key + value, latent) / latent**0.5]


def fast(case: str, *inputs: Tensor) -> Tensor:
    """The kernels, as an operator of tensors."""
    (key, shared, _, _), own, prior = CASES[case]
    return triton_op.triton_mla_attention(
        *inputs, make_offsets(own), make_offsets(prior), (key + shared) ** -0.5
    )  # fmt: skip


def errors(case: str) -> dict[str, tuple[float, float]]:
    """Per tensor: error of the kernels and of plain torch in fp32, both against plain torch in fp64."""
    (key, shared, _, _), own, prior = CASES[case]
    offsets = torch.tensor(make_offsets(own)), torch.tensor(make_offsets(prior))
    inputs = make_inputs(case)
    limits = triton_op.EXPANDED_NUMEL, triton_op.SCORES_NUMEL
    triton_op.EXPANDED_NUMEL, triton_op.SCORES_NUMEL = LIMITS.get(case, limits)
    results = outputs_and_gradients(lambda *x: fast(case, *x), inputs)
    triton_op.EXPANDED_NUMEL, triton_op.SCORES_NUMEL = limits
    naive = lambda *x: naive_mla_attention(*x, *offsets, (key + shared) ** -0.5)  # noqa: E731
    plain, truths = outputs_and_gradients(naive, inputs), outputs_and_gradients(naive, [x.double() for x in inputs])
    rows = zip(NAMES, results, plain, truths, strict=True)
    return {name: (relative_error(a, c), relative_error(b, c)) for name, a, b, c in rows}


def bits() -> dict[str, bool]:
    """Whether what must not matter changes no bit."""
    # own rows 0 to 39, 40, 41 to 110; prior rows 0 to 8, 9 to 11, 12 to 141, none
    inputs, noise = make_inputs("carried"), make_inputs("carried", seed=1)
    operator = lambda *x: fast("carried", *x)  # noqa: E731
    one, two = outputs_and_gradients(operator, inputs), outputs_and_gradients(operator, inputs)
    with torch.no_grad():
        o = operator(*inputs)
    future = [x.clone() for x in inputs]
    for x, y in zip(future[:2], noise[:2], strict=True):
        x[80:] = y[80:]
    o_future = operator(*future)
    neighbour = [x.clone() for x in inputs]
    for x, y, end in zip(neighbour[:3], noise[:3], (40, 40, 9), strict=True):
        x[:end] = y[:end]
    other = outputs_and_gradients(operator, neighbour)
    kept = [torch.equal(a[end:], b[end:]) for a, b, end in zip(one[:4], other[:4], (40, 40, 40, 9), strict=True)]
    q = torch.stack([inputs[0], noise[0]], 1)[:, 0]
    return {
        "two equal calls": all(torch.equal(a, b) for a, b in zip(one, two, strict=True)),
        "gradient mode": torch.equal(one[0], o),
        "the future": torch.equal(o[:80], o_future[:80]) and not torch.equal(o[80:], o_future[80:]),
        "neighbours": all(kept) and not torch.equal(one[0][:40], other[0][:40]),
        "strides": torch.equal(operator(q, *inputs[1:]), o),
    }


def decode(case: str) -> dict[str, float]:
    """Error of the decoding kernel and of plain torch in fp32, and of the kernel after an edit that must not matter."""
    H, (key, shared, value, latent), page_size, lengths = DECODING[case]
    generator = torch.Generator().manual_seed(len(case))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    counts = [-(-length // page_size) for length in lengths]
    pages = normal(sum(counts) + 2, page_size, latent + shared)
    order = torch.randperm(len(pages), generator=generator)
    # columns that no sequence reaches name any page
    table = order[-1].repeat(len(lengths), max(counts) + 1)
    for n, (count, first) in enumerate(zip(counts, make_offsets(counts), strict=False)):
        table[n, :count] = order[first : first + count]
    q, kv_b = normal(len(lengths), H, key + shared), normal(H, key + value, latent) / latent**0.5
    inputs, scale = (q, pages, table, torch.tensor(lengths), kv_b), (key + shared) ** -0.5
    result = triton_decode(*inputs, scale)
    truth = naive_mla_decode(*(x.double() if x.is_floating_point() else x for x in inputs), scale)
    unused = torch.ones(pages.shape[:2], dtype=torch.bool)
    for n, length in enumerate(lengths):
        rows = torch.arange(length)
        unused[table[n, rows // page_size], rows % page_size] = False
    pages[unused] = 1e4
    again = triton_decode(*inputs, scale)
    plain = naive_mla_decode(*inputs, scale)
    return {
        "error": relative_error(result, truth),
        "plain": relative_error(plain, truth),
        "unwritten": float((again - result).abs().max()),
    }


def main() -> None:
    """All results; memory that was not written is NaN."""
    torch.use_deterministic_algorithms(True)
    results = {
        "errors": {case: errors(case) for case in CASES},
        "bits": bits(),
        "decode": {case: decode(case) for case in DECODING},
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
