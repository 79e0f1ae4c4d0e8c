"""Failures of an episode, by the boundary that they crossed; each is recorded once, by the agent that plays it."""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)

# of what an error says
_MAX_CHARS = 2000


class EnvironmentFailure(Exception):
    """The environment raised, hung, died or broke its contract while it ran this episode's call.

    The episode is over; its worker has been replaced if that was needed. One string argument, so that it pickles.
    """


class InfrastructureFailure(Exception):
    """The episode was lost through no fault of its own: it may be played again. One string argument."""


class RestoreFailure(InfrastructureFailure):
    """The episode could not be brought back equal: run again, its calls gave something else. One string argument."""


class EnvironmentSetupError(Exception):
    """No episode can start: the environment cannot be found, built or used. One string argument with the remedy."""


@contextmanager
def boundary(
    what: str, kind: type[EnvironmentFailure] | type[InfrastructureFailure] = EnvironmentFailure
) -> Iterator[None]:
    """Turns whatever somebody else's code raises, even an exit, into a failure that says where.

    An `InfrastructureFailure` passes: what an environment relies on failed it, such as its query process.

    Args:
        what: the call that crosses the boundary, such as `step of episode 3/0/1`.
        kind: what it becomes.
    """
    try:
        yield
    except InfrastructureFailure:
        logger.warning("%s was lost", what, exc_info=True)
        raise
    except (Exception, SystemExit) as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        logger.warning("%s failed", what, exc_info=error)
        place = f"{frame.filename}:{frame.lineno} in {frame.name}"
        raise kind(f"{what}: {type(error).__name__}: {_said(error)} ({place})") from error


def _said(error: BaseException) -> str:
    """What an error says, in short; it may be megabytes, and fail at that too."""
    try:
        text = str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
    left_out = len(text) - _MAX_CHARS
    return text if left_out <= 0 else f"{text[:_MAX_CHARS]} [cut: {left_out} more characters]"
