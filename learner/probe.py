"""How far the move of the router's biases alone shifts the policy, measured on a few tokens of the step."""

from torch import Tensor

from segue.learner.batch import TokenBatch
from segue.learner.schedule import MicroStep, RankSchedule, Segment
from segue.learner.sweeps import Backend, evaluate_tokens

PROBE_EVERY = 10
"""Steps from one probe to the next: of steps of a few thousand tokens each, one forward would be a tenth."""

PROBE_TOKENS = 512
"""Tokens of a rank that are run again after the biases have moved."""


def bias_log_ratios(backend: Backend, schedule: RankSchedule, tokens: TokenBatch, logprob: Tensor) -> Tensor:
    """Log-probability after the move less that before it.

    Args:
        backend: with the moved biases and the weights of the sweeps; all ranks run one forward.
        schedule: of this rank, as it was swept.
        tokens: the step's batch.
        logprob: [labels], before the move.
    Returns:
        [labels in the probe]: beginnings of this rank's first trajectories; empty where it has none.
    """
    beginnings = [segment for step in schedule.swept + schedule.last for segment in step.segments if not segment.start]
    probe: list[Segment] = []
    for segment in beginnings:
        if not probe or sum(s.num_tokens for s in probe) + segment.num_tokens <= PROBE_TOKENS:
            probe.append(segment)
    step = MicroStep(segments=tuple(probe))
    only_probe = RankSchedule(trajectories=schedule.trajectories, swept=(step,), last=())
    numbers = tokens.inputs(step).label_numbers
    return evaluate_tokens(backend, only_probe, tokens).logprob[numbers] - logprob[numbers]
