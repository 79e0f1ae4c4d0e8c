"""An extra that is not installed: one line with the remedy."""

import pytest

from segue.envs.adapters.extra import needs_extra
from segue.envs.errors import EnvironmentSetupError


def test_a_package_that_is_not_there_is_named_with_the_remedy() -> None:
    words = r"package no_such_package must be installed .* -m pip install 'segue\[mcp\]'"
    with pytest.raises(EnvironmentSetupError, match=words), needs_extra("mcp"):
        import no_such_package  # noqa: F401


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(ImportError, match="cannot import name"), needs_extra("mcp"):
        from json import no_such_name  # noqa: F401
