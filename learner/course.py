"""A trajectory as a critic sees it: decisions, what each earned, and the places from which values are read.

A value is read after a token: value t is what is still to be earned once tokens [0, t] have been read. The value before
a decision is therefore that of the token before it.

Legend: A decisions, B turns that something is known to follow, J labels, all of one trajectory.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from segue.conf.schema import AdvantageKind
from segue.rollout.stored_group import TrajectorySummary
from segue.rollout.trajectory import Outcome, Trajectory

CUT = (Outcome.truncated_length, Outcome.truncated_turns, Outcome.truncated_time)
"""Outcomes of episodes that did not end by themselves: there was more to earn."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Course:
    """Decisions of one trajectory: its turns, or its trainable tokens.

    Beside the values before decisions a critic learns those after turns, where the model has not seen the reply yet: an
    episode that is cut there leaves no other place to read what might have followed.

    Example:
        By turns, of `Trajectory`'s example, cut for its number of turns::

            index              0     1     2     3     4     5     6
            token_ids          p     p     p     a     a     o     a

        before (2, 5), after (4,) with next (1,), end 6: what the last turn would have led to is read after it.
    """

    before: NDArray[np.int64]
    """[A] index of the last token before each decision."""
    reward: NDArray[np.float64]
    """[A] what each decision earned before the next; the outcome's terms are the last one's."""
    after: NDArray[np.int64]
    """[B] index of the last token of each turn, but for a last one that was cut."""
    next: NDArray[np.int64]
    """[B] the decision that follows each of these; A where the episode ended: nothing more is earned."""
    end: int | None
    """Index of the token whose value stands for what an episode that was cut would have earned; None where it ended."""
    of_label: NDArray[np.int64]
    """[J] the decision that each label is, or belongs to."""

    @property
    def places(self) -> NDArray[np.int64]:
        """[A + B] index of every token after which a value is learnt: `before`, then `after`."""
        return np.concatenate([self.before, self.after])


def most_places(summary: TrajectorySummary, kind: AdvantageKind) -> int:
    """No fewer than the places of a trajectory's course, from its summary alone."""
    num_turns = len(summary.turn_rewards)
    return num_turns + (num_turns if kind is AdvantageKind.turn_gae else summary.num_trainable)


def make_course(trajectory: Trajectory, is_label: NDArray[np.bool_], kind: AdvantageKind) -> Course:
    """Read a trajectory's decisions.

    Args:
        trajectory: at least one trainable token.
        is_label: [T] which of its trainable tokens are trained; the others are decisions all the same.
        kind: `turn_gae` or `token_gae`. A turn's reward is earned by its last token.
    """
    turns = trajectory.turns
    starts, ends = (np.array([getattr(turn, name) for turn in turns], np.int64) for name in ("start", "end"))
    if kind is AdvantageKind.turn_gae:
        before = starts - 1
        own, following = np.arange(len(turns)), np.arange(len(turns)) + 1
        # every label lies in a turn
        of_label = np.searchsorted(starts, np.flatnonzero(is_label), side="right") - 1
    else:
        tokens = np.flatnonzero(trajectory.trainable)
        before = tokens - 1
        following = np.searchsorted(tokens, ends)
        own = np.maximum(following - 1, 0)
        of_label = np.searchsorted(tokens, np.flatnonzero(is_label))
    reward = np.zeros(len(before))
    np.add.at(reward, own, [sum(turn.reward_terms.values()) for turn in turns])
    reward[-1] += sum(trajectory.outcome_terms.values())
    is_cut = trajectory.outcome in CUT
    is_known = (ends > starts) & (following > 0) & ~(is_cut & (following == len(before)))
    return Course(
        before=before,
        reward=reward,
        after=(ends - 1)[is_known],
        next=following[is_known],
        end=_end(trajectory, kind) if is_cut else None,
        of_label=of_label,
    )


def _end(trajectory: Trajectory, kind: AdvantageKind) -> int:
    """Where to read what a cut episode would have earned: the latest place of a kind that is learnt."""
    last = trajectory.turns[-1]
    is_whole = trajectory.outcome is Outcome.truncated_turns or last.num_calls > 0
    # a turn that was cut in the middle is no decision yet; tokens are judged in the middle too
    if kind is AdvantageKind.turn_gae and not is_whole and last.end == trajectory.num_tokens:
        return last.start - 1
    return trajectory.num_tokens - 1
