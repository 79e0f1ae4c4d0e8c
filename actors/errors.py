"""Why a run ends before its last step."""


class RunError(RuntimeError):
    """The run cannot go on: one message that says who, what and what to do."""


class Interrupted(Exception):
    """The user asked the run to end; not a failure."""
