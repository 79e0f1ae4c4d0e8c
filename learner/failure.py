"""A micro-step that was not finite: kept with its weights in the run folder, and run again from there.

python -m segue.learner.failure <run>/failures/step-00000012-rank-0.safetensors <run>/failures/step-00000012-model
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from segue.conf.schema import BalanceConfig
from segue.learner.batch import MicroStepInputs
from segue.learner.segment_module import SegmentModule, unpack_outputs
from segue.learner.sweeps import FailedMicroStep
from segue.model.checkpoint import import_checkpoint
from segue.model.value_head import ValueHead


class NonFiniteError(RuntimeError):
    """A loss or a gradient is infinite or not a number; the weights were not updated."""


class DamagedGroupsError(RuntimeError):
    """Files of groups are not what the rollout wrote; nothing was trained."""

    def __init__(self, group_ids: tuple[str, ...]) -> None:
        super().__init__(group_ids)
        self.group_ids = group_ids


class InexactError(RuntimeError):
    """A rebuilt segment differs from the swept one; the weights were not updated."""


def failure_paths(run_dir: Path, step: int, rank: int) -> tuple[Path, Path]:
    """Where a rank's failed micro-step and the weights of the step are kept."""
    folder = run_dir / "failures"
    return folder / f"step-{step:08d}-rank-{rank}.safetensors", folder / f"step-{step:08d}-model"


def save_failure(failure: FailedMicroStep, path: Path, critic: Mapping[str, Tensor]) -> None:
    """Write everything that the micro-step's two runs were given; its segments are in the header.

    Args:
        failure: what happened.
        path: of the file.
        critic: the value head's parameters, which the model's folder does not hold; none without one.
    """
    tensors = {f"inputs/{field.name}": getattr(failure.inputs, field.name) for field in fields(MicroStepInputs)}
    tensors |= {f"state/{i}": tensor for i, tensor in enumerate(failure.state)}
    tensors |= {f"critic/{name}": tensor for name, tensor in critic.items()}
    tensors |= {f"cotangent/{i}": tensor for i, tensor in enumerate(failure.cotangents)}
    path.parent.mkdir(parents=True, exist_ok=True)
    segments = json.dumps([asdict(segment) for segment in failure.step.segments])
    save_file({name: t.contiguous() for name, t in tensors.items()}, path, metadata={"segments": segments})


def reproduce(micro_step: Path, model_folder: Path) -> list[str]:
    """Run a kept micro-step forward and backward in plain torch.

    Returns:
        Names of what is not finite, in the order of the computation: weights, the state before, outputs, cotangents,
        gradients.
    """
    _, model = import_checkpoint(model_folder, must_be_finite=False)
    with safe_open(micro_step, framework="pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
    inputs = MicroStepInputs(**{f.name: stored[f"inputs/{f.name}"] for f in fields(MicroStepInputs)})
    state = _numbered(stored, "state")
    cotangents = _numbered(stored, "cotangent")
    critic = {name.removeprefix("critic/"): t for name, t in stored.items() if name.startswith("critic/")}
    head = None
    if critic:
        head = ValueHead(model.config.hidden_size, model.lm_head.weight.dtype)
        head.load_state_dict(critic)
    module = SegmentModule(model, BalanceConfig().num_bins, head)
    outputs = unpack_outputs(
        module(
            inputs.token_ids,
            inputs.label_positions,
            inputs.label_ids,
            inputs.temperature,
            inputs.offsets,
            False,
            False,
            inputs.replay_ids,
            *state,
        )
    )
    # the state's first two tensors are counts
    named = {"logprob": outputs.logprob, "entropy": outputs.entropy}
    if head is not None:
        named["value"] = outputs.value
    named |= {f"state after, tensor {i}": tensor for i, tensor in enumerate(outputs.state[2:], start=2)}
    names, targets = list(named)[: len(cotangents)], list(named.values())[: len(cotangents)]
    torch.autograd.backward(targets, cotangents)
    findings = [
        *((f"weight {name}", tensor) for name, tensor in module.trained_parameters().items()),
        *((f"state before, tensor {i}", tensor) for i, tensor in enumerate(state)),
        *zip(names, targets, strict=True),
        *((f"cotangent of {name}", tensor) for name, tensor in zip(names, cotangents, strict=True)),
        *((f"gradient of {name}", p.grad) for name, p in module.trained_parameters().items() if p.grad is not None),
    ]
    return [name for name, tensor in findings if not bool(tensor.isfinite().all())]


def _numbered(stored: dict[str, Tensor], kind: str) -> list[Tensor]:
    count = sum(name.startswith(f"{kind}/") for name in stored)
    return [stored[f"{kind}/{i}"] for i in range(count)]


def main() -> None:
    """Print what is not finite, a line each."""
    micro_step, model_folder = (Path(argument) for argument in sys.argv[1:])
    for name in reproduce(micro_step, model_folder) or ["everything is finite"]:
        print(name)


if __name__ == "__main__":
    main()
