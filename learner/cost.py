"""What a token costs beside what its attention to earlier tokens costs: the balance between ranks needs their ratio."""

from segue.conf.model_config import ModelConfig
from segue.model.describe import CONTEXT_LENGTHS, describe


def pair_cost(config: ModelConfig) -> float:
    """Operations of one (query, key) pair of latent attention over those of a token without any."""
    flops = describe(config)["flops_per_token"]
    short, long = CONTEXT_LENGTHS[0], CONTEXT_LENGTHS[-1]
    per_pair = (flops["prefill"][long] - flops["prefill"][short]) / (long - short)
    return per_pair / (flops["matmul"] + flops["kda_state"])
