"""Standard output of a command where something is wrong with it: closed, on a full disk, no longer read."""

import os
import select
import sys
from io import TextIOWrapper

_LAST_STANDARD = 2


def mend_standard_streams() -> None:
    """Open standard streams that are closed on nothing, and have signs that the terminal's encoding lacks shown as `?`.

    Else the first files that are opened would be in the place of what is closed, and take what libraries print.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD:
        os.set_inheritable(number, True)
    os.close(number)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def flush_output() -> None:
    """Write out what was printed.

    Raises:
        OSError: it cannot be written.
    """
    if sys.stdout is not None:
        sys.stdout.flush()


def give_up_output() -> None:
    """Write out what was printed, or forget it: the end of the interpreter would try again, and complain."""
    try:
        flush_output()
    except OSError:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def has_no_reader() -> bool:
    """True where standard output is a pipe whose other end was closed, as by `head`."""
    try:
        number = sys.stdout.fileno()
    # none, or one that is no file
    except (AttributeError, OSError):
        return False
    poll = select.poll()
    poll.register(number, 0)
    return any(events & select.POLLERR for _, events in poll.poll(0))
