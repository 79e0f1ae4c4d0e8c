"""The module of a user's own loss: found in the command before anything starts, and in each rank of the learner."""

from segue.conf.errors import ConfigError
from segue.conf.schema import LossKind, SegueConfig
from segue.envs.errors import EnvironmentSetupError
from segue.envs.user_module import find_user_object
from segue.learner.user_loss import check_user_loss

_KEY = "learner.loss.custom.function"


def check_loss(config: SegueConfig) -> None:
    """Find the loss and try it, where it is one of the user's own.

    Raises:
        ConfigError: it is not there, does not take its arguments, or is none.
    """
    if config.learner.loss.kind is not LossKind.custom:
        return
    custom = config.learner.loss.custom
    try:
        import_user_loss(config)
        check_user_loss(custom)
    except EnvironmentSetupError as error:
        raise ConfigError(str(error)) from error
    except ValueError as error:
        raise ConfigError(f"{_KEY}={custom.function} {error}") from error
    # the user's code
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{_KEY}={custom.function} cannot be taken: {type(error).__name__}: {error}") from error


def import_user_loss(config: SegueConfig) -> None:
    """Import what the configuration names, if it names a loss of the user's, so that the learner finds it.

    Raises:
        EnvironmentSetupError: it is nowhere, or cannot be imported.
    """
    function = config.learner.loss.custom.function
    if config.learner.loss.kind is LossKind.custom and function is not None:
        find_user_object(function, config.env.import_folder, named_by=f"{_KEY}={function}")
