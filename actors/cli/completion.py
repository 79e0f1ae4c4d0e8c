"""What a shell may put after `segue`: commands, options, keys, names of groups and of choices, paths.

A shell asks by calling `segue` itself with variables of argcomplete's, so that nothing is written down that a release
could make untrue, and nothing heavy is loaded: the schema, and the parser of the command at hand.
"""

import argparse
import importlib
import os
import types
import typing
from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

import argcomplete
from argcomplete.completers import FilesCompleter

from segue.conf.groups import GROUPS, group_options
from segue.conf.keys import known_keys, leaf_type

SHELLS = ("bash", "zsh", "fish")
_PATHS = ("run.dir", "run.init_from", "tokenizer", "env.import_folder")


def answer(commands: Mapping[str, str]) -> None:
    """Tell the shell what may follow, and end this process.

    Args:
        commands: by name, with what each does.
    """
    words = _forget_overrides()
    parser = argparse.ArgumentParser(prog="segue")
    parser.add_argument("--version", action="store_true")
    found = parser.add_subparsers()
    for name, summary in commands.items():
        parents = [_options(name)] if name in words[1:2] else []
        found.add_parser(name, help=summary, parents=parents, add_help=not parents)
    argcomplete.autocomplete(parser, always_complete_options=False)


def shell_code(shell: str) -> str:
    """What turns the completion on in a shell that reads it."""
    return argcomplete.shellcode(["segue"], shell=shell)


def complete_override(prefix: str, **_: object) -> Iterable[str]:
    """Overrides that begin so: keys up to their `=`, then values where they can be listed."""
    key, equals, value = prefix.partition("=")
    if not equals:
        return [f"{name}=" for name in (*GROUPS, *known_keys()) if leaf_type(name) is not None or name in GROUPS]
    return [f"{key}={choice}" for choice in _choices(key, value)]


def _forget_overrides() -> list[str]:
    """Leave those that are complete out of the line: the parser takes no more of them behind an option.

    Returns:
        The words of the line.
    """
    line = os.environ["COMP_LINE"][: int(os.environ["COMP_POINT"])]
    *given, last = line.split(" ")
    words = [*(word for word in given if word.startswith("-") or "=" not in word), last]
    os.environ["COMP_LINE"] = " ".join(words)
    os.environ["COMP_POINT"] = str(len(os.environ["COMP_LINE"]))
    return words


def _options(command: str) -> argparse.ArgumentParser:
    module = importlib.import_module(f"segue.actors.cli.{command.replace('-', '_')}_command")
    parser: argparse.ArgumentParser = module.build_parser()
    for action in parser._actions:
        if action.dest == "overrides":
            action.completer = complete_override  # type: ignore[attr-defined]
    return parser


def _choices(key: str, value: str) -> Iterable[str]:
    if key in GROUPS:
        return group_options(key)
    if key in _PATHS:
        paths: Iterable[str] = FilesCompleter()(value)
        return paths
    if key == "env.id":
        # gymnasium takes a third of a second, for this key alone
        from segue.envs.factory import known_ids

        return known_ids()
    kind = leaf_type(key)
    if typing.get_origin(kind) is list:
        (element,) = typing.get_args(kind)
        return _lists(_words(element), value)
    return [word for alternative in _alternatives(kind) for word in _words(alternative)]


def _lists(words: list[str], value: str) -> list[str]:
    """What is there of a list, such as `[a,`, with each word that is not yet in it."""
    given = value.removeprefix("[").split(",")[:-1]
    return [f"[{','.join([*given, word])}]" for word in words if word not in given]


def _alternatives(kind: object) -> tuple[object, ...]:
    return typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)


def _words(kind: Any) -> list[str]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return [member.name for member in kind]
    return {bool: ["true", "false"], types.NoneType: ["null"]}.get(kind, [])
