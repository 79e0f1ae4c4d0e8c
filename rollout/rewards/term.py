"""What a reward term is, and what it reads: the interface for terms of your own. Nothing here needs torch.

A term rates a whole episode when it has ended, beside what the environment paid on the way. It is a function, or a
class whose objects are called, in a module that is installed or lies in the launch folder:

    # my_terms.py
    def brevity(episode, *, max_tokens):
        return 0.1 if episode.num_sampled_tokens <= max_tokens else 0.0

    segue train rollout.reward_terms.brevity.term=my_terms:brevity rollout.reward_terms.brevity.kwargs.max_tokens=40

The name in the configuration is the one that the term is recorded under: in `Trajectory.outcome_terms`, in
`batch/reward_term/brevity` and in evaluations. A term that gives a list, with a number for each turn, rates the turns
and is recorded in theirs (`Turn.reward_terms`), like what the environment paid for their calls.

A function is called with the episode and the keyword arguments; a class is built once, in each rollout actor, with the
keyword arguments, and its object called with the episode. Either may be `async def`, which runs in the rollout actor's
event loop and must not hold it up; what is not runs in a thread of its own, several episodes at a time.

    class Critic:
        def __init__(self, *, url):
            self.url = url

        async def __call__(self, episode):
            return await ask_a_model(self.url, episode.turns[-1].text)
"""

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from segue.rollout.chat import AssistantTurn
from segue.rollout.trajectory import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class SpokenTurn:
    """One model call, as text."""

    text: str
    """What was written, as it was: structure tokens stand as names, such as `<|end_of_msg|>`."""
    said: AssistantTurn | None
    """The same, read: `response`, `calls` (each with `tool` and `arguments`), `think`. None where it is cut or
    malformed."""
    results: tuple[str, ...]
    """What its calls brought back, in their order; empty for the last turn, whose results nobody read."""
    reward_terms: dict[str, float]
    """What its calls earned of the environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedEpisode:
    """An episode that came to an end of its own, whichever: failures of infrastructure are never rated."""

    task_id: str
    index: int
    """Place in the group, from 0."""
    attempt: int
    """Times that this place was played before."""
    seed: int
    """Of the environment's task."""
    outcome: Outcome
    system: str
    """Text of the system message; empty for none."""
    user: str
    """Text of the user's message."""
    turns: tuple[SpokenTurn, ...]
    """May be empty: an environment may fail at once, a prompt fill the episode."""
    info: dict[str, Any]
    """JSON values that the environment said of the task and of the end; the truth may be among them."""
    num_tokens: int
    """Of the whole stream."""
    num_sampled_tokens: int
    """Of the turns."""


class RewardTerm(Protocol):
    """Rates an episode.

    A value is a number in [-1e6, 1e6], or a list (a tuple, an array) of as many as the episode has turns. A try that
    gives neither, raises, or gives none within `timeout_s` has failed, and the term is asked again, three times in all.
    Then it is a failure of infrastructure: the episode is played again, at most `rollout.max_attempts` times in all,
    then masked and never rewarded; a run in which nothing else happens ends.
    Of a thread that is late nothing more is heard.

    Resumed runs repeat themselves to the bit where terms do: let the value follow from the episode alone.
    """

    def __call__(self, episode: FinishedEpisode) -> float | Sequence[float] | Awaitable[float | Sequence[float]]:
        """The value of the episode, or those of its turns."""
