"""Latent attention on a GPU: checks against fp64 at real sizes, then times; no time is told when a check fails.

    python benchmarks/bench_mla.py --figures mla.json        on a machine with a GPU
    python benchmarks/bench_mla.py --report mla.json         in a clean checkout: writes the report

Checked: outputs and every gradient against plain torch in fp64, at most twice as wrong as plain torch in the same
dtype; packed lengths with neighbours of length 1, carried rows, several parts; decoding over ragged, shuffled pages by
all kernels; memory that is NaN before it is written; equal bits of equal calls, with and without gradients; the future,
neighbours and unwritten rows that change no bit.
"""

import itertools
from collections.abc import Callable

import torch
import torch.nn.functional as F
from gpu import captured, check, error, main, median_ms
from report import Row
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

from segue.kernels.mla import triton_op
from segue.kernels.mla.naive import naive_mla_attention, naive_mla_decode
from segue.kernels.mla.op import mla_attention, mla_decode

NAMES = ("o", "d_q", "d_rows", "d_prior_rows", "d_kv_b")
FLOOR = {torch.bfloat16: 2e-3, torch.float32: 3e-7}
"""Added to twice the error of plain torch."""
FULL, TINY = (128, 64, 128, 512), (32, 16, 32, 48)
"""Widths of keys, shared keys, values and latents."""
PACKED = (1, 15, 16, 1, 17, 63, 64, 1, 65, 500)
CARRIED = (130, 1, 300), (700, 65, 0)
# widths, own and prior rows, dtype, numbers of expanded rows and of score gradients at once
CASES = (
    (FULL, PACKED, (0,) * 10, torch.bfloat16, 1 << 28, 1 << 30),
    (FULL, *CARRIED, torch.bfloat16, 1 << 28, 1 << 30),
    (FULL, *CARRIED, torch.bfloat16, 0, 1 << 18),
    (TINY, *CARRIED, torch.bfloat16, 1 << 28, 1 << 30),
    (TINY, PACKED, (0,) * 10, torch.bfloat16, 1 << 28, 1 << 30),
)
# heads, widths, rows of a page, dtype
DECODE_CASES = (
    (96, FULL, 64, torch.bfloat16),
    (96, FULL, 128, torch.bfloat16),
    (96, FULL, 16, torch.bfloat16),
    (12, FULL, 64, torch.bfloat16),
    (20, TINY, 64, torch.bfloat16),
    (3, TINY, 16, torch.bfloat16),
)
QUERIES, HEADS = 8192, 12
KEYS = (8192, 262144, 1048576)
MOST_OF_LIBRARY = 1.25
# sequences, rows of each, heads
DECODE_SHAPES = ((32, 8192, 96), (1, 65536, 96), (32, 8192, 32), (32, 8192, 12))
DECODE_MUST_MS = {(32, 8192, 96): 0.2}


def make_offsets(lengths: tuple[int, ...]) -> Tensor:
    """Borders of packed sequences, on the CPU."""
    return torch.tensor([0, *itertools.accumulate(lengths)])


def make_inputs(
    own: int, prior: int, num_heads: int, widths: tuple[int, ...], dtype: torch.dtype, seed: int = 0
) -> list[Tensor]:
    """q, rows, prior_rows, kv_b, random; as `mla_attention` takes them."""
    key, shared, value, latent = widths
    generator = torch.Generator("cuda").manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator)

    kv_b = normal(num_heads, key + value, latent) / latent**0.5
    inputs = [normal(own, num_heads, key + shared), normal(own, latent + shared), normal(prior, latent + shared), kv_b]
    return [x.to(dtype) for x in inputs]


def plain_attention(
    q: Tensor, rows: Tensor, prior_rows: Tensor, kv_b: Tensor, offsets: Tensor, prior_offsets: Tensor, scale: float
) -> Tensor:
    """Attention as torch's own operators compute it in the inputs' dtype."""
    outputs, latent = [], kv_b.shape[2]
    key = q.shape[2] - (rows.shape[1] - latent)
    spans = zip(itertools.pairwise(offsets.tolist()), itertools.pairwise(prior_offsets.tolist()), strict=True)
    for (begin, end), (prior_begin, prior_end) in spans:
        history = torch.cat([prior_rows[prior_begin:prior_end], rows[begin:end]])
        expanded = torch.einsum("sl,hcl->hsc", history[:, :latent], kv_b)
        keys = torch.cat([expanded[..., :key], history[:, latent:].expand(len(kv_b), -1, -1)], -1)
        queries = q[begin:end].transpose(0, 1)
        hidden = torch.ones(queries.shape[1], keys.shape[1], dtype=torch.bool, device=q.device)
        hidden = hidden.triu(keys.shape[1] - queries.shape[1] + 1)
        scores = (queries @ keys.mT * scale).masked_fill(hidden, float("-inf"))
        outputs.append((scores.softmax(-1) @ expanded[..., key:]).transpose(0, 1))
    return torch.cat(outputs)


def run(form: Callable[..., Tensor], inputs: list[Tensor]) -> list[Tensor]:
    """Output and gradients under a fixed random cotangent, in the order of NAMES."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    o = form(*leaves)
    cotangent = torch.randn(o.shape, device="cuda", generator=torch.Generator("cuda").manual_seed(7)).to(o.dtype)
    return [o.detach(), *torch.autograd.grad(o, leaves, cotangent)]


def check_errors() -> list[str]:
    """What is more wrong than allowed."""
    failures = []
    for widths, own, prior, dtype, expanded_numel, scores_numel in CASES:
        offsets, scale = (make_offsets(own), make_offsets(prior)), (widths[0] + widths[1]) ** -0.5
        inputs = make_inputs(sum(own), sum(prior), 3, widths, dtype)
        triton_op.EXPANDED_NUMEL, triton_op.SCORES_NUMEL = expanded_numel, scores_numel
        results = run(lambda *x, b=offsets, s=scale: mla_attention(*x, *b, scale=s), inputs)
        triton_op.EXPANDED_NUMEL, triton_op.SCORES_NUMEL = 1 << 28, 1 << 30
        plain = run(lambda *x, b=offsets, s=scale: plain_attention(*x, *b, s), inputs)
        truths = run(lambda *x, b=offsets, s=scale: naive_mla_attention(*x, *b, s), [x.double() for x in inputs])
        title, told = f"{len(own)} sequences, widths {widths}, {dtype}", []
        for name, result, reference, truth in zip(NAMES, results, plain, truths, strict=True):
            if not truth.numel():
                continue
            found, allowed = error(result, truth), 2 * error(reference, truth) + FLOOR[dtype]
            told.append(f"{name} {found:.1e}/{allowed:.1e}")
            if not found <= allowed:
                failures.append(f"{title}: {name} is wrong by {found:.2e}, allowed {allowed:.2e}")
        print(f"{title}, error/allowed: " + "  ".join(told), flush=True)
    return failures


def check_bits() -> list[str]:
    """Where equal inputs, or inputs that must not matter, gave other bits; carried rows' gradients in fp32."""
    failures = []
    own, prior = (40, 200, 1, 90), (300, 0, 70, 129)
    offsets = make_offsets(own), make_offsets(prior)

    def attend(*inputs: Tensor) -> Tensor:
        return mla_attention(*inputs, *offsets, scale=0.07)

    inputs, noise = (make_inputs(sum(own), sum(prior), 3, FULL, torch.bfloat16, seed) for seed in (0, 1))
    first, second = run(attend, inputs), run(attend, inputs)
    failures += [
        f"two equal calls differ in {n}" for n, a, b in zip(NAMES, first, second, strict=True) if a.ne(b).any()
    ]
    with torch.no_grad():
        if attend(*inputs).ne(first[0]).any():
            failures.append("gradient mode changes bits")
    # within the second sequence, whose tokens are 40 to 239
    for cut in (41, 104, 168, 200, 239):
        edited = [x.clone() for x in inputs]
        for x, y in zip(edited[:2], noise[:2], strict=True):
            x[cut:240] = y[cut:240]
        o = attend(*edited)
        if o[:cut].ne(first[0][:cut]).any() or o[240:].ne(first[0][240:]).any():
            failures.append(f"editing tokens {cut} to 240 changes others")
        if o[cut:240].eq(first[0][cut:240]).all():
            failures.append(f"editing tokens {cut} to 240 changes nothing")
    # the first sequence, with its 300 prior rows
    edited = [x.clone() for x in inputs]
    for x, y, end in zip(edited[:3], noise[:3], (40, 40, 300), strict=True):
        x[:end] = y[:end]
    for name, a, b, end in zip(NAMES[:4], first, run(attend, edited), (40, 40, 40, 300), strict=False):
        if a[end:].ne(b[end:]).any() or a[:end].eq(b[:end]).all():
            failures.append(f"a neighbour changes {name}")
    wide = [*inputs[:2], inputs[2].float(), inputs[3]]
    d_prior_rows = run(attend, wide)[3]
    if d_prior_rows.dtype is not torch.float32 or d_prior_rows.bfloat16().ne(first[3]).any():
        failures.append("gradients of prior rows in fp32 differ")
    if d_prior_rows.eq(first[3]).all():
        failures.append("gradients of prior rows in fp32 are rounded")
    return failures


def make_decode_inputs(
    lengths: tuple[int, ...], num_heads: int, widths: tuple[int, ...], page_size: int, dtype: torch.dtype
) -> list[Tensor]:
    """Arguments of `mla_decode` over pages in no order."""
    key, shared, value, latent = widths
    generator = torch.Generator("cuda").manual_seed(3)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device="cuda", generator=generator).to(dtype)

    counts = [-(-length // page_size) for length in lengths]
    pages = normal(sum(counts) + 3, page_size, latent + shared)
    order = torch.randperm(len(pages), device="cuda", generator=generator)
    table = order[-1].repeat(len(lengths), max(counts))
    for n, (count, start) in enumerate(zip(counts, make_offsets(tuple(counts)).tolist(), strict=False)):
        table[n, :count] = order[start : start + count]
    q, kv_b = normal(len(lengths), num_heads, key + shared), normal(num_heads, key + value, latent) / latent**0.5
    return [q, pages, table, torch.tensor(lengths, device="cuda"), kv_b]


def plain_decode(q: Tensor, pages: Tensor, page_table: Tensor, lengths: Tensor, kv_b: Tensor, scale: float) -> Tensor:
    """The absorbed form as torch's own operators compute it in the inputs' dtype."""
    outputs, latent = [], kv_b.shape[2]
    key = q.shape[2] - (pages.shape[2] - latent)
    for n, length in enumerate(lengths.tolist()):
        rows = pages[page_table[n]].flatten(0, 1)[:length]
        latent_q = torch.einsum("hk,hkl->hl", q[n, :, :key], kv_b[:, :key])
        weights = (torch.cat([latent_q, q[n, :, key:]], -1) @ rows.T * scale).softmax(-1)
        outputs.append(torch.einsum("hl,hvl->hv", weights @ rows[:, :latent], kv_b[:, key:]))
    return torch.stack(outputs)


def check_decode() -> list[str]:
    """What decoding computes more wrongly than allowed, and bits that changed without a reason."""
    failures = []
    lengths = (1, 15, 16, 17, 63, 64, 65, 500, 3000)
    for num_heads, widths, page_size, dtype in DECODE_CASES:
        inputs = make_decode_inputs(lengths, num_heads, widths, page_size, dtype)
        scale = (widths[0] + widths[1]) ** -0.5
        result, reference = mla_decode(*inputs, scale=scale), plain_decode(*inputs, scale)
        truth = naive_mla_decode(*(x.double() if x.is_floating_point() else x for x in inputs), scale)
        found, allowed = error(result, truth), 2 * error(reference, truth) + FLOOR[dtype]
        title = f"decode, {num_heads} heads, widths {widths}, pages of {page_size}, {dtype}"
        print(f"{title}: error/allowed {found:.1e}/{allowed:.1e}", flush=True)
        if not found <= allowed:
            failures.append(f"{title}: wrong by {found:.2e}, allowed {allowed:.2e}")
        if mla_decode(*inputs, scale=scale).ne(result).any():
            failures.append(f"{title}: two equal calls differ")
        q, pages, table, counts, kv_b = inputs
        unused = torch.ones(pages.shape[:2], dtype=torch.bool, device="cuda")
        for n, length in enumerate(lengths):
            row = torch.arange(length, device="cuda")
            unused[table[n, row // page_size], row % page_size] = False
        pages = pages.masked_fill(unused.unsqueeze(-1), 1e4)
        # another last sequence beside the same others
        pages[table[-1]] *= 0.5
        edited = mla_decode(q, pages, table, counts, kv_b, scale=scale)
        if edited[:-1].ne(result[:-1]).any() or edited[-1].eq(result[-1]).all():
            failures.append(f"{title}: a neighbour or an unwritten row changes bits")
    return failures


def library_ms(num_keys: int, repeats: int) -> dict[str, tuple[float, float]]:
    """Forward, and forward with backward, of library attention over expanded keys and values, per way."""
    key, shared, value, _ = FULL
    scale = (key + shared) ** -0.5

    def make(num_rows: int, width: int) -> Tensor:
        return torch.randn(1, HEADS, num_rows, width, device="cuda", dtype=torch.bfloat16).requires_grad_()

    def timed(backend: SDPBackend, num_rows: int, is_padded: bool, **mask: object) -> tuple[float, float]:
        q, k = make(QUERIES, key + shared), make(num_rows, key + shared)
        v = make(num_rows, key + shared if is_padded else value)

        def attend() -> Tensor:
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v, scale=scale, **mask)

        cotangent = torch.randn_like(attend())
        with torch.no_grad():
            forward = median_ms(attend, warmups=1, repeats=repeats)
        both = median_ms(lambda: torch.autograd.grad(attend(), (q, k, v), cotangent), warmups=1, repeats=repeats)
        return forward, both

    cudnn, flash = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION
    own = timed(cudnn, QUERIES, False, is_causal=True)
    ways = {"cuDNN, causal": own}
    if num_keys > QUERIES:
        mask = causal_lower_right(QUERIES, num_keys)
        past = timed(cudnn, num_keys - QUERIES, False)
        ways = {
            "cuDNN, past and own segment apart": (own[0] + past[0], own[1] + past[1]),
            "cuDNN, in one": timed(cudnn, num_keys, False, attn_mask=mask),
            "flash, in one": timed(flash, num_keys, True, attn_mask=mask),
        }
    return ways


def time_attention() -> list[Row]:
    """A segment over all keys, expansion and its gradients included, beside library attention alone."""
    rows = []
    key, shared, _, _ = FULL
    for num_keys in KEYS:
        repeats = 20 if num_keys == QUERIES else 5 if num_keys < 1 << 20 else 3
        ways = library_ms(num_keys, repeats)
        torch.cuda.empty_cache()
        inputs = [x.requires_grad_() for x in make_inputs(QUERIES, num_keys - QUERIES, HEADS, FULL, torch.bfloat16)]
        offsets = make_offsets((QUERIES,)), make_offsets((num_keys - QUERIES,))

        def attend(inputs: list[Tensor] = inputs, offsets: tuple[Tensor, Tensor] = offsets) -> Tensor:
            return mla_attention(*inputs, *offsets, scale=(key + shared) ** -0.5)

        cotangent = torch.randn_like(attend())
        with torch.no_grad():
            forward = median_ms(attend, warmups=2, repeats=repeats)
        both = median_ms(
            lambda attend=attend, inputs=inputs, c=cotangent: torch.autograd.grad(attend(), inputs, c),
            warmups=2, repeats=repeats,
        )  # fmt: skip
        for i, (name, value) in enumerate((("forward", forward), ("forward and backward", both))):
            way = min(ways, key=lambda way, i=i: ways[way][i])
            must = f"at most {MOST_OF_LIBRARY} of the peer" if i and num_keys > QUERIES else None
            title = f"MLA {name}, {QUERIES} queries over {num_keys} keys, H {HEADS}"
            rows.append(Row(name=title, value=value, unit="ms", peer=way, peer_value=ways[way][i], must=must))
            print(f"{title:62} {value:9.3f} ms   {way} {ways[way][i]:9.3f} ms  {must or ''}", flush=True)
        print({way: [round(ms, 3) for ms in pair] for way, pair in ways.items()}, flush=True)
        del inputs, cotangent
        torch.cuda.empty_cache()
    return [*rows, *time_packed()]


def time_packed() -> list[Row]:
    """Many short sequences."""
    rows, lengths = [], (512,) * 16
    inputs = [x.requires_grad_() for x in make_inputs(sum(lengths), 0, HEADS, FULL, torch.bfloat16)]
    offsets = make_offsets(lengths), make_offsets((0,) * 16)
    cotangent = torch.randn(sum(lengths), HEADS, FULL[2], device="cuda")

    def both() -> object:
        return torch.autograd.grad(mla_attention(*inputs, *offsets, scale=0.07), inputs, cotangent)

    for way, call in (("eager", both), ("graph", captured(both).replay)):
        title = f"MLA forward and backward, 16 sequences of 512, H {HEADS}, {way}"
        rows.append(Row(name=title, value=median_ms(call), unit="ms"))
        print(f"{title:62} {rows[-1].value:9.3f} ms", flush=True)
    return rows


def time_decode() -> list[Row]:
    """One token of every sequence, projections to and from the latents included, beside torch's products without."""
    rows = []
    for num_sequences, length, num_heads in DECODE_SHAPES:
        inputs = make_decode_inputs((length,) * num_sequences, num_heads, FULL, 64, torch.bfloat16)

        def step(inputs: list[Tensor] = inputs) -> object:
            return mla_decode(*inputs, scale=0.07)

        gathered = torch.randn(num_sequences, length, 576, device="cuda", dtype=torch.bfloat16)
        latent_q = torch.randn(num_sequences, num_heads, 576, device="cuda", dtype=torch.bfloat16)

        def plain(rows: Tensor = gathered, q: Tensor = latent_q) -> object:
            weights = torch.softmax((q @ rows.mT).float() * 0.07, -1).bfloat16()
            return weights @ rows[..., :512]

        peer = median_ms(captured(plain).replay)
        must = DECODE_MUST_MS.get((num_sequences, length, num_heads))
        asked = None if must is None else f"at most {must}"
        title = f"MLA decode, B {num_sequences}, L {length}, H {num_heads}"
        for way, call in (("eager", step), ("graph", captured(step).replay)):
            rows.append(
                Row(
                    name=f"{title}, {way}", value=median_ms(call), unit="ms", peer="torch, graph", peer_value=peer,
                    must=asked if way == "graph" else None,
                )
            )  # fmt: skip
        eager, graph = (row.value for row in rows[-2:])
        print(f"{title:44} {eager:9.4f} ms   graph {graph:9.4f}   torch {peer:9.4f}   {asked or ''}", flush=True)
    return rows


def measure() -> list[Row]:
    """Check, then time.

    Raises:
        SystemExit: a check failed.
    """
    check(check_errors, check_bits, check_decode)
    return [*time_decode(), *time_attention()]


if __name__ == "__main__":
    main("mla", __doc__, measure)
