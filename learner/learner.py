"""One rank of the learner: batches in, updated and published weights out.

summaries -> selection and schedule (the same on all ranks) -> this rank's arrays -> sweeps -> checks -> router biases
-> update
"""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import safe_open
from torch import Tensor, nn

from segue.conf.schema import OptimizerConfig, SegueConfig
from segue.learner import staleness
from segue.learner.backend import LR_RATIO, DeepSpeedBackend, join_ranks
from segue.learner.balance import router_biases, update_biases
from segue.learner.batch import TokenBatch
from segue.learner.cost import pair_cost
from segue.learner.course import Course, most_places
from segue.learner.critic import Judgement, critic_metrics, critic_sums, judge, make_critic_loss
from segue.learner.curriculum import StagePlace, step_settings
from segue.learner.failure import DamagedGroupsError, InexactError, NonFiniteError, failure_paths, save_failure
from segue.learner.first_values import FirstValues
from segue.learner.gradient_norm import component_norms
from segue.learner.learning_rate import learning_rate
from segue.learner.measure import Metrics, join_sums, policy_metrics, policy_sums, router_metrics
from segue.learner.muon_plan import Blocks
from segue.learner.optimizer import build_optimizer, muon_blocks
from segue.learner.policy_batch import PolicyBatch, load_policy_batch, make_policy_loss
from segue.learner.pretrain import make_imitation_batch, make_imitation_loss
from segue.learner.probe import PROBE_EVERY, bias_log_ratios
from segue.learner.qk_clip import clip_factors, logit_metrics
from segue.learner.schedule import MicroStep, RankSchedule, SegmentSchedule
from segue.learner.segment_module import VALUE_HEAD, SegmentModule
from segue.learner.selection import Selection, select_trajectories
from segue.learner.sweeps import LossFunction, StepTokens, SweepResult, evaluate_tokens, run_sweeps
from segue.model.checkpoint import export_checkpoint, import_checkpoint
from segue.model.network import SegueModel, build_model
from segue.model.precision import dtype_of
from segue.model.safetensors_writer import file_order, stream_safetensors
from segue.model.value_head import ValueHead
from segue.model.weights import WeightUpdate, gather_weights
from segue.rollout.stored_group import StoredGroup, TrajectoryFileError, TrajectorySummary
from segue.rollout.trajectory import PolicyVersion

_STATE_FILE, _FACTS_FILE = "state.safetensors", "facts.json"
_BUFFER = "buffer"

Read = TypeVar("Read")


class Learner:
    """Every rank is asked the same, with the same arguments, at the same time."""

    def __init__(
        self,
        config: SegueConfig,
        optimizer: OptimizerConfig,
        *,
        rank: int,
        address: tuple[str, int],
        device: torch.device,
        initial_model: Path | None,
    ) -> None:
        """Join the other ranks and take up the first weights.

        Args:
            config: of the run; `cluster.learner_ranks` ranks join.
            optimizer: the section of it that the run's steps use.
            rank: of this process.
            address: host and port where rank 0 listens.
            device: where this rank computes.
            initial_model: exported model to start from; None draws weights from `config.seed`.
        """
        self._config = config
        self._rank = rank
        join_ranks(rank, config.cluster.num_learner_ranks, address, config.learner.step_timeout_s, device)
        self._optimizer = optimizer
        self._model = _first_model(config, initial_model)
        self._module = SegmentModule(self._model, config.learner.balance.num_bins, _first_critic(config)).to(device)
        self._biases = router_biases(self._model)
        self._backend = DeepSpeedBackend(
            self._module,
            partial(
                _build_optimizer,
                config=optimizer,
                blocks=muon_blocks(self._model),
                critic_lr_ratio=config.learner.critic.lr_ratio,
            ),
            zero_stage=config.learner.zero_stage,
            grad_clip=optimizer.grad_clip,
        )
        self._pair_cost = pair_cost(config.model)
        self._first_values = FirstValues(config.train.max_staleness, self._backend.sum_over_ranks)

    def train_step(self, groups: Sequence[StoredGroup], *, step: int, restored_steps: Sequence[int]) -> Metrics:
        """One reinforcement step on a batch of groups; metrics of all ranks together.

        Args:
            groups: the same on every rank, in the same order.
            step: updates that the weights have seen.
            restored_steps: see `staleness.is_fresh`; the last incarnation is the present one.
        Raises:
            NonFiniteError, InexactError: a check failed; the weights are as they were.
            DamagedGroupsError: see `read_together`.
        """
        learner = self._config.learner
        version = PolicyVersion(len(restored_steps) - 1, step)
        is_fresh = partial(
            staleness.is_fresh,
            version=version,
            restored_steps=restored_steps,
            max_staleness=self._config.train.max_staleness,
        )
        selection = select_trajectories(groups, learner, is_fresh)
        counts: Metrics = {
            "learner/trajectories/run": len(selection.lengths),
            "learner/trajectories/skipped": selection.num_skipped,
            "learner/trajectories/infrastructure": selection.num_infrastructure,
            "learner/tokens/counted": selection.num_trained_tokens,
            "learner/tokens/stale": selection.num_stale_tokens,
        }
        if not selection.lengths:
            return counts | {"update/applied/count": 0.0}
        advantage = learner.advantage
        schedule = self._plan(selection.lengths, learner.segment_tokens, sweep_all=advantage.needs_whole_step)
        names = [group.group_id for group in groups]
        batch = self.read_together(
            names, lambda: load_policy_batch(groups, selection, schedule.trajectories, is_fresh, advantage)
        )
        lr = learning_rate(step, self._config.train.steps, self._optimizer)
        own = [selection.members[n] for n in schedule.trajectories]
        members = [_member_name(groups[group], index) for group, index in own]
        if learner.critic.clip is not None:
            first = self._first_values.of((_member_name(groups[g], i) for g, i in selection.members), members)
            batch = replace(batch, first_values=tuple(map(first.get, members)))
        loss_fn = self._make_loss(batch, step)
        tokens, metrics = self._update(schedule.renumbered(), members, batch.tokens, loss_fn, lr, step)
        judged = None
        if advantage.has_critic:
            judgement = judge(batch, tokens.arrays(), learner, self._backend.sum_over_ranks)
            batch = replace(batch, advantage=judgement.advantage_J)
            judged = self._join(critic_sums(judgement, tokens.value, learner.critic))
            if learner.critic.clip is not None:
                self._keep_values(groups, selection, dict(zip(members, batch.courses, strict=True)), judgement, step)
        sums = self._join(policy_sums(tokens.logprob, tokens.entropy, batch, learner.loss))
        gap = self._max((tokens.logprob - batch.behaviour_logprob).abs())
        return counts | metrics | policy_metrics(sums, gap) | critic_metrics(judged)

    def imitate_step(self, groups: Sequence[StoredGroup], *, step: int, place: StagePlace | None) -> Metrics:
        """One imitation step on demonstrations and text; metrics of all ranks together.

        Args:
            groups: of them, the same on every rank.
            step: updates that the weights have seen.
            place: of the step in the curriculum; None where there is none.
        """
        settings = step_settings(self._config, step, place)
        shown = [(group, index) for group in groups for index, member in enumerate(group.members) if _is_shown(member)]
        members = [group.members[index] for group, index in shown]
        num_labels = sum(member.num_trainable for member in members)
        counts: Metrics = {"learner/trajectories/run": len(shown), "learner/tokens/counted": num_labels}
        if not shown:
            return counts | {"update/applied/count": 0.0}
        lengths = [member.num_tokens for member in members]
        schedule = self._plan(lengths, settings.segment_tokens, sweep_all=False)
        own = [shown[n] for n in schedule.trajectories]
        batch = self.read_together(
            [group.group_id for group in groups],
            lambda: make_imitation_batch([group.load(index) for group, index in own]),
        )
        loss_fn = make_imitation_loss(num_labels)
        names = [_member_name(group, index) for group, index in own]
        tokens, metrics = self._update(schedule.renumbered(), names, batch, loss_fn, settings.lr, step)
        entropy = self._join({"entropy": tokens.entropy.sum()})["entropy"]
        return counts | metrics | {"policy/entropy/mean_nats": entropy / num_labels}

    def score(self, group: StoredGroup) -> list[float]:
        """Log-probability of the trainable tokens of each member, added up, in nats; nothing is trained.

        Args:
            group: of demonstrations, the same on every rank; each member has a trainable token.
        """
        tokens = self._config.learner.segment_tokens
        schedule = self._plan([member.num_tokens for member in group.members], tokens, sweep_all=True)
        batch = self.read_together(
            [group.group_id], lambda: make_imitation_batch([group.load(index) for index in schedule.trajectories])
        )
        scored = evaluate_tokens(self._backend, schedule.renumbered(), batch)
        sums = torch.zeros(len(group.members), dtype=torch.float64)
        for number, member in enumerate(schedule.trajectories):
            sums[member] = scored.logprob[batch.label_numbers([number])].double().sum()
        return self._backend.sum_over_ranks(sums).tolist()

    def read_together(self, group_ids: Sequence[str], read: Callable[[], Read]) -> Read:
        """What `read` returns; on every rank, or on none.

        A rank reads its own trajectories only: one that finds a damaged file must not leave the others waiting for it.

        Args:
            group_ids: of the groups that are read from, the same on every rank.
            read: may differ from rank to rank.
        Raises:
            DamagedGroupsError: a file is not what the rollout wrote; it names the same groups on every rank.
        """
        result, damaged = None, None
        try:
            result = read()
        except TrajectoryFileError as error:
            damaged = error.group_id
            assert damaged in group_ids, damaged
        flags = self._backend.max_over_ranks(torch.tensor([float(name == damaged) for name in group_ids]))
        found = tuple(name for name, flag in zip(group_ids, flags.tolist(), strict=True) if flag)
        if found:
            raise DamagedGroupsError(found)
        assert result is not None
        return result

    def published(self) -> WeightUpdate | None:
        """Parameters and buffers in their own dtypes as one flat buffer; rank 0 only."""
        layout, fetch = self._backend.published_layout(), self._backend.published_tensor
        if self._rank == 0:
            return gather_weights(layout, fetch)
        for name in layout:
            fetch(name)
        return None

    def export(self, folder: Path) -> None:
        """Write the published weights as a model folder that another implementation reads."""
        model = build_model(self._config.model, dtype_of(self._config.learner.precision)) if self._rank == 0 else None
        targets = {} if model is None else {**dict(model.named_parameters()), **dict(model.named_buffers())}
        for name in self._backend.published_layout():
            tensor = self._backend.published_tensor(name)
            if model is not None:
                targets[name].detach().copy_(tensor)
        if model is not None:
            export_checkpoint(model, folder)

    def save(self, folder: Path) -> None:
        """Write masters, optimiser state and router biases into an existing folder.

        All ranks gather a tensor at a time, rank 0 writes it: no copy of the whole state exists.
        """
        first_values = self._first_values.layout()
        buffers = {f"{_BUFFER}/{name}": buffer for name, buffer in self._model.named_buffers()}
        layout = self._backend.state_layout() | first_values | buffers

        def fetch(name: str) -> Tensor:
            if name in buffers:
                return buffers[name]
            return self._first_values.tensor(name) if name in first_values else self._backend.state_tensor(name)

        if self._rank != 0:
            for name in file_order(layout):
                fetch(name)
            return
        stream_safetensors(folder / _STATE_FILE, layout, fetch)
        facts = {"num_updates": self._backend.num_updates, "first_uses": self._first_values.steps()}
        (folder / _FACTS_FILE).write_text(json.dumps(facts) + "\n")

    def load(self, folder: Path) -> None:
        """Take up what `save` wrote, on any number of ranks; read a tensor at a time."""
        facts = json.loads((folder / _FACTS_FILE).read_text())
        self._leave_zero_gradient()
        with safe_open(folder / _STATE_FILE, framework="pt") as file:
            self._backend.load_state(file.get_tensor, facts["num_updates"])
            num_ranks = self._config.cluster.num_learner_ranks
            self._first_values.load(file.get_tensor, facts["first_uses"], rank=self._rank, num_ranks=num_ranks)
            for name, buffer in self._model.named_buffers():
                buffer.copy_(file.get_tensor(f"{_BUFFER}/{name}"))

    def _update(
        self,
        schedule: RankSchedule,
        names: Sequence[str],
        tokens: TokenBatch,
        loss_fn: LossFunction,
        lr: float,
        step: int,
    ) -> tuple[StepTokens, Metrics]:
        """Sweep, check, balance and update.

        Args:
            schedule: of this rank, over `tokens`.
            names: of its trajectories.
            tokens: of its trajectories.
        Returns:
            What this rank's tokens yielded, and metrics of all ranks.
        """
        start = time.perf_counter()
        bound, model = self._optimizer.muon.qk_clip, self._config.model
        measures_logits = self._config.learner.measure_max_logits or bound is not None
        result = run_sweeps(
            self._backend,
            schedule,
            tokens,
            loss_fn,
            is_exact=self._config.learner.exact_backend,
            counts_routes=self._config.learner.balance.live,
            measures_logits=measures_logits,
        )
        self._refuse_non_finite(result, step, names)
        gauge = self._refuse_inexact(result)
        load = self._backend.sum_over_ranks(result.tokens.expert_load)
        bias_kl = self._balance(tokens, schedule, result, step)
        norms = component_norms(self._backend.own_gradient_squares(), model, self._backend.sum_over_ranks)
        max_logits = self._backend.max_over_ranks(result.tokens.max_logits) if measures_logits else None
        factors = {} if bound is None or max_logits is None else clip_factors(max_logits, bound, model)
        grad_norm = self._backend.step(self._optimizer, lr, factors)
        assert isfinite(grad_norm), grad_norm
        sums = self._join({"loss": torch.tensor(result.loss), "tokens": torch.tensor(float(sum(tokens.lengths)))})
        metrics: Metrics = {
            "update/loss/total": sums["loss"],
            "update/gradient/norm": grad_norm,
            **norms,
            "update/learning_rate/value": lr,
            **router_metrics(load),
            "router/bias_kl/mean_nats": bias_kl,
            **logit_metrics(max_logits, bound, model),
            "learner/gauge/max_nats": gauge,
            "learner/micro_steps/swept": len(schedule.swept),
            "learner/micro_steps/last": len(schedule.last),
            "learner/tokens/run": sums["tokens"],
            "learner/tokens/per_s": sums["tokens"] / (time.perf_counter() - start),
            "update/applied/count": 1.0,
        }
        return result.tokens, metrics

    def _make_loss(self, batch: PolicyBatch, step: int) -> LossFunction:
        """The configured loss, a critic's in a step of its warm-up or after."""
        learner = self._config.learner
        if not learner.advantage.has_critic:
            return make_policy_loss(batch, learner.loss)
        is_warming_up = step < learner.critic.warmup_steps
        self._module.value_reaches_model = not is_warming_up
        return make_critic_loss(batch, learner, self._backend.sum_over_ranks, is_warming_up=is_warming_up)

    def _keep_values(
        self,
        groups: Sequence[StoredGroup],
        selection: Selection,
        courses: Mapping[str, Course],
        judgement: Judgement,
        step: int,
    ) -> None:
        """Remember what the critic said of trajectories that were trained for the first time."""
        kind = self._config.learner.advantage.kind
        sizes = {
            _member_name(groups[group], index): most_places(groups[group].members[index], kind)
            for group, index in selection.members
        }
        parts = judgement.first_P.split([len(course.places) for course in courses.values()])
        own = dict(zip(courses, parts, strict=True))
        self._first_values.keep(sizes, own, step)

    def _plan(self, lengths: Sequence[int], segment_tokens: int, *, sweep_all: bool) -> RankSchedule:
        schedule = SegmentSchedule.build(
            lengths,
            self._config.cluster.num_learner_ranks,
            segment_tokens,
            self._config.learner.micro_step_tokens,
            pair_cost=self._pair_cost,
            sweep_all=sweep_all,
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

    def _refuse_non_finite(self, result: SweepResult, step: int, names: Sequence[str]) -> None:
        has_failed = self._max(torch.tensor([0.0 if result.failure is None else 1.0])) > 0
        if not has_failed:
            return
        assert self._config.run.dir is not None
        micro_step, model = failure_paths(Path(self._config.run.dir), step, self._rank)
        critic = self._critic()
        if result.failure is not None:
            save_failure(result.failure, micro_step, critic)
        if self._rank == 0:
            shutil.rmtree(model, ignore_errors=True)
        self.export(model)
        if result.failure is None:
            raise NonFiniteError(f"another rank's loss or gradient is not finite in step {step}; see {model.parent}")
        trajectories = ", ".join(names[segment.trajectory] for segment in result.failure.step.segments)
        raise NonFiniteError(
            f"loss or gradient is not finite in step {step}, trajectories {trajectories}; the weights are as before. "
            f"To see where: python -m segue.learner.failure {micro_step} {model}"
        )

    def _critic(self) -> dict[str, Tensor]:
        """The value head's parameters by name, whole; none without one."""
        prefix = f"master/{VALUE_HEAD}."
        names = [name for name in self._backend.state_layout() if name.startswith(prefix)]
        return {name.removeprefix(prefix): self._backend.state_tensor(name) for name in names}

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
        loss_fn = make_imitation_loss(0)
        run_sweeps(self._backend, schedule, nothing, loss_fn, is_exact=True, counts_routes=False, measures_logits=False)

    def _join(self, sums: dict[str, Tensor]) -> dict[str, float]:
        return join_sums(sums, self._backend.sum_over_ranks)

    def _max(self, values: Tensor) -> float:
        """Largest of all ranks' values; at least 0; infinite where one is not a number."""
        finite = torch.nan_to_num(values.double(), nan=float("inf"))
        return float(self._backend.max_over_ranks(torch.cat([finite, finite.new_zeros(1)]).max()))


def _member_name(group: StoredGroup, index: int) -> str:
    """What a trajectory is told by, and what the first values of it are kept under."""
    return f"{group.group_id}#{index}"


def _is_shown(member: TrajectorySummary) -> bool:
    return member.num_trainable > 0


def _build_optimizer(
    named_parameters: Iterable[tuple[str, nn.Parameter]],
    *,
    config: OptimizerConfig,
    blocks: Mapping[str, Blocks],
    critic_lr_ratio: float,
) -> torch.optim.Optimizer:
    """The configured optimiser, with a group of its own for a critic, which learns faster than the model."""
    parameters = dict(named_parameters)
    critic = [parameters.pop(name) for name in list(parameters) if name.startswith(f"{VALUE_HEAD}.")]
    optimizer = build_optimizer(parameters.items(), config, blocks)
    if critic:
        group = {"params": critic, "is_decayed": False, "is_muon": False, LR_RATIO: critic_lr_ratio}
        optimizer.add_param_group(group)
    return optimizer


def _first_critic(config: SegueConfig) -> ValueHead | None:
    if not config.learner.advantage.has_critic:
        return None
    return ValueHead(config.model.hidden_size, dtype_of(config.learner.precision))


def _first_model(config: SegueConfig, initial_model: Path | None) -> SegueModel:
    model = build_model(config.model, dtype_of(config.learner.precision))
    model.checkpointing = config.learner.checkpoint
    if initial_model is None:
        model.init_weights(torch.Generator().manual_seed(config.seed))
    else:
        _, initial = import_checkpoint(initial_model)
        model.load_state_dict(initial.state_dict())
    return model
