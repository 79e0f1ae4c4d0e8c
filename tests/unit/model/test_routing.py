"""Routing: what a forward records, and what it replays."""

import torch
from model_cases import make_config, make_model, make_tokens, run_whole

from segue.model.routing import Routing

NUM_BINS = 16


def test_histogram_counts_every_token_once_per_expert_and_layer() -> None:
    routing = Routing(count=True, num_bins=NUM_BINS)
    run_whole(make_model(make_config()), [make_tokens(7, seed=1), make_tokens(4, seed=2)], routing)
    # 4 MoE layers of 6 experts; each of 11 tokens leaves one margin at each expert
    assert routing.histogram.shape == (4, 6, NUM_BINS)
    assert (routing.histogram.sum(2) == 11).all()


def test_nothing_is_counted_unless_told() -> None:
    routing = Routing(num_bins=NUM_BINS)
    run_whole(make_model(make_config()), [make_tokens(7, seed=1)], routing)
    assert routing.histogram.shape == (4, 6, NUM_BINS)
    assert not routing.histogram.any()


def test_replayed_experts_are_taken_and_recorded_while_statistics_stay_the_routers_own() -> None:
    model, tokens = make_model(make_config()), [make_tokens(9, seed=1)]
    own = Routing(count=True, num_bins=NUM_BINS)
    (free,) = run_whole(model, tokens, own)
    same = Routing(count=True, num_bins=NUM_BINS, replay_ids=own.expert_ids)
    (replayed,) = run_whole(model, tokens, same)
    assert torch.equal(replayed, free)
    assert torch.equal(same.histogram, own.histogram)

    others = (own.expert_ids + 1) % 6
    forced = Routing(count=True, num_bins=NUM_BINS, replay_ids=others)
    (changed,) = run_whole(model, tokens, forced)
    assert torch.equal(forced.expert_ids, others)
    assert not torch.allclose(changed, free)
    # the first MoE layer sees the same input in both, so the same scores
    assert torch.equal(forced.histogram[0], own.histogram[0])


def test_expert_ids_stand_by_token_and_layer() -> None:
    model, tokens = make_model(make_config()), make_tokens(9, seed=1)
    seen = []
    for index in (1, 2, 3, 4):
        model.model.layers[index].block_sparse_moe.gate.register_forward_hook(lambda m, a, logits: seen.append(logits))
    routing = Routing()
    run_whole(model, [tokens], routing)
    for index, logits in enumerate(seen):
        bias = model.model.layers[index + 1].block_sparse_moe.gate.e_score_correction_bias
        expected = (torch.sigmoid(logits) + bias).argsort(dim=1, descending=True)[:, :2]
        assert torch.equal(routing.expert_ids[:, index].sort(1).values, expected.sort(1).values)
