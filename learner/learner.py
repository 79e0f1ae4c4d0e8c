"""One rank of the learner: batches in, updated and published weights out.

groups -> batch (the same on all ranks) -> schedule -> sweeps -> checks -> router biases -> update
"""

import json
import shutil
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from segue.conf.schema import OptimizerConfig, Precision, SegueConfig
from segue.learner.backend import DeepSpeedBackend, join_ranks
from segue.learner.balance import router_biases, update_biases
from segue.learner.batch import TokenBatch
from segue.learner.cost import pair_cost
from segue.learner.failure import InexactError, NonFiniteError, failure_paths, save_failure
from segue.learner.measure import Metrics, join_sums, policy_metrics, policy_sums, router_metrics
from segue.learner.optimizer import build_adamw, learning_rate
from segue.learner.policy_batch import make_policy_batch, make_policy_loss
from segue.learner.pretrain import make_imitation_batch, make_imitation_loss
from segue.learner.probe import PROBE_EVERY, bias_log_ratios
from segue.learner.schedule import MicroStep, RankSchedule, SegmentSchedule
from segue.learner.segment_module import SegmentModule
from segue.learner.sweeps import LossFunction, SweepResult, run_sweeps
from segue.model.checkpoint import export_checkpoint, import_checkpoint
from segue.model.network import SegueModel, build_model
from segue.model.safetensors_writer import write_safetensors
from segue.model.weights import WeightUpdate, pack_weights
from segue.rollout.trajectory import Group, PolicyVersion

_STATE_FILE, _FACTS_FILE = "state.safetensors", "facts.json"
_DTYPES = {Precision.fp32: torch.float32, Precision.bf16: torch.bfloat16}


class Learner:
    """Every rank is asked the same, with the same arguments, at the same time."""

    def __init__(self, config: SegueConfig, *, rank: int, address: tuple[str, int], initial_model: Path | None) -> None:
        """Join the other ranks and take up the first weights.

        Args:
            config: of the run; `cluster.learner_ranks` ranks join.
            rank: of this process.
            address: host and port where rank 0 listens.
            initial_model: exported model to start from; None draws weights from `config.seed`.
        """
        self._config = config
        self._rank = rank
        join_ranks(rank, config.cluster.learner_ranks, address, config.learner.step_timeout_s)
        self._model = _first_model(config, initial_model)
        self._biases = router_biases(self._model)
        self._backend = DeepSpeedBackend(
            SegmentModule(self._model, config.learner.balance.num_bins),
            lambda parameters: build_adamw(parameters, config.learner.optimizer),
            zero_stage=config.learner.zero_stage,
            grad_clip=config.learner.optimizer.grad_clip,
        )
        self._pair_cost = pair_cost(config.model)

    def train_step(self, groups: Sequence[Group], *, step: int, restored_steps: Sequence[int]) -> Metrics:
        """One reinforcement step on a batch of groups; metrics of all ranks together.

        Args:
            groups: the same on every rank, in the same order.
            step: updates that the weights have seen.
            restored_steps: see `staleness.is_fresh`; the last incarnation is the present one.
        Raises:
            NonFiniteError, InexactError: a check failed; the weights are as they were.
        """
        learner = self._config.learner
        version = PolicyVersion(len(restored_steps) - 1, step)
        batch = make_policy_batch(groups, learner, version, restored_steps, self._config.train.max_staleness)
        counts: Metrics = {
            "learner/trajectories/run": len(batch.tokens.lengths),
            "learner/trajectories/skipped": batch.num_skipped,
            "learner/trajectories/infrastructure": batch.num_infrastructure,
            "learner/tokens/counted": batch.num_trained_tokens,
            "learner/tokens/stale": batch.num_stale_tokens,
        }
        if not batch.tokens.lengths:
            return counts | {"update/applied/count": 0.0}
        lr = learning_rate(step, self._config.train.steps, learner.optimizer)
        own, result, metrics = self._update(batch.tokens, make_policy_loss(batch, learner), learner.optimizer, lr, step)
        logprob, behaviour = result.tokens.logprob[own], batch.behaviour_logprob[own]
        sums = self._join(policy_sums(logprob, behaviour, result.tokens.entropy[own], learner.loss))
        return counts | metrics | policy_metrics(sums, self._max((logprob - behaviour).abs()))

    def imitate_step(self, groups: Sequence[Group], *, step: int) -> Metrics:
        """One imitation step on demonstrations; metrics of all ranks together.

        Args:
            groups: of demonstrations, the same on every rank.
            step: updates that the weights have seen.
        """
        pretrain = self._config.pretrain
        tokens = make_imitation_batch([trajectory for group in groups for trajectory in group.trajectories])
        counts: Metrics = {"learner/trajectories/run": len(tokens.lengths), "learner/tokens/counted": tokens.num_labels}
        if not tokens.lengths:
            return counts | {"update/applied/count": 0.0}
        lr = learning_rate(step, pretrain.steps, pretrain.optimizer)
        own, result, metrics = self._update(tokens, make_imitation_loss(tokens), pretrain.optimizer, lr, step)
        entropy = self._join({"entropy": result.tokens.entropy[own].sum()})["entropy"]
        return counts | metrics | {"policy/entropy/mean_nats": entropy / tokens.num_labels}

    def published(self) -> WeightUpdate | None:
        """Parameters and buffers in their own dtypes as one flat buffer; rank 0 only."""
        tensors = self._backend.published()
        return pack_weights(tensors) if self._rank == 0 else None

    def export(self, folder: Path) -> None:
        """Write the published weights as a model folder that another implementation reads."""
        tensors = self._backend.published()
        if self._rank == 0:
            model = build_model(self._config.model, _DTYPES[self._config.learner.precision])
            model.load_state_dict(tensors)
            export_checkpoint(model, folder)

    def save(self, folder: Path) -> None:
        """Write masters, optimiser state and router biases into an existing folder; rank 0 writes for all."""
        state = self._backend.optimizer_state()
        if self._rank == 0:
            state |= {f"buffer/{name}": buffer for name, buffer in self._model.named_buffers()}
            write_safetensors(folder / _STATE_FILE, state)
            (folder / _FACTS_FILE).write_text(json.dumps({"num_updates": self._backend.num_updates}) + "\n")

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote, on any number of ranks."""
        state = load_file(folder / _STATE_FILE)
        facts = json.loads((folder / _FACTS_FILE).read_text())
        self._leave_zero_gradient()
        self._backend.load_optimizer_state(state, facts["num_updates"])
        for name, buffer in self._model.named_buffers():
            buffer.copy_(state[f"buffer/{name}"])

    def _update(
        self, tokens: TokenBatch, loss_fn: LossFunction, optimizer: OptimizerConfig, lr: float, step: int
    ) -> tuple[Tensor, SweepResult, Metrics]:
        """Sweep, check, balance and update.

        Returns:
            Numbers of this rank's labels, its sweeps' result, and metrics of all ranks.
        """
        start = time.perf_counter()
        schedule = self._plan(tokens)
        result = run_sweeps(
            self._backend,
            schedule,
            tokens,
            loss_fn,
            is_exact=self._config.learner.exact_backend,
            counts_routes=self._config.learner.balance.live,
        )
        self._refuse_non_finite(result, step)
        gauge = self._refuse_inexact(result)
        load = self._backend.sum_over_ranks(result.tokens.expert_load)
        bias_kl = self._balance(tokens, schedule, result, step)
        grad_norm = self._backend.step(optimizer, lr)
        assert isfinite(grad_norm), grad_norm
        num_tokens = sum(tokens.lengths)
        metrics: Metrics = {
            "update/loss/total": self._join({"loss": torch.tensor(result.loss)})["loss"],
            "update/gradient/norm": grad_norm,
            "update/learning_rate/value": lr,
            **router_metrics(load),
            "router/bias_kl/mean_nats": bias_kl,
            "learner/gauge/max_nats": gauge,
            "learner/micro_steps/swept": len(schedule.swept),
            "learner/micro_steps/last": len(schedule.last),
            "learner/tokens/run": num_tokens,
            "learner/tokens/per_s": num_tokens / (time.perf_counter() - start),
            "update/applied/count": 1.0,
        }
        return tokens.label_numbers(schedule.trajectories), result, metrics

    def _plan(self, tokens: TokenBatch) -> RankSchedule:
        learner = self._config.learner
        schedule = SegmentSchedule.build(
            tokens.lengths,
            self._config.cluster.learner_ranks,
            learner.segment_tokens,
            learner.micro_step_tokens,
            pair_cost=self._pair_cost,
        )
        return schedule.ranks[self._rank]

    def _balance(self, tokens: TokenBatch, schedule: RankSchedule, result: SweepResult, step: int) -> float | None:
        """Move the router's biases, and in some steps measure what that alone changes; None in the others."""
        if not self._config.learner.balance.live:
            return None
        histogram = self._backend.sum_over_ranks(result.tokens.route_histogram)
        update_biases(self._biases, histogram, self._config.model.num_experts_per_token)
        if step % PROBE_EVERY:
            return None
        log_ratio = bias_log_ratios(self._backend, schedule, tokens, result.tokens.logprob)
        # non-negative estimate of KL(before || after) from samples of before
        sums = self._join({"kl": (log_ratio.exp() - 1.0 - log_ratio).sum(), "tokens": torch.tensor(len(log_ratio))})
        return sums["kl"] / sums["tokens"] if sums["tokens"] else None

    def _refuse_non_finite(self, result: SweepResult, step: int) -> None:
        has_failed = self._max(torch.tensor([0.0 if result.failure is None else 1.0])) > 0
        if not has_failed:
            return
        assert self._config.run.dir is not None
        micro_step, model = failure_paths(Path(self._config.run.dir), step, self._rank)
        if result.failure is not None:
            save_failure(result.failure, micro_step)
        if self._rank == 0:
            shutil.rmtree(model, ignore_errors=True)
        self.export(model)
        if result.failure is None:
            raise NonFiniteError(f"another rank's loss or gradient is not finite in step {step}; see {model.parent}")
        trajectories = [segment.trajectory for segment in result.failure.step.segments]
        raise NonFiniteError(
            f"loss or gradient is not finite in step {step}, trajectories {trajectories} of the batch; the weights are "
            f"as before. To see where: python -m segue.learner.failure {micro_step} {model}"
        )

    def _refuse_inexact(self, result: SweepResult) -> float | None:
        """The gauge over all ranks, in nats; None where no segment ran twice."""
        ran_twice = self._max(torch.tensor([0.0 if result.gauge is None else 1.0])) > 0
        if not ran_twice:
            return None
        gauge = self._max(torch.tensor([result.gauge or 0.0]))
        tolerance = self._config.learner.gauge_tolerance
        if gauge > tolerance:
            raise InexactError(
                f"both runs of a segment must agree to {tolerance} nats, got {gauge}; find the operator that is not "
                "deterministic, or set learner.exact_backend=false with a tolerance"
            )
        return gauge

    def _leave_zero_gradient(self) -> None:
        """Complete a step's gradients with zeros."""
        nothing = TokenBatch.pack([], [], [])
        schedule = RankSchedule(trajectories=(), swept=(), last=(MicroStep(segments=()),))
        loss_fn = make_imitation_loss(nothing)
        run_sweeps(self._backend, schedule, nothing, loss_fn, is_exact=True, counts_routes=False)

    def _join(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return join_sums(sums, self._backend.sum_over_ranks)

    def _max(self, values: Tensor) -> float:
        """Largest of all ranks' values; at least 0; infinite where one is not a number."""
        finite = torch.nan_to_num(values.double(), nan=float("inf"))
        return float(self._backend.max_over_ranks(torch.cat([finite, finite.new_zeros(1)]).max()))


def _first_model(config: SegueConfig, initial_model: Path | None) -> SegueModel:
    model = build_model(config.model, _DTYPES[config.learner.precision])
    model.checkpointing = config.learner.checkpoint
    if initial_model is None:
        model.init_weights(torch.Generator().manual_seed(config.seed))
    else:
        _, initial = import_checkpoint(initial_model)
        model.load_state_dict(initial.state_dict())
    return model
