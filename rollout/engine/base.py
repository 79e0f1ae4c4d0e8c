"""What an engine is: something that turns sessions into tokens.

Dimensions: n tokens of one completion.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from numpy.typing import ArrayLike

from segue.model.weights import WeightUpdate
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import Float32Array, Int32Array, PolicyVersion, Source


class EngineFailure(Exception):
    """An engine could not serve a session for reasons that are not the session's."""


class FinishReason(Enum):
    """Why a completion ended."""

    stop = "stop"
    """A stop token was sampled; it is the last token."""
    length = "length"
    """`max_new_tokens` were sampled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn.

    Raises:
        ValueError: a value out of range, or a distribution that training cannot correct for.
    """

    temperature: float
    """Divides the logits; > 0, and also what recorded log-probabilities speak of where decoding is greedy."""
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    """Token ids that end a completion; empty samples `max_new_tokens` in any case."""
    seed: int
    """Noise is a function of this seed, the session's id and the token's position."""
    training: bool
    """True where the tokens will be trained on: greedy, top_p and top_k are then refused."""
    greedy: bool = False
    """Take the likeliest token."""
    top_p: float = 1.0
    """Smallest mass of likeliest tokens to sample from, in (0, 1]; evaluation only."""
    top_k: int | None = None
    """Number of likeliest tokens to sample from; evaluation only."""

    def __post_init__(self) -> None:
        if not self.temperature > 0.0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}; set greedy for the likeliest token")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, got {self.max_new_tokens}")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {self.top_k}")
        if self.training and (self.greedy or self.is_truncated):
            raise ValueError("greedy, top_p and top_k must be left alone in training: they are for evaluation only")

    @property
    def is_truncated(self) -> bool:
        """True where unlikely tokens are excluded."""
        return self.top_p < 1.0 or self.top_k is not None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Completion:
    """What one call of `generate` sampled. The session already holds the tokens; their expert ids stand there too."""

    token_ids: Int32Array
    """[n] int32, n >= 1, the stop token included."""
    logprobs: Float32Array
    """[n] float32, nats: in the distribution that the token was drawn from; 0 from an engine that does not sample."""
    policy_incarnation: Int32Array
    """[n] int32: incarnation of the weights that sampled the token."""
    policy_step: Int32Array
    """[n] int32: step of the weights that sampled the token."""
    finish_reason: FinishReason


class Engine(Protocol):
    """Sessions to tokens. Calls come from one event loop's thread, which no method holds up.

    Invariants:
        A session's stream is only ever appended to. What a session samples depends on its tokens, its id, the seed and
        the weights, not on what runs beside it: on CPU, in fp32 and wider, to the last bit of each log-probability, as
        long as its state is not evicted (`docs/numerics.md`). Tokens carry the version that sampled them. Held for
        every engine by tests/contract/test_engine_contract.py.
    """

    @property
    def source(self) -> Source:
        """Who writes this engine's completions."""

    @property
    def version(self) -> PolicyVersion:
        """Version of the weights that the next token will be sampled with."""

    def open(self, session_id: SessionId, *, fork_of: Session | None = None) -> Session:
        """Start a session: empty, or with the tokens so far of another, whose state it shares where it can."""

    def extend(self, session: Session, token_ids: ArrayLike) -> None:
        """Append given tokens; they are fed to the model with the next `generate`."""

    async def generate(self, session: Session, sampling: Sampling) -> Completion:
        """Sample the session's next tokens and append them.

        A session whose call was cancelled can only be closed.

        Raises:
            ValueError: the session is closed, busy or empty, or can never fit into this engine.
            EngineFailure: the engine could not serve it.
        """

    def close(self, session: Session) -> None:
        """End a session and release what is kept for it. Closing twice is allowed."""

    async def load_weights(self, update: WeightUpdate, version: PolicyVersion) -> None:
        """Swap the weights between two steps; every token whose sampling begins afterwards comes from the new ones.

        Raises:
            ValueError: the update does not fit the model.
        """
