"""All that the model carries from one token to the next, and how layers reach it.

Legend: N sequences, T new tokens, P prior tokens of all sequences, H heads, K key width, V value width, W convolution
taps, C convolution channels (q, k, v side by side), L latent width, R shared key width.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from segue.conf.model_config import ModelConfig
from segue.kernels.mla.op import mla_attention, mla_max_logits
from segue.model.inputs import PackedInputs


class StateStore(Protocol):
    """The states of N sequences during one forward, as layers see them; `layer` counts within the layer's kind."""

    @property
    def incremental(self) -> bool:
        """True: every sequence has exactly one new token, and layers take their recurrent form."""

    @property
    def offsets(self) -> Tensor:
        """Borders of the new tokens, [N + 1] int64."""

    def read_recurrent(self, layer: int) -> tuple[Tensor, Tensor]:
        """State [N, H, V, K] (at least float32) and last convolution inputs [N, W - 1, C] of a KDA layer."""

    def write_recurrent(self, layer: int, recurrent: Tensor, conv: Tensor) -> None:
        """Store the same after this forward's tokens."""

    def recurrent_in_place(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """Where `incremental`: all states and convolution inputs of a KDA layer, and which rows are these sequences'.

        Rows [N] int64. Instead of reading and writing, these rows are changed.
        """

    def attend(self, layer: int, q: Tensor, rows: Tensor, kv_b: Tensor, *, scale: float) -> Tensor:
        """Store the new latent rows [T, L + R] of an MLA layer and attend over all rows; [T, H, Dv]."""


class ForwardStore(StateStore, Protocol):
    """A store between the start and the end of one forward."""

    def close(self) -> "SequenceState":
        """End the forward: the state after the new tokens."""


class SequenceState(Protocol):
    """The state of N sequences between two forwards."""

    def open(self, inputs: PackedInputs) -> ForwardStore:
        """Start a forward over new tokens of these sequences, in the same order."""


@dataclass(kw_only=True, slots=True)
class LogitRecord:
    """The largest attention scores of one forward, never used twice.

    As with routes, a layer records its first run only; activation checkpointing runs it again.
    """

    _max_logits: dict[int, Tensor] = field(default_factory=dict, init=False, repr=False)

    def needs(self, layer: int) -> bool:
        """True until the layer is recorded."""
        return layer not in self._max_logits

    def record(self, layer: int, max_logits: Tensor) -> None:
        """Keep an MLA layer's scores [H]."""
        self._max_logits[layer] = max_logits

    @property
    def max_logits(self) -> Tensor:
        """[MLA layers, H], at least float32: largest score before the softmax of each head."""
        return torch.stack([self._max_logits[layer] for layer in sorted(self._max_logits)])


@dataclass(kw_only=True, slots=True)
class DifferentiableState:
    """Plain tensors that gradients pass through: what the learner carries from segment to segment.

    A forward takes a *whole* state (rows of all consumed tokens) and returns one whose `recurrent` and `conv` stand
    after the new tokens and whose `rows` are *those of the new tokens only*; `extended_by` makes it whole again.

    Invariants:
        A state handed over at any token continues as if never cut: tests/unit/model/test_state.py.
    """

    consumed: Tensor
    """[N] int64: tokens that each sequence has fed."""
    row_offsets: Tensor
    """[N + 1] int64: sequence n owns rows row_offsets[n] up to row_offsets[n + 1]."""
    recurrent: tuple[Tensor, ...]
    """Per KDA layer [N, H, V, K], at least float32."""
    conv: tuple[Tensor, ...]
    """Per KDA layer [N, W - 1, C]: the last inputs of the convolutions, oldest first."""
    rows: tuple[Tensor, ...]
    """Per MLA layer [P, L + R]: normalised latent, then shared key; sequence after sequence."""
    logit_record: LogitRecord | None = None
    """What a forward from this state leaves its largest attention scores in; None measures none. Not carried on."""

    @classmethod
    def zeros(
        cls, config: ModelConfig, num_sequences: int, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> "DifferentiableState":
        """Sequences that have consumed nothing; `dtype` is that of the model's activations.

        Counts and borders are on the CPU, where operators read them without waiting for a GPU.
        """
        shape = (num_sequences, *config.recurrent_shape)
        wide = torch.promote_types(dtype, torch.float32)
        return cls(
            consumed=torch.zeros(num_sequences, dtype=torch.int64),
            row_offsets=torch.zeros(num_sequences + 1, dtype=torch.int64),
            recurrent=tuple(torch.zeros(shape, dtype=wide, device=device) for _ in config.kda_layers),
            conv=tuple(
                torch.zeros(num_sequences, *config.conv_shape, dtype=dtype, device=device) for _ in config.kda_layers
            ),
            rows=tuple(torch.zeros(0, config.latent_row_size, dtype=dtype, device=device) for _ in config.mla_layers),
        )

    def flatten(self) -> tuple[Tensor, ...]:
        """(consumed, row_offsets, recurrent per KDA layer, conv per KDA layer, rows per MLA layer)."""
        return (self.consumed, self.row_offsets, *self.recurrent, *self.conv, *self.rows)

    @classmethod
    def unflatten(cls, config: ModelConfig, tensors: Sequence[Tensor]) -> "DifferentiableState":
        """Inverse of `flatten`."""
        num_kda, num_mla = len(config.kda_layers), len(config.mla_layers)
        if len(tensors) != 2 + 2 * num_kda + num_mla:
            raise ValueError(f"a state has {2 + 2 * num_kda + num_mla} tensors, got {len(tensors)}")
        return cls(
            consumed=tensors[0],
            row_offsets=tensors[1],
            recurrent=tuple(tensors[2 : 2 + num_kda]),
            conv=tuple(tensors[2 + num_kda : 2 + 2 * num_kda]),
            rows=tuple(tensors[2 + 2 * num_kda :]),
        )

    def split(self) -> list["DifferentiableState"]:
        """One state per sequence (views)."""
        borders = self.row_offsets.tolist()
        return [
            DifferentiableState(
                consumed=self.consumed[n : n + 1],
                row_offsets=self.row_offsets[n : n + 2] - self.row_offsets[n],
                recurrent=tuple(tensor[n : n + 1] for tensor in self.recurrent),
                conv=tuple(tensor[n : n + 1] for tensor in self.conv),
                rows=tuple(tensor[borders[n] : borders[n + 1]] for tensor in self.rows),
            )
            for n in range(len(borders) - 1)
        ]

    @classmethod
    def join(cls, states: Sequence["DifferentiableState"]) -> "DifferentiableState":
        """The sequences of several states (at least one) in order, as one state."""
        row_counts = torch.cat([state.row_offsets.diff() for state in states])
        return cls(
            consumed=torch.cat([state.consumed for state in states]),
            row_offsets=torch.cat([row_counts.new_zeros(1), row_counts.cumsum(0)]),
            recurrent=tuple(torch.cat(layer) for layer in zip(*(state.recurrent for state in states), strict=True)),
            conv=tuple(torch.cat(layer) for layer in zip(*(state.conv for state in states), strict=True)),
            rows=tuple(torch.cat(layer) for layer in zip(*(state.rows for state in states), strict=True)),
        )

    def extended_by(self, new: "DifferentiableState") -> "DifferentiableState":
        """This whole state and the one that a forward returned from it, as the whole state after that forward."""
        old_borders, new_borders = self.row_offsets.tolist(), new.row_offsets.tolist()

        def interleave(old_rows: Tensor, new_rows: Tensor) -> Tensor:
            pieces = []
            for n in range(len(old_borders) - 1):
                pieces.append(old_rows[old_borders[n] : old_borders[n + 1]])
                pieces.append(new_rows[new_borders[n] : new_borders[n + 1]])
            return torch.cat(pieces)

        return DifferentiableState(
            consumed=new.consumed,
            row_offsets=self.row_offsets + new.row_offsets,
            recurrent=new.recurrent,
            conv=new.conv,
            rows=tuple(interleave(old, own) for old, own in zip(self.rows, new.rows, strict=True)),
        )

    def open(self, inputs: PackedInputs) -> "DifferentiableStore":
        """Start a forward; this state itself stays as it is."""
        assert self.consumed.numel() == inputs.num_sequences, (self.consumed.numel(), inputs.num_sequences)
        return DifferentiableStore(self, inputs)


class DifferentiableStore:
    """One forward over a `DifferentiableState`.

    A layer's first write stands: when activation checkpointing runs it again, the tensors of the first run, which the
    returned state holds, stay.
    """

    incremental = False

    def __init__(self, state: DifferentiableState, inputs: PackedInputs) -> None:
        self.offsets = inputs.offsets
        self._state = state
        self._consumed = state.consumed + inputs.lengths
        self._recurrent: dict[int, Tensor] = {}
        self._conv: dict[int, Tensor] = {}
        self._rows: dict[int, Tensor] = {}

    def read_recurrent(self, layer: int) -> tuple[Tensor, Tensor]:
        """See `StateStore`."""
        return self._state.recurrent[layer], self._state.conv[layer]

    def write_recurrent(self, layer: int, recurrent: Tensor, conv: Tensor) -> None:
        """See `StateStore`."""
        self._recurrent.setdefault(layer, recurrent)
        self._conv.setdefault(layer, conv)

    def recurrent_in_place(self, layer: int) -> tuple[Tensor, Tensor, Tensor]:
        """See `StateStore`; this store is never incremental."""
        raise AssertionError("states that gradients pass through are not changed in place")

    def attend(self, layer: int, q: Tensor, rows: Tensor, kv_b: Tensor, *, scale: float) -> Tensor:
        """See `StateStore`."""
        self._rows.setdefault(layer, rows)
        arguments = (q, rows, self._state.rows[layer], kv_b, self.offsets, self._state.row_offsets)
        record = self._state.logit_record
        if record is not None and record.needs(layer):
            record.record(layer, mla_max_logits(*arguments, scale=scale))
        return mla_attention(*arguments, scale=scale)

    def close(self) -> DifferentiableState:
        """The state after the new tokens, holding only their rows."""
        return DifferentiableState(
            consumed=self._consumed,
            row_offsets=self.offsets,
            recurrent=tuple(self._recurrent[layer] for layer in range(len(self._state.recurrent))),
            conv=tuple(self._conv[layer] for layer in range(len(self._state.conv))),
            rows=tuple(self._rows[layer] for layer in range(len(self._state.rows))),
        )
