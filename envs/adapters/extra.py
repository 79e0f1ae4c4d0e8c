"""The extra that an adapter's foreign package comes with."""

from collections.abc import Iterator
from contextlib import contextmanager

from segue.conf.extra import how_to_install
from segue.envs.errors import EnvironmentSetupError


@contextmanager
def needs_extra(extra: str) -> Iterator[None]:
    """Imports of the extra's packages; one that is not installed becomes a setup error with the remedy.

    Args:
        extra: as `pyproject.toml` names it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise EnvironmentSetupError(
            f"package {error.name} must be installed for this environment, got none; {how_to_install(extra)}"
        ) from error
