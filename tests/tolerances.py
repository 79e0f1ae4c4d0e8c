"""Bounds of the numeric tests. Loosening one is a decision record.

Error of a tensor: RMS(result - reference) / RMS(reference), the reference in fp64 from the same rounded inputs.
"""

import torch

FP64_ERROR = 1e-10
"""Fast form against the reference, both in fp64, outputs and gradients."""

TIMES_NAIVE = 2.0
"""In fp32 and bf16 a fast form may have this multiple of the reference's error in the same dtype, plus a floor."""

ERROR_FLOOR = {torch.float32: 3e-7, torch.bfloat16: 2e-3}
"""Added to the bound: about 2.5 units of fp32 rounding and half a unit of bf16, since a reference may round luckily."""

KDA_STRONG_DECAY_ERROR = 5e-6
"""KDA in fp32 where log decays sum to -80 over a tile: the exponent loses 80 units of the last place, 80 * 6e-8."""

KDA_STRONG_DECAY_GRADIENT_ERROR = 1e-4
"""There, for the gradient of the decay itself: the small difference of terms that cancel; 4e-5 measured."""

LOGPROB_GAP_NATS = 1e-4
"""Decoding against the learner's sweeps in fp32, largest difference at a token; 3e-6 measured on small models."""

ROUTE_FLIPS = 1e-4
"""Share of (token, layer) at which rollout and learner choose other experts, up to a trajectory's first such token."""
