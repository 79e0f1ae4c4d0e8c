"""Why a run, or a part of it, does not go on."""


class RunError(RuntimeError):
    """The run cannot go on: one message that says who, what and what to do."""


class ActorLost(RunError):
    """An actor's process is gone, or gives no answer: another can take its place."""


class NeverBegan(ActorLost):
    """An actor was to begin on a node that is gone, before Ray knew; nothing speaks against the actor."""


class Silent(ActorLost):
    """An actor gave no answer in time: it may be stuck, or never have found a place."""


class RayLost(RunError):
    """Ray itself is gone on this machine, and every actor with it: the run goes on with a new one."""


class Interrupted(Exception):
    """The user asked the run to end; not a failure."""
