"""What an episode leaves behind: tokens, who wrote them, with which weights, and what they earned.

Index t of every array speaks of token t: `behaviour_logprob[t]` is the log-probability of token t given the tokens
before it. Nothing here needs torch; files are `trajectory_file.py`'s.

Dimensions: T tokens of the trajectory, M layers with routed experts (in order of depth), k experts a token.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BoolArray = NDArray[np.bool_]
Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]
UInt16Array = NDArray[np.uint16]

_MAX_REWARD = float(np.finfo(np.float32).max)


@dataclass(frozen=True, slots=True, order=True)
class PolicyVersion:
    """The weights that sampled a token. Ordered: first by incarnation, then by step."""

    incarnation: int
    """Times the run was restored before these weights were published; steps of a lost incarnation never repeat."""
    step: int
    """Learner steps that these weights have seen."""


class Source(Enum):
    """Who wrote what is trainable. Reinforcement learning refuses all but the policy's."""

    policy = "policy"
    demonstrator = "demonstrator"
    text = "text"
    """A document's author: no episode, one turn from the second token to the last."""


class Outcome(Enum):
    """How an episode ended."""

    success = "success"
    failure = "failure"
    truncated_length = "truncated_length"
    truncated_turns = "truncated_turns"
    truncated_time = "truncated_time"
    malformed = "malformed"
    tool_error = "tool_error"
    sandbox_error = "sandbox_error"
    environment_error = "environment_error"
    infrastructure_error = "infrastructure_error"
    engine_error = "engine_error"

    @property
    def is_infrastructure(self) -> bool:
        """True where the policy had no part in the end: such an episode is played again or masked, never rewarded.

        `environment_error` is not among them: this episode's own call broke its environment, and would again.
        """
        return self in (Outcome.sandbox_error, Outcome.infrastructure_error, Outcome.engine_error)

    @property
    def is_breakdown(self) -> bool:
        """True where the environment or infrastructure broke down, so that the episode came to no end of its own."""
        return self.is_infrastructure or self is Outcome.environment_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One model call: where its tokens stand and what it earned."""

    start: int
    """Index of the first sampled token (the generation prefix before it was not sampled)."""
    end: int
    """Index after the last sampled token; observations follow from here."""
    temperature: float
    """Temperature of the distribution that `behaviour_logprob` speaks of; > 0, also where decoding was greedy."""
    reward_terms: dict[str, float]
    """Name to reward earned by this turn's calls; empty where it earned nothing."""
    num_calls: int
    """Tool calls that reached the environment."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trajectory:
    """One episode's token stream.

    Example:
        A prompt of three tokens, a turn of two, an observation of one, a turn of one::

            index              0     1     2     3     4     5     6
            token_ids          p     p     p     a     a     o     a
            trainable          no    no    no    yes   yes   no    yes
            behaviour_logprob  0     0     0     -.2   -.1   0     -.4
            policy_step        0     0     0     7     7     0     8
            temperature        1     1     1     .8    .8    1     .8

        with `turns = (Turn(start=3, end=5, ...), Turn(start=6, end=7, ...))`: the weights were swapped in between.
    """

    token_ids: Int32Array
    """[T] int32: the whole stream, prompts and observations included; T >= 1."""
    trainable: BoolArray
    """[T] bool: True where an assistant turn's author chose the token; False at index 0, which nothing predicts."""
    source: Source
    behaviour_logprob: Float32Array
    """[T] float32, nats: log-probability in the distribution sampled from; 0 where no policy sampled it."""
    policy_incarnation: Int32Array
    """[T] int32: `PolicyVersion.incarnation` of the weights that sampled it; 0 where no policy sampled it."""
    policy_step: Int32Array
    """[T] int32: `PolicyVersion.step`, likewise."""
    turns: tuple[Turn, ...]
    """In order, without overlap; every trainable token lies in one."""
    outcome_terms: dict[str, float]
    """Name to reward for the episode as a whole."""
    outcome: Outcome
    task_id: str
    group_id: str
    index: int
    """Place in the group, from 0."""
    attempt: int
    """Times that this place was played before, after infrastructure failures."""
    seed: int
    """Seed of the environment's task; equal over a group."""
    expert_ids: UInt16Array | None = None
    """[T, M, k] uint16: experts used when token t was fed. Rows of tokens never fed (the last one) hold nothing."""
    info: dict[str, Any] = field(default_factory=dict)
    """JSON values about the task and the end of the episode: question class, cause of a failure."""

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_trainable(self) -> int:
        """True entries of `trainable`."""
        return int(self.trainable.sum())

    @property
    def trainable_by_version(self) -> tuple[tuple[PolicyVersion, int], ...]:
        """Number of trainable tokens by the weights that sampled them, oldest first."""
        pairs = np.stack([self.policy_incarnation[self.trainable], self.policy_step[self.trainable]], axis=1)
        versions, counts = np.unique(pairs, axis=0, return_counts=True)
        return tuple(
            (PolicyVersion(*version), count) for version, count in zip(versions.tolist(), counts.tolist(), strict=True)
        )

    @property
    def reward(self) -> float:
        """Sum of every term, of the turns and of the outcome."""
        return total_reward((turn.reward_terms for turn in self.turns), self.outcome_terms)

    @property
    def temperature(self) -> Float32Array:
        """[T] float32: the turn's temperature at its tokens, 1 elsewhere."""
        values = np.ones(self.num_tokens, np.float32)
        for turn in self.turns:
            values[turn.start : turn.end] = turn.temperature
        return values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """The trajectories of one task, which share its prompt and are compared with each other."""

    task_id: str
    group_id: str
    trajectories: tuple[Trajectory, ...]
    first_version: PolicyVersion
    """Weights when the group was started, or those of a journal's oldest token; no token is older. (0, 0) for
    demonstrations."""
    last_version: PolicyVersion
    """Weights when the group was finished; no token is younger."""
    made_by: str
    """Name of the actor that played it."""

    @property
    def rewards(self) -> Float32Array:
        """[number of trajectories] float32."""
        return np.array([trajectory.reward for trajectory in self.trajectories], np.float32)


def total_reward(turn_terms: Iterable[Mapping[str, float]], outcome_terms: Mapping[str, float]) -> float:
    """Sum of every term; the order is fixed, since sums of floats depend on it."""
    return sum(sum(terms.values()) for terms in turn_terms) + sum(outcome_terms.values())


def validate(trajectory: Trajectory) -> None:
    """Hold a trajectory to what its fields promise.

    Raises:
        ValueError: naming the field, the rule and what was found.
    """
    num_tokens = len(trajectory.token_ids)
    _check_array("token_ids", trajectory.token_ids, np.int32, (num_tokens,))
    _check_array("trainable", trajectory.trainable, np.bool_, (num_tokens,))
    _check_array("behaviour_logprob", trajectory.behaviour_logprob, np.float32, (num_tokens,))
    _check_array("policy_incarnation", trajectory.policy_incarnation, np.int32, (num_tokens,))
    _check_array("policy_step", trajectory.policy_step, np.int32, (num_tokens,))
    if trajectory.expert_ids is not None:
        _check_array("expert_ids", trajectory.expert_ids, np.uint16, (num_tokens, *trajectory.expert_ids.shape[1:]))
        if trajectory.expert_ids.ndim != 3:
            raise ValueError(f"expert_ids must have three axes, got shape {trajectory.expert_ids.shape}")
    if num_tokens == 0:
        raise ValueError("token_ids must not be empty")
    if int(trajectory.token_ids.min()) < 0:
        raise ValueError(f"token_ids must be at least 0, got {int(trajectory.token_ids.min())}")
    _check_turns(trajectory)
    sampled = trajectory.trainable if trajectory.source is Source.policy else np.zeros(num_tokens, np.bool_)
    for name in ("behaviour_logprob", "policy_incarnation", "policy_step"):
        values = getattr(trajectory, name)
        if values[~sampled].any():
            raise ValueError(f"{name} must be 0 where no policy sampled a trainable token")
    if not np.isfinite(trajectory.behaviour_logprob).all():
        raise ValueError("behaviour_logprob must be finite")
    for terms in (trajectory.outcome_terms, *(turn.reward_terms for turn in trajectory.turns)):
        for name, value in terms.items():
            if not isfinite(value):
                raise ValueError(f"reward term {name!r} must be finite, got {value}")
    # rewards are compared as float32
    if not abs(trajectory.reward) <= _MAX_REWARD:
        raise ValueError(f"the sum of the reward terms must be at most {_MAX_REWARD:.4g}, got {trajectory.reward}")


def validate_group(group: Group) -> None:
    """Hold a group, and each of its trajectories, to what their fields promise.

    Raises:
        ValueError: naming the field, the rule and what was found.
    """
    if group.first_version > group.last_version:
        raise ValueError(f"first_version must not be after {group.last_version}, got {group.first_version}")
    for trajectory in group.trajectories:
        validate(trajectory)
        for name in ("task_id", "group_id"):
            if getattr(trajectory, name) != getattr(group, name):
                raise ValueError(
                    f"{name} must be {getattr(group, name)!r} in a group, got {getattr(trajectory, name)!r}"
                )
        if trajectory.source is Source.policy:
            _check_versions(trajectory, group)


def _check_array(name: str, array: NDArray[Any], dtype: DTypeLike, shape: tuple[int, ...]) -> None:
    if array.dtype != dtype or array.shape != shape:
        raise ValueError(f"{name} must be {np.dtype(dtype)} {list(shape)}, got {array.dtype} {list(array.shape)}")


def _check_turns(trajectory: Trajectory) -> None:
    written = np.zeros(trajectory.num_tokens, np.bool_)
    # nothing predicts index 0, so no turn starts there
    after = 1
    for number, turn in enumerate(trajectory.turns):
        if not after <= turn.start <= turn.end <= trajectory.num_tokens:
            raise ValueError(
                f"turns[{number}] must lie in [{after}, {trajectory.num_tokens}], got [{turn.start}, {turn.end})"
            )
        if not (isfinite(turn.temperature) and turn.temperature > 0.0):
            raise ValueError(f"turns[{number}].temperature must be above 0, got {turn.temperature}")
        if turn.num_calls < 0:
            raise ValueError(f"turns[{number}].num_calls must be at least 0, got {turn.num_calls}")
        written[turn.start : turn.end] = True
        after = turn.end
    outside = np.flatnonzero(trajectory.trainable & ~written)
    if len(outside):
        raise ValueError(f"trainable must be False outside the turns, got True at index {int(outside[0])}")


def _check_versions(trajectory: Trajectory, group: Group) -> None:
    incarnations = trajectory.policy_incarnation[trajectory.trainable]
    steps = trajectory.policy_step[trajectory.trainable]
    if not len(steps):
        return
    # lexsort orders by its last key first
    order = np.lexsort((steps, incarnations))
    oldest, newest = (PolicyVersion(int(incarnations[i]), int(steps[i])) for i in (order[0], order[-1]))
    if not group.first_version <= oldest <= newest <= group.last_version:
        raise ValueError(
            f"token versions must lie in [{group.first_version}, {group.last_version}], got [{oldest}, {newest}]"
        )
