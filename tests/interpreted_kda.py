"""The GPU kernels of KDA in Triton's interpreter, on CPU tensors: prints one JSON object of results.

A program of its own, since Triton decides when it is imported whether it interprets: TRITON_INTERPRET=1 must be set.
The interpreter has no bf16 products, so all is fp32, and it is slow: few heads of the smallest width.
"""

import itertools
import json
import sys
from pathlib import Path

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))

from kernel_check import outputs_and_gradients, relative_error

from segue.kernels.kda.decode import kda_decode
from segue.kernels.kda.naive import naive_kda
from segue.kernels.kda.triton_decode import triton_decode
from segue.kernels.kda.triton_op import triton_kda

NAMES = ["o", "state", "q", "k", "v", "gate_logits", "beta_logits", "A_log", "dt_bias", "entering"]
CASES = {
    "packed": (32, [1, 15, 16, 1, 17, 63, 0, 64, 65]),
    "slow": (32, [130, 3]),
    "saturated": (32, [100, 1]),
    "repeated keys": (32, [100]),
    "wide": (64, [66]),
}


def make_inputs(case: str, seed: int = 0) -> tuple[list[Tensor], Tensor]:
    """Arguments of `kda` in fp32 and the offsets."""
    width, lengths = CASES[case]
    T, H, D = sum(lengths), 1, width
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    tokens = [normal(T, H, D), normal(T, H, D), normal(T, H, D), normal(T, H, D), normal(T, H)]
    bias = {"slow": -9.0, "saturated": 6.0, "repeated keys": -30.0}.get(case, -3.0) + 2 * normal(H * D)
    if case == "repeated keys":
        # written in full and hardly decaying: a power series for the inverse would lose all digits
        tokens[1] = normal(1, H, D).expand(T, H, D).contiguous()
        tokens[4] += 5
    return [*tokens, 0.1 * normal(H), bias, normal(len(lengths), H, D, D)], make_offsets(lengths)


def make_offsets(lengths: list[int]) -> Tensor:
    """Borders of packed sequences."""
    return torch.tensor([0, *itertools.accumulate(lengths)])


def fast(*inputs: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor]:
    """The kernels, as an operator of tensors."""
    return triton_kda(*inputs, offsets, lower_bound=-5.0)


def errors(case: str) -> dict[str, tuple[float, float]]:
    """Per tensor: error of the kernels and of the recurrence in fp32, both against the recurrence in fp64."""
    inputs, offsets = make_inputs(case)
    truths = outputs_and_gradients(lambda *x: naive_kda(*x, offsets, lower_bound=-5.0), [x.double() for x in inputs])
    plain = outputs_and_gradients(lambda *x: naive_kda(*x, offsets, lower_bound=-5.0), inputs)
    results = outputs_and_gradients(lambda *x: fast(*x, offsets=offsets), inputs)
    rows = zip(NAMES, results, plain, truths, strict=True)
    return {name: (relative_error(a, c), relative_error(b, c)) for name, a, b, c in rows}


def bits() -> dict[str, bool]:
    """Whether what must not matter changes no bit."""
    lengths = [20, 70, 1]
    offsets = make_offsets(lengths)
    inputs, _ = make_inputs("slow")
    inputs = [x[:91] for x in inputs[:5]] + inputs[5:7] + [torch.cat([inputs[7], inputs[7][:1]])]
    operator = lambda *x: fast(*x, offsets=offsets)  # noqa: E731
    one, two = outputs_and_gradients(operator, inputs), outputs_and_gradients(operator, inputs)
    with torch.no_grad():
        o, state = operator(*inputs)
    noise, _ = make_inputs("slow", seed=1)
    edited = [x.clone() for x in inputs]
    for x, y in zip(edited[:5], noise[:5], strict=True):
        x[60:90] = y[60:90]
    o_edited, state_edited = operator(*edited)
    q, k, v = torch.stack(inputs[:3], 1).unbind(1)
    return {
        "two equal calls": all(torch.equal(a, b) for a, b in zip(one, two, strict=True)),
        "gradient mode": torch.equal(one[0], o) and torch.equal(one[1], state),
        "later tokens": torch.equal(o[:60], o_edited[:60]) and not torch.equal(o[60:90], o_edited[60:90]),
        "neighbours": torch.equal(o[90:], o_edited[90:]) and torch.equal(state[::2], state_edited[::2]),
        "strides": torch.equal(operator(q, k, v, *inputs[3:])[0], o),
    }


def decode(num_new: int) -> dict[str, float]:
    """Largest differences from the composed operators, in fp32 over a pool."""
    generator = torch.Generator().manual_seed(num_new)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    N, L, H, D, num_slots = 2, num_new, 2, 32, 4
    tokens = [normal(N, L, 3 * H * D), normal(N, L, H * D), normal(N, L, H), normal(N, L, H * D)]
    parameters = [normal(4, 3 * H * D), 0.1 * normal(H), normal(H * D), normal(D)]
    pools = [normal(num_slots, H, D, D), normal(num_slots, 3, 3 * H * D)]
    slots = torch.tensor([3, 1])
    copies = [x.clone() for x in pools]
    y = triton_decode(*tokens, *parameters, *pools, slots, lower_bound=-5.0, eps=1e-5)
    y_composed = kda_decode(*tokens, *parameters, *copies, slots, lower_bound=-5.0, eps=1e-5)
    pairs = {"y": (y, y_composed), "recurrent": (pools[0], copies[0]), "conv": (pools[1], copies[1])}
    return {name: relative_error(a, b) for name, (a, b) in pairs.items()}


def main() -> None:
    """All results; memory that was not written is NaN."""
    torch.use_deterministic_algorithms(True)
    results = {
        "errors": {case: errors(case) for case in CASES},
        "bits": bits(),
        "decode": {num_new: decode(num_new) for num_new in (1, 4)},
    }
    print(json.dumps(results))


if __name__ == "__main__":
    main()
