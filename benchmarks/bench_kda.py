"""KDA on a GPU: checks against fp64 at real sizes, then times; no time is told when a check fails.

    python benchmarks/bench_kda.py --figures kda.json        on a machine with a GPU
    python benchmarks/bench_kda.py --report kda.json         in a clean checkout: writes the report

Checked: outputs, states and every gradient, against the chunk form in fp64, at most twice as wrong as the plain
recurrence in the same dtype; packed lengths with neighbours of length 1; slow, saturated and mixed decay; repeated keys
that are written in full and hardly decay; all head widths; memory that is NaN before it is written; equal bits of equal
calls, with and without gradients; later tokens and neighbours that change no bit.
"""

import itertools
from collections.abc import Callable

import torch
from gpu import captured, check, error, main, median_ms
from report import Row
from torch import Tensor

from segue.kernels.kda.decode import kda_decode
from segue.kernels.kda.naive import naive_kda
from segue.kernels.kda.op import kda

NAMES = ("o", "state", "d_q", "d_k", "d_v", "d_gate_logits", "d_beta_logits", "d_A_log", "d_dt_bias", "d_state")
FLOOR = {torch.bfloat16: 2e-3, torch.float32: 3e-6}
"""Added to twice the recurrence's error; in fp32 what an exponent of a chunk's decay loses."""
PACKED = (1, 15, 16, 1, 17, 63, 64, 1, 65, 500)
CASES = (
    ("mixed", 128, PACKED, torch.bfloat16),
    ("slow", 128, PACKED, torch.bfloat16),
    ("saturated", 128, PACKED, torch.bfloat16),
    ("repeated keys", 128, (500,), torch.bfloat16),
    ("mixed", 64, PACKED, torch.bfloat16),
    ("mixed", 32, PACKED, torch.bfloat16),
    ("slow", 64, (130, 1, 17), torch.float32),
)
DECODE_SHAPES = ((1, 32), (32, 32), (256, 32), (256, 12))
DECODE_MUST_MS = {(256, 32): 0.33}
SHAPES = ((2048, 32), (8192, 32), (32768, 32), (8192, 96))
MUST_MS = {("forward", 8192, 32): 0.45, ("both", 8192, 32): 1.9, ("both", 8192, 96): 5.5, ("forward", 2048, 32): 0.35}


def make_inputs(
    lengths: tuple[int, ...], num_heads: int, width: int, gate: str, dtype: torch.dtype, seed: int = 0
) -> list[Tensor]:
    """q, k, v, gate_logits, beta_logits, A_log, dt_bias, state, random; as `kda` takes them."""
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    T, H, D = sum(lengths), num_heads, width
    tokens = [normal(T, H, D), normal(T, H, D), normal(T, H, D), normal(T, H, D), normal(T, H)]
    spread = torch.rand(H * D, device="cuda", generator=generator)
    # a token's decay: mixed 0.998 to 0.01 over the channels, slow at least 0.99, saturated near e^-5
    bias = {"mixed": 10 * spread - 8, "slow": 3 * spread - 9, "saturated": 0 * spread + 4}.get(gate, 0 * spread - 30)
    if gate == "repeated keys":
        tokens[1] = normal(1, H, D).expand(T, H, D).contiguous()
        tokens[4] = tokens[4] * 0 + 5
    state = 0.1 * normal(len(lengths), H, D, D)
    return [*(x.to(dtype) for x in tokens), 0.1 * normal(H), bias, state]


def make_offsets(lengths: tuple[int, ...]) -> Tensor:
    """Borders of packed sequences, on the CPU."""
    return torch.tensor([0, *itertools.accumulate(lengths)])


def run(form: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor], offsets: Tensor) -> list[Tensor]:
    """Outputs and gradients under fixed random cotangents, in the order of NAMES."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    o, state = form(*leaves, offsets, lower_bound=-5.0)
    generator = torch.Generator("cuda").manual_seed(7)
    cotangents = [torch.randn(x.shape, device="cuda", generator=generator).to(x.dtype) for x in (o, state)]
    return [o.detach(), state.detach(), *torch.autograd.grad([o, state], leaves, cotangents)]


def check_errors() -> list[str]:
    """What is more wrong than allowed."""
    failures = []
    for gate, width, lengths, dtype in CASES:
        inputs, offsets = make_inputs(lengths, 2, width, gate, dtype), make_offsets(lengths)
        truths = run(kda, [x.double() for x in inputs], offsets)
        plain = run(naive_kda, [x.to(dtype) for x in inputs], offsets)
        results = run(kda, inputs, offsets)
        told = []
        for name, result, reference, truth in zip(NAMES, results, plain, truths, strict=True):
            found, allowed = error(result, truth), 2 * error(reference, truth) + FLOOR[dtype]
            told.append(f"{name} {found:.1e}/{allowed:.1e}")
            if not found <= allowed:
                failures.append(
                    f"{gate}, width {width}, {dtype}: {name} is wrong by {found:.2e}, allowed {allowed:.2e}"
                )
        print(f"{gate}, width {width}, {dtype}, error/allowed: " + "  ".join(told), flush=True)
    return failures


def check_bits() -> list[str]:
    """Where equal inputs, or inputs that must not matter, gave other bits."""
    failures = []
    lengths = (40, 200, 1, 90)
    offsets = make_offsets(lengths)
    inputs = make_inputs(lengths, 2, 128, "slow", torch.bfloat16)
    first, second = run(kda, inputs, offsets), run(kda, inputs, offsets)
    failures += [
        f"two equal calls differ in {n}" for n, a, b in zip(NAMES, first, second, strict=True) if a.ne(b).any()
    ]
    with torch.no_grad():
        o, state = kda(*inputs, offsets, lower_bound=-5.0)
    if o.ne(first[0]).any() or state.ne(first[1]).any():
        failures.append("gradient mode changes bits")
    other = make_inputs(lengths, 2, 128, "slow", torch.bfloat16, seed=1)
    # token 150 of the second sequence and what follows it
    for cut, end in ((41, 240), (104, 240), (150, 240), (240, 241)):
        edited = [x.clone() for x in inputs]
        for x, y in zip(edited[:5], other[:5], strict=True):
            x[cut:end] = y[cut:end]
        o_edited, state_edited = kda(*edited, offsets, lower_bound=-5.0)
        if (
            o_edited[:cut].ne(o[:cut]).any()
            or o_edited[end:].ne(o[end:]).any()
            or state_edited[[0, 3]].ne(state[[0, 3]]).any()
        ):
            failures.append(f"editing tokens {cut} to {end} changes others")
        if o_edited[cut:end].eq(o[cut:end]).all():
            failures.append(f"editing tokens {cut} to {end} changes nothing")
    q, k, v = torch.stack(inputs[:3], 1).unbind(1)
    if kda(q, k, v, *inputs[3:], offsets, lower_bound=-5.0)[0].ne(o).any():
        failures.append("strides change bits")
    return failures


def make_decode_inputs(num_sequences: int, num_new: int, num_heads: int, width: int) -> list[Tensor]:
    """Arguments of `kda_decode` in bf16 over a pool of 1.25 times as many slots, in no order."""
    generator = torch.Generator("cuda").manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    N, L, H, D = num_sequences, num_new, num_heads, width
    num_slots = N + N // 4 + 1
    tokens = [normal(N, L, 3 * H * D), normal(N, L, H * D), normal(N, L, H), normal(N, L, H * D)]
    parameters = [0.3 * normal(4, 3 * H * D), 0.1 * normal(H), 2 * normal(H * D) - 3, 1 + 0.1 * normal(D)]
    pools = [normal(num_slots, H, D, D), normal(num_slots, 3, 3 * H * D).bfloat16()]
    slots = torch.randperm(num_slots, device="cuda", generator=generator)[:N]
    return [*(x.bfloat16() for x in tokens), *parameters, *pools, slots]


def check_decode() -> list[str]:
    """What the decoding step computes more wrongly than the operators it joins, and slots that it must not touch."""
    failures = []
    for num_new, width in ((1, 128), (3, 128), (2, 64), (2, 32)):
        inputs = make_decode_inputs(5, num_new, 4, width)
        truths = [x.double() if x.is_floating_point() else x for x in inputs]
        plain = [x.cpu() for x in inputs]
        fast = [x.clone() for x in inputs]
        results = [kda_decode(*x, lower_bound=-5.0, eps=1e-5) for x in (fast, plain, truths)]
        for name, result, reference, truth in (
            ("outputs", *results),
            ("states", fast[8], plain[8], truths[8]),
            ("inputs", fast[9], plain[9], truths[9]),
        ):
            found, allowed = error(result, truth), 2 * error(reference.cuda(), truth) + FLOOR[torch.float32]
            print(f"decode {num_new} tokens, width {width}: {name} {found:.1e}/{allowed:.1e}", flush=True)
            if not found <= allowed:
                failures.append(f"decode, width {width}: {name} are wrong by {found:.2e}, allowed {allowed:.2e}")
        others = torch.ones(len(inputs[8]), dtype=torch.bool, device="cuda").index_fill_(0, inputs[10], False)
        if fast[8][others].ne(inputs[8][others]).any() or fast[9][others].ne(inputs[9][others]).any():
            failures.append(f"decode, width {width}: other slots changed")
    return failures


def time_decode() -> list[Row]:
    """One token of every sequence, eager and as a graph."""
    rows = []
    for num_sequences, num_heads in DECODE_SHAPES:
        inputs = make_decode_inputs(num_sequences, 1, num_heads, 128)

        def step(inputs: list[Tensor] = inputs) -> object:
            return kda_decode(*inputs, lower_bound=-5.0, eps=1e-5)

        must = DECODE_MUST_MS.get((num_sequences, num_heads))
        asked = None if must is None else f"at most {must}"
        title = f"KDA decode with convolution and norm, B {num_sequences}, H {num_heads}"
        for way, call in (("eager", step), ("graph", captured(step).replay)):
            rows.append(Row(name=f"{title}, {way}", value=median_ms(call), unit="ms", must=asked))
        print(f"{title:60} {rows[-2].value:9.4f} ms   graph {rows[-1].value:9.4f} ms   {asked or ''}", flush=True)
    return rows


def time_chunk_form() -> list[Row]:
    """Forward, and forward with backward, eager and as a graph."""
    rows = []
    for num_tokens, num_heads in SHAPES:
        offsets = make_offsets((num_tokens,))
        inputs = [x.requires_grad_() for x in make_inputs((num_tokens,), num_heads, 128, "mixed", torch.bfloat16)]
        cotangents = [torch.randn_like(inputs[2]), torch.randn_like(inputs[7])]

        @torch.no_grad()
        def forward(inputs: list[Tensor] = inputs, offsets: Tensor = offsets) -> object:
            return kda(*inputs, offsets, lower_bound=-5.0)

        def both(
            inputs: list[Tensor] = inputs, offsets: Tensor = offsets, cotangents: list[Tensor] = cotangents
        ) -> object:
            return torch.autograd.grad(kda(*inputs, offsets, lower_bound=-5.0), inputs, cotangents)

        for name, call in (("forward", forward), ("both", both)):
            must = MUST_MS.get((name, num_tokens, num_heads))
            title = f"KDA {'forward' if name == 'forward' else 'forward and backward'}, T {num_tokens}, H {num_heads}"
            asked = None if must is None else f"at most {must}"
            rows.append(Row(name=f"{title}, eager", value=median_ms(call), unit="ms", must=asked))
            rows.append(Row(name=f"{title}, graph", value=median_ms(captured(call).replay), unit="ms", must=asked))
            print(
                f"{rows[-2].name:60} {rows[-2].value:9.4f} ms   graph {rows[-1].value:9.4f} ms   {asked or ''}",
                flush=True,
            )
    return rows


def measure() -> list[Row]:
    """Check, then time.

    Raises:
        SystemExit: a check failed.
    """
    check(check_errors, check_bits, check_decode)
    return [*time_chunk_form(), *time_decode()]


if __name__ == "__main__":
    main("kda", __doc__, measure)
