"""Modules of the user's, and what is in them: installed ones first, then those of the folder of the launch."""

import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from segue.envs.errors import EnvironmentSetupError


def is_module_name(name: str) -> bool:
    """True for the dotted name of a module."""
    return all(part.isidentifier() for part in name.split("."))


def import_user_module(name: str, folder: str | None, *, named_by: str) -> ModuleType:
    """Import a module that a configuration names.

    Args:
        name: dotted.
        folder: `env.import_folder`; None is the present one. It is appended to the path: a file of the user's must not
            hide an installed package.
        named_by: `key=value` that names it, for messages.
    Raises:
        EnvironmentSetupError: it is nowhere.
        Exception: whatever it raises itself.
    """
    folder = folder or os.getcwd()
    if folder not in sys.path:
        sys.path.append(folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise EnvironmentSetupError(
            f"{named_by} names module {name}, which is neither installed nor in {Path(folder)}"
        ) from error


def find_user_object(path: str, folder: str | None, *, named_by: str) -> Any:
    """What `my_module:my_thing` names, `my_module:Outer.inner` too.

    Args:
        path: of it.
        folder, named_by: see `import_user_module`.
    Raises:
        EnvironmentSetupError: the module is nowhere, cannot be imported, or has no such thing.
    """
    module_name, _, attribute = path.partition(":")
    try:
        found: Any = import_user_module(module_name, folder, named_by=named_by)
    except EnvironmentSetupError:
        raise
    # the user's code
    except (Exception, SystemExit) as error:
        raise EnvironmentSetupError(f"{named_by} cannot be imported: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise EnvironmentSetupError(f"{named_by} names {attribute}, which module {module_name} has not")
        found = getattr(found, part)
    return found
