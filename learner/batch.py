"""The trajectories of one step as flat arrays, and the tensors of one micro-step cut from them.

A *label* is a token whose log-probability is wanted. The position before it predicts it, so the label that follows a
segment's last token belongs to that segment: targets shift over the trajectory, never inside a segment. Labels are
numbered over the whole batch, trajectory after trajectory.

Legend: T tokens, N trajectories or sequences, J labels, L layers with routed experts, k experts a token.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from segue.learner.schedule import MicroStep


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MicroStepInputs:
    """What one forward reads beside the carried states."""

    token_ids: Tensor
    """[T] int64, sequence after sequence."""
    offsets: Tensor
    """[N + 1] int64: borders of the sequences."""
    label_positions: Tensor
    """[J] int64: place in the row of the position that predicts each label; ascending."""
    label_ids: Tensor
    """[J] int64: the labels' tokens."""
    temperature: Tensor
    """[J] float32."""
    label_numbers: Tensor
    """[J] int64: the labels' numbers in the batch."""
    token_numbers: Tensor
    """[T] int64: the tokens' places in the batch; none for a dummy, whose token is of no trajectory."""
    replay_ids: Tensor
    """[T, L, k] int64: experts to take; no rows where the router chooses."""

    def on(self, device: torch.device) -> "MicroStepInputs":
        """The same with all that the model computes with on a device; borders and numbers stay on the CPU."""
        if device.type == "cpu":
            return self
        names = ("token_ids", "label_positions", "label_ids", "temperature", "replay_ids")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TokenBatch:
    """Trajectories laid one after another.

    Example:
        Trajectories (5, 6, 7) and (8, 9) with labels 7 and 9: offsets (0, 3, 5), is_label (no no yes no yes). Label 0
        is predicted at token 1, label 1 at token 3.
    """

    token_ids: NDArray[np.int64]
    """[T]."""
    temperature: NDArray[np.float32]
    """[T]: temperature of the distribution in which a label's log-probability is taken; > 0."""
    is_label: NDArray[np.bool_]
    """[T]; False at index 0 of each trajectory, which nothing predicts."""
    offsets: NDArray[np.int64]
    """[N + 1]."""
    replay_ids: NDArray[np.int64] | None
    """[T, L, k]: experts to take instead of the router's choice; None lets the router choose."""
    _predicts: NDArray[np.bool_]
    """[T]: True where the next token is a label."""
    _label_starts: NDArray[np.int64]
    """[T + 1]: number of the first label at or after a token."""

    @classmethod
    def pack(
        cls,
        token_ids: Sequence[NDArray[np.integer]],
        is_label: Sequence[NDArray[np.bool_]],
        temperature: Sequence[NDArray[np.float32]],
        replay_ids: Sequence[NDArray[np.integer]] | None = None,
    ) -> "TokenBatch":
        """Lay trajectories ([T_n] each, at least one token) one after another.

        Raises:
            ValueError: a label at index 0 of a trajectory.
        """
        for number, labels in enumerate(is_label):
            if labels[0]:
                raise ValueError(f"is_label must be False at index 0, got True in trajectory {number}")
        flat_labels = _concatenate(is_label, np.bool_)
        return cls(
            token_ids=_concatenate(token_ids, np.int64),
            temperature=_concatenate(temperature, np.float32),
            is_label=flat_labels,
            offsets=_borders([len(tokens) for tokens in token_ids]),
            replay_ids=None if replay_ids is None else _concatenate(replay_ids, np.int64),
            # no label stands at an index 0, so the shift never crosses into another trajectory
            _predicts=np.append(flat_labels[1:], False)[: len(flat_labels)],
            _label_starts=_borders(flat_labels),
        )

    @property
    def lengths(self) -> list[int]:
        """Tokens of each trajectory."""
        return np.diff(self.offsets).tolist()

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_labels(self) -> int:
        """J."""
        return int(self._label_starts[-1])

    def label_numbers(self, trajectories: Sequence[int]) -> Tensor:
        """Numbers of all labels of these trajectories, trajectory after trajectory, int64."""
        borders = self._label_starts[self.offsets]
        return torch.from_numpy(_ranges(borders[list(trajectories)], borders[[i + 1 for i in trajectories]]))

    def token_numbers(self, trajectories: Sequence[int]) -> Tensor:
        """Places of all tokens of these trajectories, trajectory after trajectory, int64."""
        return torch.from_numpy(_ranges(self.offsets[list(trajectories)], self.offsets[[i + 1 for i in trajectories]]))

    def inputs(self, step: MicroStep) -> MicroStepInputs:
        """Cut a micro-step; a dummy becomes one token of no trajectory, in which every parameter takes part."""
        if step.is_dummy:
            return _DUMMY
        starts = np.array([self.offsets[segment.trajectory] + segment.start for segment in step.segments])
        lengths = np.array([segment.num_tokens for segment in step.segments])
        tokens = _ranges(starts, starts + lengths)
        positions = np.flatnonzero(self._predicts[tokens])
        labels = tokens[positions] + 1
        replay_ids = np.zeros((0, 0, 0), np.int64) if self.replay_ids is None else self.replay_ids[tokens]
        return MicroStepInputs(
            token_ids=torch.from_numpy(self.token_ids[tokens]),
            offsets=torch.from_numpy(_borders(lengths)),
            label_positions=torch.from_numpy(positions),
            label_ids=torch.from_numpy(self.token_ids[labels]),
            temperature=torch.from_numpy(self.temperature[labels]),
            label_numbers=torch.from_numpy(self._label_starts[labels]),
            token_numbers=torch.from_numpy(tokens),
            replay_ids=torch.from_numpy(replay_ids),
        )


def _concatenate(arrays: Sequence[NDArray], dtype: DTypeLike) -> NDArray:
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)


def _borders(counts: Sequence[int] | NDArray) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def _ranges(starts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """All integers of [start, end), range after range."""
    ranges = (np.arange(start, end) for start, end in zip(starts, ends, strict=True))
    return np.concatenate([np.zeros(0, np.int64), *ranges])


_NO_LABELS = torch.zeros(0, dtype=torch.int64)
_DUMMY = MicroStepInputs(
    token_ids=torch.zeros(1, dtype=torch.int64),
    offsets=torch.tensor([0, 1]),
    label_positions=_NO_LABELS,
    label_ids=_NO_LABELS,
    temperature=torch.zeros(0),
    label_numbers=_NO_LABELS,
    token_numbers=torch.zeros(0, dtype=torch.int64),
    replay_ids=torch.zeros(0, 0, 0, dtype=torch.int64),
)
