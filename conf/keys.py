"""The schema as dotted keys: what is known, what a key takes, which known key is nearest to an unknown one."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any, cast

from segue.conf.groups import GROUPS
from segue.conf.schema import SegueConfig

# dictionaries whose keys are the user's
FREE_FORM = (
    "env.kwargs",
    "env.eval_options",
    "env.variants",
    "rollout.reward_terms",
    "learner.loss.custom.kwargs",
    "cluster.rollout_resources",
    "cluster.learner_resources",
)

ELEMENT = "[]"
"""Behind a key: any element of its list."""


def known_keys() -> list[str]:
    """Every dotted key of the schema, sections included, in order."""
    return list(_schema_keys(SegueConfig, ""))


def is_free_form(key: str) -> bool:
    """True where the key is, or lies in, a dictionary whose keys are the user's."""
    return any(key == name or key.startswith(name + ".") for name in FREE_FORM)


def leaf_type(key: str) -> object | None:
    """The type of a known key's value; None where it is a section, or unknown."""
    hint: Any = SegueConfig
    for part in key.split("."):
        hint = typing.get_type_hints(hint).get(part) if dataclasses.is_dataclass(hint) else None
    return None if dataclasses.is_dataclass(hint) else hint


def describe_type(key: str) -> str:
    """What a known key takes, in words: `one of mask, drop`."""
    hint: Any = SegueConfig
    for part in key.split("."):
        name = part.removesuffix(ELEMENT)
        hint = typing.get_type_hints(hint)[name] if dataclasses.is_dataclass(hint) else Any
        if name != part:
            (hint,) = typing.get_args(hint)
    return _describe(hint)


def unknown_key_message(key: str) -> str:
    """One line that names the known keys nearest to an unknown one: those of the same last name, else by spelling."""
    keys = known_keys()
    same_leaf = [known for known in keys if known.rpartition(".")[2] == key.rpartition(".")[2]]
    close = difflib.get_close_matches(key, list(_element_keys()), n=1) if "." not in key else []
    if close and not same_leaf:
        return f"{key} must be a known key, got an unknown one; nearest: {_element_keys()[close[0]]}"
    nearest = same_leaf or difflib.get_close_matches(key, keys, n=1, cutoff=0.0)
    return f"{key} must be a known key, got an unknown one; nearest: {', '.join(nearest[:3])}"


def settable_keys_nearest_to(name: str) -> list[str]:
    """Groups and keys that take a value: that of this name, up to three of this last name, or that of the nearest."""
    settable = [*GROUPS, *(key for key in known_keys() if leaf_type(key) is not None)]
    if name in settable or is_free_form(name):
        return [name]
    last_names = {key: key.rpartition(".")[2] for key in settable}
    close = difflib.get_close_matches(name.rpartition(".")[2], last_names.values(), n=1)
    return [key for key, last in last_names.items() if last in close][:3]


def element_key(name: str) -> str | None:
    """The dotted key of what an element of a list of sections is told by name alone; None for what is none."""
    return _element_keys().get(name)


def element_sections() -> dict[str, type]:
    """Dotted key of each list of sections to what its elements are."""
    found: dict[str, type] = {}
    for key in known_keys():
        hint = leaf_type(key)
        if typing.get_origin(hint) is list and dataclasses.is_dataclass(section := typing.get_args(hint)[0]):
            found[key] = cast(type, section)
    return found


def nearest_word(word: str, words: list[str]) -> str:
    """`; nearest: <word>`, or nothing where none is near."""
    close = difflib.get_close_matches(word, words, n=1)
    return f"; nearest: {close[0]}" if close else ""


def _schema_keys(section: type, prefix: str) -> Iterator[str]:
    for name, hint in typing.get_type_hints(section).items():
        yield prefix + name
        if dataclasses.is_dataclass(hint):
            yield from _schema_keys(cast(type, hint), f"{prefix}{name}.")


def _element_keys() -> dict[str, str]:
    """Field of a list's sections to its dotted key: OmegaConf's messages name the field alone."""
    return {
        field.name: f"{key}{ELEMENT}.{field.name}"
        for key, section in element_sections().items()
        for field in dataclasses.fields(section)
    }


def _describe(hint: Any) -> str:
    plain = {int: "an integer", float: "a number", bool: "true or false", str: "a string", types.NoneType: "null"}
    if hint in plain:
        return plain[hint]
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + ", ".join(member.name for member in hint)
    if dataclasses.is_dataclass(hint):
        return "a section"
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        return " or ".join(_describe(argument) for argument in arguments)
    if typing.get_origin(hint) is list:
        return f"a list, each {_describe(arguments[0])}"
    return "a dictionary" if typing.get_origin(hint) is dict else "a value"
