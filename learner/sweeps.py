"""Segmented exact backpropagation: the gradient of a whole trajectory, one segment's activations at a time.

    swept micro-steps, in order      forward without grad: states, rows, log-probabilities of all segments but the last
    last micro-steps, each in turn   forward with grad; the loss of the trajectories that end here, taken once over
                                     their whole arrays; backward at once, so that two graphs are never alive
    swept micro-steps, in reverse    forward again with grad, from the same state; backward of
                                     sum(logprob * cotangent) + <state after, gradient that later segments left for it>

A trajectory of one segment therefore costs one forward and one backward. The rebuilt segment *is* the swept one (same
packing, same operators, grad mode selects nothing), so the log-probabilities of both runs must agree bit for bit.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from segue.learner.batch import MicroStepInputs, TokenBatch
from segue.learner.carry import CarriedStates
from segue.learner.schedule import MicroStep, RankSchedule
from segue.learner.segment_module import SegmentOutputs, StateLayout, unpack_outputs

# of one rank's gradients: the squares of what a thousand ranks sum still fit float32
_LARGEST_GRADIENT_NORM = 1e15


class TrajectoryArrays(NamedTuple):
    """What the forwards yielded of some whole trajectories, one after another; the first three carry the gradient.

    Legend: J labels, T tokens.
    """

    logprob: Tensor
    """[J] nats."""
    entropy: Tensor
    """[J] nats."""
    value: Tensor
    """[T] reward units: the critic's, of having read each token; [0] without a critic."""
    label_numbers: Tensor
    """[J] int64: the labels' numbers in the batch."""
    token_numbers: Tensor
    """[T] int64: the places in the batch of the tokens that `value` is of."""


LossFunction = Callable[[TrajectoryArrays], Tensor]
"""Whole trajectories to their loss, a scalar; autograd takes its gradient. It must be a sum over trajectories, else the
schedule has to sweep all segments."""


class Backend(Protocol):
    """What runs the wrapped module and gathers its parameters' gradients."""

    @property
    def layout(self) -> StateLayout:
        """Flat form of the wrapped module's states."""

    @property
    def loss_scale(self) -> float:
        """Factor of the loss under which the gathered gradient is that of all ranks' summed loss."""

    def forward(self, *inputs: Tensor | bool) -> tuple[Tensor, ...]:
        """Run `SegmentModule.forward` under the caller's grad mode."""

    def backward(self, scalar: Tensor, *, is_last: bool) -> float:
        """Add the scalar's gradients to the step's, of which `is_last` says that they are now complete.

        Called once after each forward with grad. Returns an upper bound of the Euclidean norm of this rank's gradients
        of the step so far; not finite where one of them is not.
        """


@dataclass(kw_only=True, slots=True)
class StepTokens:
    """What the forwards of one step yielded on this rank.

    Legend: J labels, T tokens, L layers with routed experts, E experts, B bins, M MLA layers, H heads.
    """

    logprob: Tensor
    """[J] nats, at least float32, on the CPU, by label number; 0 for labels of other ranks."""
    entropy: Tensor
    """[J] nats, likewise."""
    value: Tensor
    """[T] reward units, at least float32, on the CPU, by place in the batch; 0 for tokens of other ranks; [0] without
    a critic."""
    route_histogram: Tensor
    """[L, E, B] int64: router margins, of each token once; zeros where they are not counted."""
    expert_load: Tensor
    """[L, E] int64: times that each expert was chosen, of each token once."""
    max_logits: Tensor
    """[M, H], at least float32: largest attention score of each head; minus infinity where none was measured."""

    def arrays(self) -> TrajectoryArrays:
        """All trajectories of a batch whose other tokens are no rank's."""
        numbers = torch.arange(len(self.logprob)), torch.arange(len(self.value))
        return TrajectoryArrays(self.logprob, self.entropy, self.value, *numbers)


@dataclass(kw_only=True, slots=True)
class FailedMicroStep:
    """A micro-step with a loss or gradients that were not finite, or as good as, and all that its runs were given."""

    step: MicroStep
    inputs: MicroStepInputs
    state: tuple[Tensor, ...]
    """Flat state before it."""
    cotangents: tuple[Tensor, ...]
    """Gradients that its outputs were given: `logprob`, `entropy`, `value` where there is a critic, then the state's
    (none where it is the last)."""


@dataclass(kw_only=True, slots=True)
class SweepResult:
    """One step's backpropagation on this rank; the gradients are with the backend."""

    tokens: StepTokens
    loss: float
    """Summed over this rank's trajectories, not scaled."""
    gauge: float | None
    """Largest difference in nats between a label's two runs; None where no segment ran twice."""
    failure: FailedMicroStep | None
    """The first micro-step that was not finite."""


def run_sweeps(
    backend: Backend,
    schedule: RankSchedule,
    batch: TokenBatch,
    loss_fn: LossFunction,
    *,
    is_exact: bool,
    counts_routes: bool,
    measures_logits: bool,
) -> SweepResult:
    """Run one step's micro-steps on this rank, so that the backend holds the gradient of the loss of all ranks.

    Args:
        backend: wraps a module of `SegmentModule`'s form.
        schedule: this rank's part of a plan over `batch`; at least one micro-step.
        batch: all trajectories of the plan; only this rank's are read.
        loss_fn: called once with each trajectory, when its arrays are complete.
        is_exact: both runs of a segment are equal; else the second takes the experts of the first.
        counts_routes: make the histogram of router margins, which only a live balance reads.
        measures_logits: find the largest attention scores.
    Returns:
        Per-token results, this rank's loss, and the checks. A failed check raises nothing here: the other ranks wait in
        the same collectives.
    Invariants:
        Any segmentation gives the whole gradient; packing, padding and ranks change nothing; both runs are equal; each
        token counts once: tests/reference/test_sweeps_exactness.py.
    """
    sweeper = _Sweeper(
        backend,
        schedule,
        batch,
        loss_fn,
        is_exact=is_exact,
        counts_routes=counts_routes,
        measures_logits=measures_logits,
    )
    for step in schedule.swept:
        sweeper.sweep(step)
    if not schedule.last:
        sweeper.take_loss(schedule.trajectories)
    num_backwards = len(schedule.last) + len(schedule.swept)
    for number, step in enumerate(schedule.last, start=1):
        sweeper.finish(step, is_last=number == num_backwards)
    for number, step in enumerate(reversed(schedule.swept), start=len(schedule.last) + 1):
        sweeper.rebuild(step, is_last=number == num_backwards)
    return SweepResult(tokens=sweeper.tokens, loss=sweeper.loss, gauge=sweeper.gauge, failure=sweeper.failure)


def evaluate_tokens(backend: Backend, schedule: RankSchedule, batch: TokenBatch) -> StepTokens:
    """What this rank's tokens yield without gradients; the schedule sweeps all segments."""
    assert not schedule.last, len(schedule.last)
    sweeper = _Sweeper(
        backend, schedule, batch, _refuse_loss, is_exact=True, counts_routes=False, measures_logits=False
    )
    for step in schedule.swept:
        sweeper.sweep(step)
        sweeper.boundaries.clear()
    return sweeper.tokens


def _refuse_loss(arrays: TrajectoryArrays) -> Tensor:
    raise AssertionError("an evaluation takes no loss")


class _Sweeper:
    """One step under way; the three kinds of run are its methods."""

    def __init__(
        self,
        backend: Backend,
        schedule: RankSchedule,
        batch: TokenBatch,
        loss_fn: LossFunction,
        *,
        is_exact: bool,
        counts_routes: bool,
        measures_logits: bool,
    ) -> None:
        self.backend, self.batch, self.loss_fn = backend, batch, loss_fn
        self.is_exact = is_exact
        self.counts_routes, self.measures_logits = counts_routes, measures_logits
        swept_tokens = {segment.trajectory: segment.end for step in schedule.swept for segment in step.segments}
        self.states = CarriedStates(backend.layout, swept_tokens)
        self.boundaries: list[list[Tensor]] = []
        self.first_routes: list[Tensor] = []
        self.loss = 0.0
        self.gauge: float | None = None
        self.failure: FailedMicroStep | None = None
        self._tokens: StepTokens | None = None
        self._cotangents: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def tokens(self) -> StepTokens:
        """What the forwards have yielded so far."""
        assert self._tokens is not None, "no micro-step has run"
        return self._tokens

    def sweep(self, step: MicroStep) -> None:
        """First run of swept segments."""
        inputs = self.batch.inputs(step).on(self.backend.layout.device)
        boundary = self.states.gather(step.segments)
        with torch.no_grad():
            outputs = self._forward(inputs, self.states.flat(step.segments, boundary), is_counted=not step.is_dummy)
        self._record(step, inputs, outputs)
        self.states.store(step.segments, outputs.state)
        self.boundaries.append(boundary)
        if not self.is_exact:
            self.first_routes.append(outputs.expert_ids.to(torch.int16))

    def finish(self, step: MicroStep, *, is_last: bool) -> None:
        """Only run of last segments, with the loss of their trajectories."""
        inputs = self.batch.inputs(step).on(self.backend.layout.device)
        state = self._differentiable(step, self.states.gather(step.segments))
        outputs = self._forward(inputs, state, is_counted=not step.is_dummy)
        self._record(step, inputs, outputs)
        is_finite = self.take_loss([segment.trajectory for segment in step.segments])
        self._backward(step, inputs, state, outputs, [], is_finite=is_finite, is_last=is_last)

    def rebuild(self, step: MicroStep, *, is_last: bool) -> None:
        """Second run of swept segments."""
        inputs = self.batch.inputs(step).on(self.backend.layout.device)
        if not self.is_exact:
            inputs = replace(inputs, replay_ids=self.first_routes.pop().long())
        state = self._differentiable(step, self.boundaries.pop())
        outputs = self._forward(inputs, state, is_counted=False)
        if not step.is_dummy:
            difference = (outputs.logprob.detach().cpu() - self.tokens.logprob[inputs.label_numbers]).abs()
            # what was seen before joins the maximum, through which NaN passes, unlike through Python's
            self.gauge = float(torch.cat([difference, difference.new_tensor([self.gauge or 0.0])]).max())
        arrived = self.states.arrived(step.segments, outputs.state)
        self._backward(step, inputs, state, outputs, arrived, is_finite=True, is_last=is_last)

    def take_loss(self, trajectories: Sequence[int]) -> bool:
        """Cotangents of all labels and tokens of these trajectories; returns whether their loss is finite."""
        labels = self.batch.label_numbers(trajectories)
        tokens = self.batch.token_numbers(trajectories) if len(self.tokens.value) else labels[:0]
        whole = self.tokens.logprob, self.tokens.entropy, self.tokens.value
        logprob, entropy, value = leaves = tuple(
            array[numbers].requires_grad_() for array, numbers in zip(whole, (labels, labels, tokens), strict=True)
        )
        loss = self.loss_fn(TrajectoryArrays(logprob, entropy, value, labels, tokens))
        grads = torch.autograd.grad(loss, leaves, allow_unused=True)
        if self._cotangents is None:
            self._cotangents = torch.zeros_like(whole[0]), torch.zeros_like(whole[1]), torch.zeros_like(whole[2])
        for cotangent, grad, numbers in zip(self._cotangents, grads, (labels, labels, tokens), strict=True):
            if grad is not None:
                cotangent[numbers] = grad * self.backend.loss_scale
        total = float(loss.detach())
        self.loss += total
        return isfinite(total)

    def _forward(self, inputs: MicroStepInputs, state: Sequence[Tensor], *, is_counted: bool) -> SegmentOutputs:
        """`is_counted`: the first run of tokens that are somebody's."""
        outputs = self.backend.forward(
            inputs.token_ids,
            inputs.label_positions,
            inputs.label_ids,
            inputs.temperature,
            inputs.offsets,
            is_counted and self.counts_routes,
            is_counted and self.measures_logits,
            inputs.replay_ids,
            *state,
        )
        return unpack_outputs(outputs)

    def _differentiable(self, step: MicroStep, per_sequence: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """Flat state before the micro-step, whose tensors take gradients."""
        return self.states.leaves(self.states.flat(step.segments, per_sequence))

    def _record(self, step: MicroStep, inputs: MicroStepInputs, outputs: SegmentOutputs) -> None:
        """Keep what the first run of a segment yields."""
        histogram, expert_ids = outputs.route_histogram, outputs.expert_ids
        if self._tokens is None:
            self._tokens = StepTokens(
                logprob=torch.zeros(self.batch.num_labels, dtype=outputs.logprob.dtype),
                entropy=torch.zeros(self.batch.num_labels, dtype=outputs.entropy.dtype),
                value=torch.zeros(self.batch.num_tokens if len(outputs.value) else 0, dtype=outputs.value.dtype),
                route_histogram=histogram.new_zeros(histogram.shape),
                expert_load=histogram.new_zeros(histogram.shape[:2]),
                max_logits=outputs.max_logits.clone(),
            )
        tokens = self._tokens
        tokens.logprob[inputs.label_numbers] = outputs.logprob.detach().cpu()
        tokens.entropy[inputs.label_numbers] = outputs.entropy.detach().cpu()
        if not step.is_dummy:
            if len(outputs.value):
                tokens.value[inputs.token_numbers] = outputs.value.detach().cpu()
            if self.counts_routes:
                tokens.route_histogram += histogram
            torch.maximum(tokens.max_logits, outputs.max_logits, out=tokens.max_logits)
            num_layers, num_experts = tokens.expert_load.shape
            places = expert_ids + num_experts * torch.arange(num_layers, device=expert_ids.device)[:, None]
            tokens.expert_load += places.flatten().bincount(minlength=num_layers * num_experts).view(num_layers, -1)

    def _backward(
        self,
        step: MicroStep,
        inputs: MicroStepInputs,
        state: tuple[Tensor, ...],
        outputs: SegmentOutputs,
        arrived: Sequence[tuple[Tensor, Tensor]],
        *,
        is_finite: bool,
        is_last: bool,
    ) -> None:
        assert self._cotangents is not None
        device = self.backend.layout.device
        logprob, entropy, value = self._cotangents
        pairs = [
            (outputs.logprob, logprob[inputs.label_numbers].to(device)),
            (outputs.entropy, entropy[inputs.label_numbers].to(device)),
        ]
        if len(outputs.value):
            # a dummy's gradient is zero, not absent, as its states' are
            own = torch.zeros_like(outputs.value) if step.is_dummy else value[inputs.token_numbers].to(device)
            pairs.append((outputs.value, own))
        pairs += arrived
        scalar = sum(((output * grad).sum() for output, grad in pairs), torch.zeros((), device=device))
        is_finite &= self.backend.backward(scalar, is_last=is_last) < _LARGEST_GRADIENT_NORM
        self.states.hand_back(step.segments, state)
        if not is_finite and self.failure is None:
            self.failure = FailedMicroStep(
                step=step,
                inputs=inputs,
                state=tuple(tensor.detach() for tensor in state),
                cotangents=tuple(grad for _, grad in pairs),
            )
