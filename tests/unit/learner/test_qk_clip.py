"""QK-clip: factors by hand, scores against the bound, what is measured when, and how it is joined over ranks."""

import itertools

import pytest
import torch
from learner_cases import make_batch, make_config, make_loss, make_model, sweep_step

from segue.conf.schema import MuonConfig, OptimizerConfig, OptimizerKind
from segue.kernels.mla.naive import naive_mla_max_logits
from segue.learner.muon import Muon
from segue.learner.optimizer import build_optimizer, muon_blocks
from segue.learner.qk_clip import clip_factors, logit_metrics
from segue.learner.segment_module import unpack_outputs
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel
from segue.model.routing import Routing
from segue.model.state import DifferentiableState

LENGTHS = [90, 30]


def measured(model: SegueModel, **changes: int) -> torch.Tensor:
    """Largest scores of all ranks' tokens."""
    batch = make_batch(LENGTHS)
    sizes = {"segment_tokens": 64, "micro_step_tokens": 128} | changes
    _, results = sweep_step(model, batch, make_loss(batch), **sizes)
    return torch.stack([result.tokens.max_logits for result in results]).amax(0)


@torch.no_grad()
def written_out(model: SegueModel) -> torch.Tensor:
    """The only MLA layer's largest scores, from what trajectories that run alone, and whole, give it."""
    found = []

    def look(module, arguments) -> None:
        x, _ = arguments
        q = module.q_b_proj(module.q_a_layernorm(module.q_a_proj(x)))
        latent, shared = module.kv_a_proj_with_mqa(x).split([module.latent_size, module.shared_key_size], dim=1)
        rows = torch.cat([module.kv_a_layernorm(latent), shared], dim=1)
        kv_b = module.kv_b_proj.weight.view(module.num_heads, -1, module.latent_size)
        q = q.view(len(x), module.num_heads, -1)
        borders, none = torch.tensor([0, len(x)]), torch.tensor([0, 0])
        found.append(naive_mla_max_logits(q, rows, rows[:0], kv_b, borders, none, q.shape[2] ** -0.5))

    handle = model.model.layers[1].self_attn.register_forward_pre_hook(look)
    batch = make_batch(LENGTHS)
    for start, end in itertools.pairwise(batch.offsets):
        tokens = PackedInputs.pack([torch.from_numpy(batch.token_ids[start:end])])
        model(tokens, DifferentiableState.zeros(model.config, 1, torch.float64), Routing())
    handle.remove()
    return torch.stack(found).amax(0, keepdim=True)


def test_factors_equal_the_hand_worked_example():
    config = make_config()
    # 2 heads, queries 16 + 8 wide, keys 16, values 16; MLA layers 1 and 3, the first with no head beyond the bound
    scores = torch.tensor([[50.0, 100.0], [50.0, 400.0]])
    factors = clip_factors(scores, 100.0, config)
    path = "model.layers.3.self_attn."
    assert factors.keys() == {path + "q_b_proj.weight", path + "kv_b_proj.weight"}
    assert factors[path + "q_b_proj.weight"].tolist() == [1.0] * 24 + [0.5] * 16 + [0.25] * 8
    assert factors[path + "kv_b_proj.weight"].tolist() == [1.0] * 32 + [0.5] * 16 + [1.0] * 16
    config.q_lora_rank = None
    assert path + "q_proj.weight" in clip_factors(scores, 100.0, config)


def test_every_head_that_was_measured_is_a_metric():
    config, scores = make_config(), torch.tensor([[50.0, 100.0], [50.0, 400.0]])
    of_heads = {f"attention/max_logit/{place}": score for place, score in
                {"1/0": 50.0, "1/1": 100.0, "3/0": 50.0, "3/1": 400.0}.items()}  # fmt: skip
    assert logit_metrics(scores, 100.0, config) == {**of_heads, "attention/clipped/heads": 1.0}
    assert logit_metrics(scores, None, config) == {**of_heads, "attention/clipped/heads": None}
    assert logit_metrics(None, None, config) == {"attention/clipped/heads": None}


def test_layers_where_nothing_was_measured_stay():
    assert clip_factors(torch.full((2, 2), float("-inf")), 1.0, make_config()) == {}


@pytest.mark.parametrize("changes", [{}, {"num_ranks": 2}])
def test_any_split_of_the_tokens_measures_the_scores_of_whole_trajectories(changes):
    model = make_model(make_config(num_hidden_layers=2))
    torch.testing.assert_close(measured(model, **changes), written_out(model), rtol=0, atol=1e-12)


class FlagRecorder(torch.nn.Module):
    """Keeps what each forward was told of measuring, and the smallest of what it found."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.runs: list[tuple[bool, float]] = []

    def forward(self, *inputs):
        outputs = self.module(*inputs)
        self.runs.append((inputs[6], float(unpack_outputs(outputs).max_logits.min())))
        return outputs


def test_scores_are_measured_in_the_first_run_of_a_segment_only():
    recorders: list[FlagRecorder] = []

    def wrap(module: torch.nn.Module) -> torch.nn.Module:
        recorders.append(FlagRecorder(module))
        return recorders[0]

    batch = make_batch(LENGTHS)
    model = make_model(make_config(num_hidden_layers=2))
    sweep_step(model, batch, make_loss(batch), segment_tokens=64, micro_step_tokens=128, wrap=wrap)
    # of 90 tokens, 64 are swept; the last 26 run once with the 30 of the other; then the 64 are rebuilt
    assert [is_told for is_told, _ in recorders[0].runs] == [True, True, False]
    assert [found > float("-inf") for _, found in recorders[0].runs] == [True, True, False]


def test_after_the_clip_no_head_scores_beyond_the_bound_and_others_stay():
    model = make_model(make_config(num_hidden_layers=2))
    before = measured(model)
    # between the heads of the only layer: one is clipped, one is not
    bound = float(before[0].mean())
    optimizer_config = OptimizerConfig(kind=OptimizerKind.muon, lr=0.0, muon=MuonConfig(qk_clip=bound))
    optimizer = build_optimizer(model.named_parameters(), optimizer_config, muon_blocks(model))
    assert isinstance(optimizer, Muon)
    optimizer.row_factors = clip_factors(before, bound, model.config)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    after = measured(model)
    # nothing below the layer has moved: its scores take the factor exactly
    torch.testing.assert_close(after, before.clamp(max=bound), rtol=1e-12, atol=0)
    changed = {name for name, p in model.named_parameters() if not torch.equal(p, start[name])}
    assert changed == set(optimizer.row_factors)
