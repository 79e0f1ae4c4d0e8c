"""The whole model against the published equations, and its laws of state and isolation, in fp64.

Covered: values of every layer kind under the published weight names, with and without K3's features; states handed
over at any token; decoding against the chunk form; packed neighbours. Memory is poisoned (conftest.py). Not covered:
kernels alone (their own tests), rounding in fp32 and bf16 (tests/unit/model/test_network.py).
"""

import pytest
import torch
from model_cases import make_config, make_linear_config, make_model, make_tokens, max_error, run_whole
from slow_model import slow_hidden

from segue.conf.model_config import ModelConfig
from segue.model.checkpoint import checkpoint_tensors
from segue.model.inputs import PackedInputs
from segue.model.pool import StatePool
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

CONFIGS = {
    "k3": make_config(),
    "kimi_linear": make_linear_config(),
    "one_block": make_config(attn_res_block_size=12),
    "no_latent_norm": make_config(latent_moe_use_norm=False, moe_renormalize=False, first_k_dense_replace=2),
}


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_hidden_states_are_those_of_the_published_equations(config: ModelConfig) -> None:
    model = make_model(config)
    sequences = [make_tokens(21, seed=1), make_tokens(9, seed=2)]
    for sequence, hidden in zip(sequences, run_whole(model, sequences), strict=True):
        expected = slow_hidden(checkpoint_tensors(model), config, sequence)
        assert max_error(hidden, expected) < 1e-10


def test_every_feature_changes_the_values() -> None:
    """The comparison above would pass for a feature that neither side reads: each must matter."""
    tokens = make_tokens(9, seed=1)
    weights = checkpoint_tensors(make_model(make_config()))
    base = slow_hidden(weights, make_config(), tokens)
    for changes in (
        {"activation_situ_beta": 1.0},
        {"activation_situ_linear_beta": 0.5},
        {"routed_scaling_factor": 2.0, "latent_moe_use_norm": False},
        {"moe_renormalize": False, "latent_moe_use_norm": False},
        {"num_experts_per_token": 3},
        {"attn_res_block_size": 3},
        {"mla_use_output_gate": False},
        {"rms_norm_eps": 0.1},
        {"qk_norm_eps": 0.1},
    ):
        assert max_error(slow_hidden(weights, make_config(**changes), tokens), base) > 1e-4, changes


@pytest.mark.parametrize("config", [make_config(), make_linear_config()], ids=["k3", "kimi_linear"])
def test_a_state_handed_over_at_any_token_continues_as_if_never_cut(config: ModelConfig) -> None:
    model = make_model(config)
    sequences = [make_tokens(70, seed=1), make_tokens(19, seed=2)]
    whole = torch.cat(run_whole(model, sequences))
    with torch.no_grad():
        for cuts in [(0, 0), (1, 18), (16, 0), (17, 19), (63, 3), (64, 4), (65, 5), (70, 19)]:
            state = DifferentiableState.zeros(config, 2, torch.float64)
            heads = PackedInputs.pack([tokens[:cut] for tokens, cut in zip(sequences, cuts, strict=True)])
            tails = PackedInputs.pack([tokens[cut:] for tokens, cut in zip(sequences, cuts, strict=True)])
            first, after = model(heads, state, Routing())
            second, _ = model(tails, state.extended_by(after), Routing())
            joined = torch.cat([first[: cuts[0]], second[: 70 - cuts[0]], first[cuts[0] :], second[70 - cuts[0] :]])
            assert max_error(joined, whole) < 1e-12, cuts


@pytest.mark.parametrize("config", [make_config(), make_linear_config()], ids=["k3", "kimi_linear"])
def test_decoding_equals_the_chunk_form(config: ModelConfig) -> None:
    model = make_model(config)
    sequences = [make_tokens(50, seed=1), make_tokens(37, seed=2)]
    whole = run_whole(model, sequences)
    pool = StatePool(config, num_slots=3, num_pages=20, page_size=8, dtype=torch.float64)
    pool.allocate()
    slots = [pool.allocate(), pool.allocate()]
    prompts = [30, 17]
    with torch.no_grad():
        view = pool.view(slots)
        hidden, _ = model(
            PackedInputs.pack([tokens[:n] for tokens, n in zip(sequences, prompts, strict=True)]), view, Routing()
        )
        assert max_error(hidden, torch.cat([whole[0][:30], whole[1][:17]])) < 1e-12
        for t in range(20):
            fed = [tokens[n + t : n + t + 1] for tokens, n in zip(sequences, prompts, strict=True)]
            hidden, _ = model(PackedInputs.pack(fed), view, Routing())
            assert max_error(hidden, torch.stack([whole[0][30 + t], whole[1][17 + t]])) < 1e-9, t


def test_no_gradient_crosses_to_a_neighbour() -> None:
    model = make_model(make_config())
    lengths = [13, 1, 40]
    sequences = [make_tokens(length, seed=length) for length in lengths]
    embedded = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    hiddens = run_whole(model, sequences)
    for n, hidden in enumerate(hiddens):
        (gradient,) = torch.autograd.grad(hidden.square().sum(), embedded, retain_graph=True)
        for other, part in enumerate(gradient.split(lengths)):
            assert (part.abs().sum(1) > 0).all() if other == n else (part == 0).all(), (n, other)


def test_no_gradient_flows_back_in_time_to_later_tokens() -> None:
    model = make_model(make_config())
    embedded = []
    model.model.embed_tokens.register_forward_hook(lambda module, args, output: embedded.append(output))
    (hidden,) = run_whole(model, [make_tokens(40, seed=5)])
    (gradient,) = torch.autograd.grad(hidden[17].square().sum(), embedded)
    assert (gradient[18:] == 0).all()
    assert (gradient[:18].abs().sum(1) > 0).all()


def test_an_edited_neighbour_changes_nothing() -> None:
    model = make_model(make_config())
    tokens = make_tokens(33, seed=3)
    with torch.no_grad():
        one = run_whole(model, [make_tokens(13, seed=1), tokens, make_tokens(5, seed=2)])[1]
        two = run_whole(model, [make_tokens(20, seed=4), tokens, make_tokens(64, seed=5), make_tokens(1, seed=6)])[1]
        alone = run_whole(model, [tokens])[0]
    assert max_error(one, alone) < 1e-12
    assert max_error(two, alone) < 1e-12


def test_slow_decay_lets_the_first_token_reach_the_last() -> None:
    """What the isolation tests rely on: information survives, so a leak would be seen."""
    config = make_config()
    model = make_model(config)
    first, second = make_tokens(200, seed=1), make_tokens(200, seed=1)
    second[0] = (second[0] + 1) % 40
    with torch.no_grad():
        states = []
        for tokens in (first, second):
            state = DifferentiableState.zeros(config, 1, torch.float64)
            states.append(model(PackedInputs.pack([tokens]), state, Routing())[1])
    for one, two in zip(states[0].recurrent, states[1].recurrent, strict=True):
        assert max_error(two, one) > 1e-3
