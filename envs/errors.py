"""Failures of an episode, by the boundary that they crossed; each is recorded once, by the agent that plays it."""


class EnvironmentFailure(Exception):
    """The environment raised, hung, died or broke its contract while it ran this episode's call.

    The episode is over; its worker has been replaced if that was needed. One string argument, so that it pickles.
    """


class InfrastructureFailure(Exception):
    """The episode was lost through no fault of its own: it may be played again. One string argument."""


class EnvironmentSetupError(Exception):
    """No episode can start: the environment cannot be found, built or used. One string argument with the remedy."""
