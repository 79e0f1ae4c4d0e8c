"""The module that the backend wraps: one micro-step, flat tensors in, flat tensors out.

Legend: T tokens of a packed row, N sequences, J labels, P prior rows, L layers with routed experts, k experts a token,
E experts, B bins, M MLA layers, H heads.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from segue.kernels.head.op import token_logprob
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel
from segue.model.routing import Routing
from segue.model.state import DifferentiableState, LogitRecord
from segue.model.value_head import ValueHead

VALUE_HEAD = "value_head"
"""Where the critic's parameters stand among the trained ones; the model's begin with `model.` or `lm_head.`."""


class TensorLayout(NamedTuple):
    """One tensor of a state, for one sequence or one token."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """The flat form of N sequences' states: consumed [N], row borders [N + 1], then the tensors below in this order."""

    per_sequence: tuple[TensorLayout, ...]
    """Each [N, *shape]; replaced by every forward."""
    per_token: tuple[TensorLayout, ...]
    """Each [P, *shape], sequence after sequence; a forward returns the rows of its own tokens only."""
    device: torch.device


class SegmentOutputs(NamedTuple):
    """What `SegmentModule.forward` returns, by name."""

    logprob: Tensor
    """[J], nats, at least float32: of each label."""
    entropy: Tensor
    """[J], nats: of the distribution that each label comes from."""
    value: Tensor
    """[T] reward units, at least float32: the critic's, of having read each token; [0] without a critic."""
    route_histogram: Tensor
    """[L, E, B] int64; zeros when not counted."""
    expert_ids: Tensor
    """[T, L, k] int64: experts that each token took."""
    max_logits: Tensor
    """[M, H], at least float32: largest attention score of each head; minus infinity when not measured."""
    state: tuple[Tensor, ...]
    """Flat state after the tokens (`StateLayout`), with the rows of these tokens only."""


class SegmentModule(nn.Module):
    """The model with its heads, behind flat tensors: a backend's hooks see neither dataclasses nor keywords.

    Attributes:
        value_reaches_model: values send their gradient on into the model; while False they train the critic alone.
    """

    def __init__(self, model: SegueModel, num_bins: int, value_head: ValueHead | None = None) -> None:
        super().__init__()
        self.model = model
        self.num_bins = num_bins
        self.value_head = value_head
        self.value_reaches_model = True

    def trained_parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters under their own names, then the critic's under `value_head.`."""
        critic = {} if self.value_head is None else dict(self.value_head.named_parameters(prefix=VALUE_HEAD))
        return {**dict(self.model.named_parameters()), **critic}

    def forward(
        self,
        token_ids: Tensor,
        label_positions: Tensor,
        label_ids: Tensor,
        temperature: Tensor,
        offsets: Tensor,
        count_routes: bool,
        measure_logits: bool,
        replay_ids: Tensor,
        *state_in: Tensor,
    ) -> tuple[Tensor, ...]:
        """Run one micro-step.

        Args:
            token_ids: [T] int64.
            label_positions: [J] int64, positions whose next token's log-probability is wanted.
            label_ids: [J] int64, those next tokens.
            temperature: [J], > 0.
            offsets: [N + 1] int64, borders of the sequences.
            count_routes: add the tokens to the router's statistics.
            measure_logits: find the largest attention scores.
            replay_ids: [T, L, k] int64, experts to take; no rows lets the router choose.
            state_in: flat state before the tokens (`StateLayout`).
        Returns:
            The fields of `SegmentOutputs`, the state's tensors last.
        """
        config = self.model.config
        routing = Routing(
            count=count_routes, replay_ids=replay_ids if replay_ids.shape[0] else None, num_bins=self.num_bins
        )
        state = DifferentiableState.unflatten(config, state_in)
        state.logit_record = LogitRecord() if measure_logits else None
        hidden, new_state = self.model(PackedInputs(token_ids=token_ids, offsets=offsets), state, routing)
        assert isinstance(new_state, DifferentiableState), type(new_state)
        logprob, entropy = token_logprob(
            hidden.index_select(0, label_positions), self.model.lm_head.weight, label_ids, temperature
        )
        if self.value_head is None:
            value = logprob.new_zeros(0)
        else:
            value = self.value_head(hidden if self.value_reaches_model else hidden.detach())
        max_logits = logprob.new_full((), float("-inf")).expand(len(config.mla_layers), config.num_attention_heads)
        if state.logit_record is not None and config.mla_layers:
            max_logits = state.logit_record.max_logits
        return logprob, entropy, value, routing.histogram, routing.expert_ids, max_logits, *new_state.flatten()


def state_layout(model: SegueModel) -> StateLayout:
    """The flat form of this model's states."""
    weight = model.lm_head.weight
    template = DifferentiableState.zeros(model.config, 1, weight.dtype, weight.device)
    return StateLayout(
        per_sequence=tuple(
            TensorLayout(tuple(tensor.shape[1:]), tensor.dtype) for tensor in (*template.recurrent, *template.conv)
        ),
        per_token=tuple(TensorLayout(tuple(tensor.shape[1:]), tensor.dtype) for tensor in template.rows),
        device=weight.device,
    )


def unpack_outputs(outputs: tuple[Tensor, ...]) -> SegmentOutputs:
    """Name what `SegmentModule.forward` returned."""
    logprob, entropy, value, route_histogram, expert_ids, max_logits, *state = outputs
    return SegmentOutputs(logprob, entropy, value, route_histogram, expert_ids, max_logits, tuple(state))
