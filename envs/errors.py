"""Failures of an episode, by the boundary that they crossed; each is recorded once, by the agent that plays it."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

logger = logging.getLogger(__name__)

# of what an error says
_MAX_CHARS = 2000
# whose frames tell an environment's author nothing
_OURS = {"segue", "gymnasium", "numpy", *sys.stdlib_module_names}
# of a trace that is logged, the last ones
_MAX_FRAMES = 8


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
    """Turns whatever somebody else's code raises, even an exit, into a failure that says where in that code.

    An `InfrastructureFailure` passes: what an environment relies on failed it, such as its query process.
    What Segue itself refuses names no place, for none of its own would help.

    Args:
        what: the call that crosses the boundary, such as `step of episode 3/0/1`.
        kind: what it becomes.
    """
    try:
        yield
    except InfrastructureFailure as error:
        _log(f"{what} was lost", error, _trace_of_others(error))
        raise
    except (Exception, SystemExit) as error:
        trace = _trace_of_others(error)
        _log(f"{what} failed", error, trace)
        place = "" if trace is None else f" ({_place(trace)})"
        raise kind(f"{what}: {type(error).__name__}: {_said(error)}{place}") from error


def _trace_of_others(error: BaseException) -> TracebackType | None:
    """The trace from the environment's own first frame on; None where there is none."""
    trace = error.__traceback__
    while trace is not None and _package(trace) in _OURS:
        trace = trace.tb_next
    return trace


def _place(trace: TracebackType) -> str:
    """Where the package that a trace begins in was left for the last time."""
    package, last, following = _package(trace), trace, trace.tb_next
    while following is not None:
        last = following if _package(following) == package else last
        following = following.tb_next
    code = last.tb_frame.f_code
    return f"{code.co_filename}:{last.tb_lineno} in {code.co_name}"


def _package(trace: TracebackType) -> str:
    name: str = trace.tb_frame.f_globals.get("__name__", "")
    return name.partition(".")[0]


def _log(what: str, error: BaseException, trace: TracebackType | None) -> None:
    """The trace of somebody else's code, or all of it where ours fell over; what ours refused says itself why."""
    refusals = (TypeError, ValueError, NotImplementedError, InfrastructureFailure)
    if trace is None and isinstance(error, refusals):
        return
    shown = trace or error.__traceback__
    text = "".join(traceback.format_exception(type(error), error, shown, limit=-_MAX_FRAMES))
    logger.warning("%s\n%s", what, text.rstrip())


def _said(error: BaseException) -> str:
    """What an error says, in short; it may be megabytes, and fail at that too."""
    try:
        text = str(error)
    except Exception as failure:
        return f"(its text cannot be had: {type(failure).__name__})"
    left_out = len(text) - _MAX_CHARS
    return text if left_out <= 0 else f"{text[:_MAX_CHARS]} [cut: {left_out} more characters]"
