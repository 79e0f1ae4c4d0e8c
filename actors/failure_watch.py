"""Ends a run in which nothing but failures comes back: the fault is then not the tasks', nor the policy's."""

from collections import Counter

from segue.actors.errors import RunError
from segue.actors.group_record import GroupRecord
from segue.rollout.trajectory import Outcome

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
        causes = [str(episode.info.get("cause", episode.outcome.value)) for episode in record.episodes]
        self._causes.update(causes or [_GIVEN_UP])
        if self._num_groups > self._max_groups:
            raise RunError(
                f"no episode of {self._num_groups} groups in a row came to an end of its own; most often: "
                f"{self._causes.most_common(1)[0][0]}"
            )


def _has_failed(record: GroupRecord) -> bool:
    failed = [e.outcome.is_infrastructure or e.outcome is Outcome.environment_error for e in record.episodes]
    # plain text has no episode that could fail
    return not record.tokens_by_version or (bool(failed) and all(failed))
