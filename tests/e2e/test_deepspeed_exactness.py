"""Gradients and updates through DeepSpeed against plain torch, on one and two ranks, fp32 and bf16.

The reference runs each trajectory alone and whole. Both sides take the reference's experts, so that no flipped choice
hides in a bound. What runs DeepSpeed are real processes (deepspeed_rank.py).
"""

import copy
import json
from pathlib import Path

import pytest
import torch
from learner_cases import (
    make_batch,
    make_config,
    make_critic,
    make_loss,
    make_model,
    rms_errors,
    whole_step,
    with_routes,
    worst_error,
)
from muon_cases import moved_matrix
from rank_processes import run_ranks
from safetensors.torch import load_file, save_file

from segue.learner.optimizer import muon_blocks

# all ranks run before the first test
pytestmark = pytest.mark.timeout(900)
SCRIPT = Path(__file__).with_name("deepspeed_rank.py")

# five segments of 64, one trajectory of a single token; on two ranks, the second runs out of segments and idles
LENGTHS = [257, 64, 65, 1, 130]
STAGES, RANKS = (1, 2, 3), (1, 2)
# entries of a tensor below which the error of one bf16 run is luck
_FEW = 8
SGD_LR, ADAMW_LR, CLIP = 3e-4, 3e-3, 50.0
# layer 0 begins the first block, where there is nothing to mix yet
UNUSED = ("model.layers.0.self_attention_res_norm.weight", "model.layers.0.self_attention_res_proj.weight")
IDLE_EXPERT = ("model.layers.1.block_sparse_moe.experts.w1", 0)
LONG = {"lengths": [8192], "segment_tokens": 64, "micro_step_tokens": 64, "config": {"num_hidden_layers": 2}}
# whole parameters, and partitioned ones, whose hooks must fire on idle ranks too
CRITIC_STAGES = (1, 3)

SHORT = {"lengths": LENGTHS, "segment_tokens": 64, "micro_step_tokens": 128, "config": {}, "has_critic": False}
SGD = {
    "optimizer": "sgd",
    "lr": SGD_LR,
    "weight_decay": 0.0,
    "clip": 0.0,
    "num_updates": 2,
    "dtype": "float32",
    **SHORT,
}
CASES = {
    "sgd": SGD,
    "clipped": SGD | {"clip": CLIP, "num_updates": 1},
    "adamw": SGD | {"optimizer": "adamw", "lr": ADAMW_LR},
    # of two ranks, one has no trajectory at all
    "alone": SGD | {"lengths": [130], "num_updates": 1},
}
CRITIC = SGD | {"num_updates": 1, "has_critic": True}
BFLOAT16 = SGD | {"dtype": "bfloat16", "num_updates": 1}
# cut anywhere by the partitions of two ranks; the clip reaches the momentum too
MUON = SGD | {"optimizer": "muon", "lr": 3e-3, "weight_decay": 0.1, "clip": CLIP, "routes": "routes-sgd.safetensors"}
MUON_CASES = {f"muon-{stage}": MUON | {"stage": stage} for stage in STAGES}
MUON_CASES["muon-bf16"] = MUON | {"stage": 1, "lr": 0.1, "num_updates": 1, "dtype": "bfloat16"}


class Reference:
    """Updates in plain torch; keeps gradients, parameters and experts."""

    def __init__(self, case: dict) -> None:
        model = make_model(make_config(**case["config"]), torch.float32)
        self.start = {name: p.detach().clone() for name, p in model.named_parameters()}
        self.gradients, self.parameters, self.norms, self.routes = [], [], [], {}
        if case["optimizer"] == "sgd":
            optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=case["lr"])
        else:
            optimizer = torch.optim.AdamW(model.parameters(), lr=case["lr"], betas=(0.9, 0.95), weight_decay=0.0)
        for update in range(case["num_updates"]):
            batch = make_batch(case["lengths"], seed=update)
            critic = make_critic(model) if case["has_critic"] else None
            gradients, _, self.routes[str(update)] = whole_step(model, batch, make_loss(batch), critic)
            self.gradients.append(gradients)
            for name, parameter in model.named_parameters():
                parameter.grad = gradients[name].clone()
            bound = case["clip"] or float("inf")
            self.norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), bound)))
            optimizer.step()
            self.parameters.append({name: p.detach().clone() for name, p in model.named_parameters()})


def rounded_gradients(case: dict, routes: torch.Tensor | None) -> tuple[dict, dict, torch.Tensor]:
    """Whole gradients at weights rounded to bf16: computed in fp64, computed in bf16, and the experts taken."""
    model = make_model(make_config(**case["config"]), torch.bfloat16)
    exact = copy.deepcopy(model).double()
    batch = make_batch(case["lengths"])
    if routes is not None:
        batch = with_routes(batch, routes)
    truth, _, routes = whole_step(exact, batch, make_loss(batch))
    batch = with_routes(batch, routes)
    return truth, whole_step(model, batch, make_loss(batch))[0], routes


@pytest.fixture(scope="module")
def long_gradients() -> tuple[dict, dict, torch.Tensor]:
    return rounded_gradients(LONG, None)


@pytest.fixture(scope="module")
def references() -> dict[str, Reference]:
    return {name: Reference(case) for name, case in (CASES | {"critic": CRITIC}).items()}


@pytest.fixture(scope="module")
def results(references, long_gradients, tmp_path_factory) -> Path:
    """Folder of what every case left behind, two ranks first."""
    folder = tmp_path_factory.mktemp("deepspeed")
    for name, reference in references.items():
        save_file(reference.routes, folder / f"routes-{name}.safetensors")
    save_file({"0": long_gradients[2]}, folder / "routes-long.safetensors")
    for num_ranks in reversed(RANKS):
        cases = [
            case | {"name": f"{name}-{stage}-{num_ranks}", "stage": stage, "routes": f"routes-{name}.safetensors"}
            for stage in STAGES
            for name, case in CASES.items()
        ]
        cases += [
            CRITIC | {"name": f"critic-{stage}-{num_ranks}", "stage": stage, "routes": "routes-critic.safetensors"}
            for stage in CRITIC_STAGES
        ]
        cases += [
            BFLOAT16 | {"name": f"bf16-{stage}-{num_ranks}", "stage": stage, "routes": "routes-sgd.safetensors"}
            for stage in (1, 2)
        ]
        if num_ranks == 2:
            cases += [case | {"name": name} for name, case in MUON_CASES.items()]
        else:
            cases.append(BFLOAT16 | LONG | {"name": "bf16-long", "stage": 1, "routes": "routes-long.safetensors"})
        (folder / f"cases-{num_ranks}.json").write_text(json.dumps(cases))
        run_ranks(SCRIPT, num_ranks, folder)
    return folder


def read(folder: Path, name: str, update: int, kind: str) -> dict[str, torch.Tensor]:
    prefix = f"{update}/{kind}/"
    tensors = load_file(folder / f"{name}.safetensors")
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def facts(folder: Path, name: str, rank: int) -> list[dict]:
    return json.loads((folder / f"{name}-{rank}.json").read_text())


both = pytest.mark.parametrize("num_ranks", RANKS)
every_stage = pytest.mark.parametrize("stage", STAGES)


@both
@every_stage
def test_segmented_gradients_through_deepspeed_equal_whole_ones(results, references, stage, num_ranks):
    gradients = read(results, f"sgd-{stage}-{num_ranks}", 0, "gradient")
    error, name = worst_error(gradients, references["sgd"].gradients[0])
    assert error <= 1e-5, name
    # every parameter but the named ones had a gradient to compare
    assert {name for name, g in gradients.items() if not g.any()} == set(UNUSED)
    name, expert = IDLE_EXPERT
    assert not gradients[name][expert].any()


@both
@pytest.mark.parametrize("stage", CRITIC_STAGES)
def test_values_send_their_whole_gradient_through_deepspeed(results, references, stage, num_ranks):
    gradients = read(results, f"critic-{stage}-{num_ranks}", 0, "gradient")
    error, name = worst_error(gradients, references["critic"].gradients[0])
    assert error <= 1e-5, name
    assert gradients["value_head.weight"].all()
    gauges = [facts(results, f"critic-{stage}-{num_ranks}", rank)[0]["gauge"] for rank in range(num_ranks)]
    assert gauges == [0.0] * num_ranks
    # what is published is the model alone
    published = read(results, f"critic-{stage}-{num_ranks}", 0, "parameter")
    assert published.keys() == read(results, f"sgd-{stage}-{num_ranks}", 0, "parameter").keys()


@every_stage
def test_a_rank_without_trajectories_changes_nothing(results, references, stage):
    error, name = worst_error(read(results, f"alone-{stage}-2", 0, "gradient"), references["alone"].gradients[0])
    assert error <= 1e-5, name
    idle = sorted(all(facts(results, f"alone-{stage}-2", rank)[0]["is_dummy"]) for rank in (0, 1))
    assert idle == [False, True]


@both
@every_stage
def test_both_runs_of_a_segment_are_bit_equal(results, stage, num_ranks):
    for rank in range(num_ranks):
        assert [entry["gauge"] for entry in facts(results, f"sgd-{stage}-{num_ranks}", rank)] == [0.0, 0.0]
    if num_ranks == 2:
        idle = [sum(facts(results, f"sgd-{stage}-2", rank)[0]["is_dummy"]) for rank in range(2)]
        # 257 tokens are four swept micro-steps on one rank, 65 and 130 make two on the other
        assert sorted(idle) == [0, 2]


@both
@every_stage
def test_sgd_moves_every_parameter_as_plain_torch_does(results, references, stage, num_ranks):
    reference = references["sgd"]
    moved = read(results, f"sgd-{stage}-{num_ranks}", 1, "parameter")
    for name, start in reference.start.items():
        wanted = reference.parameters[1][name]
        move = float((wanted - start).square().mean().sqrt())
        rounding = torch.finfo(torch.float32).eps * float(start.abs().max())
        assert (move > 4 * rounding) == (name not in UNUSED), name
        error = float((moved[name] - wanted).abs().max())
        # two roundings of the parameter beside the relative bound
        assert error <= 1e-5 * move + 2 * rounding, name
    name, expert = IDLE_EXPERT
    assert torch.equal(moved[name][expert], reference.start[name][expert])


@both
@every_stage
def test_adamw_moves_every_parameter_as_plain_torch_does(results, references, stage, num_ranks):
    reference = references["adamw"]
    moved = read(results, f"adamw-{stage}-{num_ranks}", 1, "parameter")
    num_compared = 0
    for name, wanted in reference.parameters[1].items():
        smallest = torch.minimum(*(gradients[name].abs() for gradients in reference.gradients))
        rms = max(float(gradients[name].square().mean().sqrt()) for gradients in reference.gradients)
        is_clear = smallest > 1e-4 * rms
        # AdamW divides a gradient by its own size, and so turns the gradient's error of 1e-5 RMS into this share of lr
        bound = ADAMW_LR * (1e-4 + 4e-5 * rms / smallest) + 2e-7 * float(wanted.abs().max())
        error = (moved[name] - wanted).abs()
        assert bool((error <= bound)[is_clear].all()), name
        num_compared += int(is_clear.sum())
    # all but the unused pair, idle experts, ids that never occur, and a stray element in a thousand
    assert num_compared > 0.8 * sum(tensor.numel() for tensor in reference.start.values())


@both
@every_stage
def test_clipping_is_by_the_global_norm_of_the_raw_gradient(results, references, stage, num_ranks):
    reference, name = references["clipped"], f"clipped-{stage}-{num_ranks}"
    norm = facts(results, name, 0)[0]["grad_norm"]
    assert reference.norms[0] > 2 * CLIP
    assert norm == pytest.approx(reference.norms[0], rel=1e-5)
    # what is looked at before the update is no less: gradients come out averaged over ranks
    bounds = [facts(results, name, rank)[0]["grad_bound"] for rank in range(num_ranks)]
    assert norm <= sum(bounds) / num_ranks < float("inf")
    moved = read(results, name, 0, "parameter")
    for key, start in reference.start.items():
        wanted = reference.parameters[0][key]
        rounding = torch.finfo(torch.float32).eps * float(start.abs().max())
        move = float((wanted - start).square().mean().sqrt())
        assert float((moved[key] - wanted).abs().max()) <= 1e-5 * move + 2 * rounding, key


@pytest.mark.parametrize("name", MUON_CASES)
def test_muon_moves_by_its_definition_whatever_the_partitions_cut(results, name):
    case = MUON_CASES[name]
    model = make_model(make_config(), getattr(torch, case["dtype"]))
    blocks = muon_blocks(model)
    start = {key: p.detach().double() for key, p in model.named_parameters()}
    gradients: dict[str, list[torch.Tensor]] = {key: [] for key in start}
    for update in range(case["num_updates"]):
        raw = {key: g.double() for key, g in read(results, name, update, "gradient").items()}
        norm = sum(float(g.square().sum()) for g in raw.values()) ** 0.5
        assert norm > 2 * CLIP
        assert facts(results, name, 0)[update]["grad_norm"] == pytest.approx(norm, rel=1e-5)
        for key, gradient in raw.items():
            gradients[key].append(gradient * (CLIP / norm))
    moved = read(results, name, case["num_updates"] - 1, "parameter")
    for key, steps in gradients.items():
        if key in blocks:
            wanted = moved_matrix(start[key], steps, blocks[key], lr=case["lr"], decay=0.1, momentum=0.9)
        else:
            parameter = torch.nn.Parameter(start[key].clone())
            decay = 0.1 if key == "lm_head.weight" else 0.0
            optimizer = torch.optim.AdamW([parameter], lr=case["lr"], betas=(0.9, 0.95), weight_decay=decay)
            for parameter.grad in steps:
                optimizer.step()
            wanted = parameter.detach()
        move = float((wanted - start[key]).square().mean().sqrt())
        epsilon = torch.finfo(moved[key].dtype).eps
        rounding = epsilon * float(wanted.abs().max())
        assert (move > 4 * epsilon * float(start[key].square().mean().sqrt())) == (key not in UNUSED), key
        assert float((moved[key] - wanted).abs().max()) <= 1e-4 * move + 2 * rounding, key


@both
@pytest.mark.parametrize("stage", [1, 2])
def test_bf16_keeps_wide_parameters_wide_and_errs_like_plain_bf16(results, references, stage, num_ranks):
    name = f"bf16-{stage}-{num_ranks}"
    wide = ("A_log", "dt_bias", "conv1d.weight", "o_norm.weight", "e_score_correction_bias")
    for key, tensor in read(results, name, 0, "parameter").items():
        assert tensor.dtype == (torch.float32 if key.endswith(wide) else torch.bfloat16), key
    truth, own, _ = rounded_gradients(SHORT, references["sgd"].routes["0"])
    errors = rms_errors(read(results, name, 0, "gradient"), truth)
    plain = rms_errors(own, truth)
    typical = sum(plain.values()) / len(plain)
    for key, error in plain.items():
        # a gradient of two entries may be right by luck: plain bf16 is then no measure of itself
        bound = max(error, typical) if truth[key].numel() < _FEW else error
        assert errors[key] <= 2 * bound, key


def test_128_segments_in_bf16_err_at_most_twice_as_much_as_one(results, long_gradients):
    truth, own, _ = long_gradients
    # RMS, since the largest of a few elements is luck
    errors = rms_errors(read(results, "bf16-long", 0, "gradient"), truth)
    for key, error in rms_errors(own, truth).items():
        assert errors[key] <= 2 * error, key
