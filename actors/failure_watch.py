"""Ends a run in which nothing but failures comes back: the fault is then not the tasks', nor the policy's."""

from collections import Counter
from collections.abc import Callable

from segue.actors.errors import RunError
from segue.actors.evaluation import Evaluation
from segue.actors.faults import Fault
from segue.actors.group_record import GroupRecord
from segue.conf.rules import SAMPLED_MODE

_GIVEN_UP = "rollout actors were lost over it"


class FailureWatch:
    """Counts groups in a row that failed as a whole: nothing to train is left, or every episode's environment broke.

    The former would keep the run waiting for ever, the latter would train as failure of the policy.
    """

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._num_groups = 0
        self._causes: Counter[str] = Counter()

    def see(self, record: GroupRecord) -> None:
        """A group finished.

        Raises:
            RunError: more than `max_groups` in a row failed; it names the most common cause.
        """
        if not _has_failed(record):
            self._num_groups = 0
            self._causes.clear()
            return
        self._num_groups += 1
        causes = [episode.cause for episode in record.episodes]
        self._causes.update(causes or [_GIVEN_UP])
        if self._num_groups > self._max_groups:
            raise RunError(
                f"no episode of {self._num_groups} groups in a row came to an end of its own; most often: "
                f"{self._causes.most_common(1)[0][0]}"
            )


def heed_evaluation(mode: str, evaluation: Evaluation, note: Callable[[Fault], None], *, may_end: bool) -> None:
    """Tell of an evaluation's episodes that did not come to an end of their own.

    Args:
        mode: how they were played.
        may_end: it is the first, and what follows is played in the same way.
    Raises:
        RunError: it may end the run, and none of them did.
    """
    if not evaluation.num_breakdowns:
        return
    total = sum(evaluation.outcomes.values())
    if evaluation.num_breakdowns == total and mode == SAMPLED_MODE and may_end:
        raise RunError(
            f"no episode of the first evaluation ({mode}, {total} episodes) came to an end of its own; the first: "
            f"{evaluation.first_cause}"
        )
    note(
        Fault(
            who=f"evaluation ({mode})",
            what=f"{evaluation.num_breakdowns} of {total} episodes did not come to an end of their own; the first: "
            f"{evaluation.first_cause}",
            done="an environment's error counts as failure, infrastructure's as no verdict",
        )
    )


def _has_failed(record: GroupRecord) -> bool:
    failed = [episode.outcome.is_breakdown for episode in record.episodes]
    # plain text has no episode that could fail
    return not record.tokens_by_version or (bool(failed) and all(failed))
