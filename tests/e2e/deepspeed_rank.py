"""One rank of the DeepSpeed tests, started as a process: runs every case and leaves its tensors in files.

python deepspeed_rank.py <rank> <ranks> <port> <folder>
"""

import json
import sys
from pathlib import Path

import torch
from learner_cases import NUM_BINS, make_batch, make_config, make_critic, make_loss, make_model, with_routes
from safetensors.torch import load_file, save_file

from segue.conf.schema import MuonConfig, OptimizerConfig, OptimizerKind
from segue.learner.backend import DeepSpeedBackend, join_ranks
from segue.learner.optimizer import build_optimizer, muon_blocks
from segue.learner.schedule import SegmentSchedule
from segue.learner.segment_module import SegmentModule
from segue.learner.sweeps import run_sweeps


def build_sgd(named_parameters):
    groups = {}
    for _, parameter in named_parameters:
        groups.setdefault(parameter.dtype, []).append(parameter)
    ordered = sorted(groups.items(), key=lambda item: item[0].itemsize)
    return torch.optim.SGD([{"params": group, "is_decayed": False, "is_muon": False} for _, group in ordered], lr=0.0)


def run_case(case: dict, rank: int, num_ranks: int, folder: Path) -> None:
    """Updates in turn; per update the gradients before it and the parameters after it."""
    config = make_config(**case["config"])
    dtype = getattr(torch, case["dtype"])
    model = make_model(config, dtype)
    kind = OptimizerKind.muon if case["optimizer"] == "muon" else OptimizerKind.adamw
    optimizer = OptimizerConfig(
        kind=kind,
        lr=case["lr"],
        weight_decay=case["weight_decay"],
        grad_clip=case["clip"],
        muon=MuonConfig(momentum=0.9),
    )
    blocks = muon_blocks(model)
    build = build_sgd if case["optimizer"] == "sgd" else lambda named: build_optimizer(named, optimizer, blocks)
    module = SegmentModule(model, NUM_BINS, make_critic(model) if case["has_critic"] else None)
    backend = DeepSpeedBackend(module, build, zero_stage=case["stage"], grad_clip=case["clip"])
    # DeepSpeed's own Muon, imported by now, would have loaded it
    assert "torch._inductor.compile_fx" not in sys.modules
    results, facts, bounds = {}, [], []
    backward = backend.backward

    def keep_bound(scalar: torch.Tensor, *, is_last: bool) -> float:
        bounds.append(backward(scalar, is_last=is_last))
        return bounds[-1]

    backend.backward = keep_bound
    for update in range(case["num_updates"]):
        batch = make_batch(case["lengths"], seed=update)
        batch = with_routes(batch, load_file(folder / case["routes"])[str(update)])
        schedule = SegmentSchedule.build(
            batch.lengths,
            num_ranks,
            case["segment_tokens"],
            case["micro_step_tokens"],
            pair_cost=0.01,
            sweep_all=case["has_critic"],
        ).ranks[rank]
        result = run_sweeps(
            backend, schedule, batch, make_loss(batch), is_exact=True, counts_routes=True, measures_logits=True
        )
        results |= {f"{update}/gradient/{name}": tensor for name, tensor in backend.gradients().items()}
        grad_norm = backend.step(optimizer, case["lr"], {})
        results |= {
            f"{update}/parameter/{name}": backend.published_tensor(name).clone() for name in backend.published_layout()
        }
        if "save" in case and update == 0:
            state = {name: backend.state_tensor(name).clone() for name in backend.state_layout()}
            if rank == 0:
                save_file(state, folder / case["save"])
        is_dummy = [step.is_dummy for step in schedule.swept + schedule.last]
        facts.append({"gauge": result.gauge, "grad_norm": grad_norm, "grad_bound": bounds[-1], "is_dummy": is_dummy})
    if rank == 0:
        save_file(results, folder / f"{case['name']}.safetensors")
    (folder / f"{case['name']}-{rank}.json").write_text(json.dumps(facts))


def main() -> None:
    rank, num_ranks, port, folder = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    join_ranks(rank, num_ranks, ("127.0.0.1", port), timeout_s=120.0, device=torch.device("cpu"))
    for case in json.loads((folder / f"cases-{num_ranks}.json").read_text()):
        run_case(case, rank, num_ranks, folder)


if __name__ == "__main__":
    main()
