"""An engine whose completions are written by a script: demonstrations, tests, simulation. Deterministic, no weights."""

from collections.abc import Awaitable, Callable

import numpy as np
from numpy.typing import ArrayLike

from segue.model.weights import WeightUpdate
from segue.rollout.engine.base import Completion, FinishReason, Sampling
from segue.rollout.session import Session, SessionId
from segue.rollout.trajectory import Int32Array, PolicyVersion, Source

Script = Callable[[Session], Awaitable[Int32Array]]
"""The token ids [n >= 1] of a session's next completion, given its stream so far."""


class ScriptedEngine:
    """See `Engine`. Completions are cut behind the first stop token and at `max_new_tokens`, as if sampled."""

    source = Source.demonstrator

    def __init__(self, script: Script, *, version: PolicyVersion) -> None:
        self.version = version
        self._script = script
        self._busy: set[Session] = set()

    def open(self, session_id: SessionId, *, fork_of: Session | None = None) -> Session:
        """See `Engine`."""
        return Session(session_id, fork_of=fork_of)

    def extend(self, session: Session, token_ids: ArrayLike) -> None:
        """See `Engine`."""
        session.check_open()
        session.append(token_ids)

    async def generate(self, session: Session, sampling: Sampling) -> Completion:
        """See `Engine`."""
        session.check_open()
        session.check_not_empty()
        if session in self._busy:
            raise ValueError(f"{session.id} is generating already")
        self._busy.add(session)
        try:
            ids = await self._script(session)
        finally:
            self._busy.discard(session)
        stops = np.flatnonzero((ids[:, None] == np.asarray(sampling.stop_ids, np.int32)).any(-1))
        length = min(int(stops[0]) + 1 if len(stops) else len(ids), sampling.max_new_tokens)
        ids = ids[:length]
        session.append(ids)
        return Completion(
            token_ids=ids,
            logprobs=np.zeros(length, np.float32),
            policy_incarnation=np.full(length, self.version.incarnation, np.int32),
            policy_step=np.full(length, self.version.step, np.int32),
            finish_reason=FinishReason.stop if ids[-1] in sampling.stop_ids else FinishReason.length,
        )

    def close(self, session: Session) -> None:
        """See `Engine`."""
        session.is_closed = True

    async def load_weights(self, update: WeightUpdate, version: PolicyVersion) -> None:
        """See `Engine`; there are no weights, only the version is taken."""
        self.version = version
