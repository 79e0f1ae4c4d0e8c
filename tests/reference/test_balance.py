"""Quantile balancing of a model's routers over micro-steps and ranks.

The quantile itself, and that a skewed router comes into balance: tests/reference/test_quantile.py.
"""

import pytest
import torch
from learner_cases import make_batch, make_config, make_loss, make_model, sweep_step

from segue.learner.balance import load_violation, router_biases, update_biases


@pytest.mark.parametrize(("micro_step_tokens", "num_ranks"), [(64, 1), (200, 2), (128, 3)])
def test_any_split_into_micro_steps_and_ranks_gives_the_same_bias(micro_step_tokens, num_ranks):
    model, batch = make_model(make_config()), make_batch([300, 64, 65, 1, 200])
    biases = router_biases(model)
    before = [bias.clone() for bias in biases]
    moved = []
    for tokens, ranks in [(1000, 1), (micro_step_tokens, num_ranks)]:
        _, results = sweep_step(
            model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=tokens, num_ranks=ranks
        )
        histogram = sum(result.tokens.route_histogram for result in results)
        update_biases(biases, histogram, model.config.num_experts_per_token)
        moved.append(torch.stack(biases))
        for bias, start in zip(biases, before, strict=True):
            bias.copy_(start)
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], torch.stack(before))


def test_biases_are_the_models_own_in_order_of_depth():
    model = make_model(make_config())
    names = [name for name, _ in model.named_buffers()]
    assert names == [f"model.layers.{i}.block_sparse_moe.gate.e_score_correction_bias" for i in (1, 2, 3)]
    for bias, (_, buffer) in zip(router_biases(model), model.named_buffers(), strict=True):
        assert bias is buffer


def test_load_violation_equals_a_hand_worked_example():
    # means 2 and 4: (5 / 2 - 1, 4 / 4 - 1)
    load = torch.tensor([[5, 1, 1, 1], [4, 4, 4, 4]])
    assert load_violation(load) == [1.5, 0.0]
