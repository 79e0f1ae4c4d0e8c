"""What the GPU kernels of norms, residual mixes, activations, routes and experts compute, by Triton's interpreter.

A program of its own, since Triton decides when it is imported whether it interprets: TRITON_INTERPRET=1 must be set.
Prints a JSON object: names to errors (RMS of the difference over the RMS of the truth in fp64) or to truths.
"""

import json
from typing import Any

import torch
from torch import Tensor

from segue.kernels.attn_res.naive import naive_attn_res_mix
from segue.kernels.attn_res.triton_mix import triton_mix
from segue.kernels.moe.op import experts, route
from segue.kernels.moe.triton_few import few_experts
from segue.kernels.moe.triton_route import triton_route
from segue.kernels.norm.op import rms_norm
from segue.kernels.norm.rate import inverse_rms
from segue.kernels.norm.triton_norm import triton_rms_norm
from segue.kernels.situ.op import situ_glu, swiglu
from segue.kernels.situ.triton_gated import triton_gated

CAPS = (4.0, 25.0)
generator = torch.Generator().manual_seed(0)


def normal(*shape: int, scale: float = 1.0) -> Tensor:
    """Random numbers in fp32."""
    return torch.randn(*shape, generator=generator) * scale


def error(result: Tensor, truth: Tensor) -> float:
    """See above."""
    return float((result.double() - truth).square().mean().sqrt() / truth.square().mean().sqrt())


def norms(found: dict[str, Any]) -> None:
    """Rows of a width that is no power of 2, apart in memory."""
    x, weight = normal(3, 5, 37)[..., :24], normal(24)
    y, rates = triton_rms_norm(x, weight, 1e-6)
    found["norm"] = error(y, rms_norm(x.double(), weight.double(), 1e-6))
    found["norm, rates"] = error(rates, inverse_rms(x.double(), 1e-6))


def mixes(found: dict[str, Any]) -> None:
    """One source, and several of very different sizes."""
    for num_sources in (1, 5):
        sources = [normal(7, 24, scale=4.0**j) for j in range(num_sources)]
        weights = normal(24), normal(24)
        out, scores, rates = triton_mix(sources, *weights, 1e-6)
        wide = [x.double() for x in sources]
        found[f"mix of {num_sources}"] = error(out, naive_attn_res_mix(wide, *(w.double() for w in weights), 1e-6))
        found[f"mix of {num_sources}, rates"] = error(
            rates, torch.stack([inverse_rms(x, 1e-6).squeeze(-1) for x in wide])
        )
        found[f"mix of {num_sources}, softmax"] = error(scores.softmax(0).sum(0), torch.ones(7, dtype=torch.float64))


def activations(found: dict[str, Any]) -> None:
    """Small and large numbers, with and without weights."""
    gate, up = normal(9, 70)[:, :40], normal(9, 40, scale=10.0)
    gate[0] *= 1e-4
    up[0] *= 1e-4
    gate[1] *= 100.0
    found["situ"] = error(triton_gated(gate, up, CAPS), situ_glu(gate.double(), up.double(), *CAPS))
    found["situ, small"] = error(triton_gated(gate, up, CAPS)[0], situ_glu(gate.double(), up.double(), *CAPS)[0])
    weights = normal(9)
    found["swiglu, weighted"] = error(
        triton_gated(gate, up, None, weights), swiglu(gate.double(), up.double()) * weights.double()[:, None]
    )


def routes(found: dict[str, Any]) -> None:
    """Choice, weights and cutoffs, and replayed choices."""
    logits, bias = normal(11, 13), normal(13, scale=0.3)
    kinds: dict[str, Any] = {"top_k": 3, "renormalize": True, "scaling": 2.5}
    given = torch.stack([torch.randperm(13, generator=generator)[:3] for _ in range(11)])
    for name, replay_ids in (("route", None), ("replay", given)):
        with torch.no_grad():
            truth = route(logits.double(), bias.double(), **kinds, replay_ids=replay_ids)
        scores, ids, weights, cutoff = triton_route(logits, bias, **kinds, replay_ids=replay_ids)
        found[f"{name}, ids"] = bool(torch.equal(ids, truth.expert_ids))
        found[f"{name}, scores"] = error(scores, truth.scores)
        found[f"{name}, weights"] = error(weights, truth.weights)
        found[f"{name}, cutoff"] = error(cutoff, truth.cutoff)
    _, ids, _, _ = triton_route(torch.full((2, 13), float("nan")), bias, **kinds, replay_ids=None)
    found["route, ids exist"] = bool(((ids >= 0) & (ids < 13)).all())


def few(found: dict[str, Any]) -> None:
    """Experts with no, few and many tokens."""
    for num_tokens in (1, 60):
        ids = torch.stack([torch.randperm(6, generator=generator)[:3] for _ in range(num_tokens)])
        z, weights = normal(num_tokens, 20), torch.rand(num_tokens, 3, generator=generator)
        w1, w3, w2 = normal(7, 40, 20, scale=0.2), normal(7, 40, 20, scale=0.2), normal(7, 20, 40, scale=0.2)
        wide = [x.double() for x in (z, weights, w1, w3, w2)]
        with torch.no_grad():
            truth = experts(wide[0], ids, *wide[1:], beta=CAPS[0], linear_beta=CAPS[1])
        found[f"experts of {num_tokens}"] = error(few_experts(z, ids, weights, w1, w3, w2, CAPS), truth)


if __name__ == "__main__":
    results: dict[str, Any] = {}
    for part in (norms, mixes, activations, routes, few):
        part(results)
    print(json.dumps(results))
