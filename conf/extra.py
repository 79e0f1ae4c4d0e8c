"""How an extra of this package is installed."""

import sys


def how_to_install(extra: str) -> str:
    """The command, for the interpreter that runs: a mere `pip` may be another's, and would know another segue.

    Args:
        extra: as `pyproject.toml` names it.
    """
    return f"{sys.executable} -m pip install 'segue[{extra}]'"
