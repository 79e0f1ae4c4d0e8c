"""The options and the help that commands share. Light, as every module that a completion or `--help` loads."""

import argparse

from segue.conf.errors import ConfigError
from segue.conf.groups import GROUPS, group_options
from segue.conf.keys import settable_keys_nearest_to

_OVERRIDES = ("key=value", "values that differ from the defaults")


def make_parser(
    command: str, about: str, examples: tuple[str, ...], *, takes: tuple[str, str] = _OVERRIDES
) -> argparse.ArgumentParser:
    """A parser with the options that every command has, and its examples in the help.

    Args:
        takes: what stands beside the options, and what the help says of it.
    """
    lines = ["groups:", *(f"  {group}={'|'.join(group_options(group)) or '…'}" for group in GROUPS)]
    lines += ["", "examples:", *(f"  segue {command} {example}".rstrip() for example in examples)]
    lines += ["", "Every key stands in docs/config.md; `--cfg job` prints the configuration that would run."]
    parser = argparse.ArgumentParser(
        prog=f"segue {command}",
        description=about,
        epilog="\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    metavar, meaning = takes
    parser.add_argument("overrides", nargs="*", metavar=metavar, help=meaning)
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    parser.add_argument("--cfg", choices=["job"], help="print the configuration and do nothing")
    return parser


def add_multirun(parser: argparse.ArgumentParser) -> None:
    """The option of commands that can run once for each combination of values."""
    parser.add_argument(
        "-m", "--multirun", action="store_true", help="run every combination of key=a,b one after another"
    )


def parse(parser: argparse.ArgumentParser, argv: list[str]) -> argparse.Namespace:
    """The options, and the overrides that may stand among them.

    Raises:
        ConfigError: an option is not there; the message says how a key of that name is given.
    """
    arguments, unknown = parser.parse_known_intermixed_args(argv)
    if not unknown:
        return arguments
    option, _, value = unknown[0].partition("=")
    following = argv[argv.index(unknown[0]) + 1 :]
    if not value and following and following[0][0:1] != "-" and "=" not in following[0]:
        value = following[0]
    options = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    hints = [f"{key}={value or '…'}" for key in settable_keys_nearest_to(option.lstrip("-").replace("-", "_"))]
    raise ConfigError(
        f"option must be one of {', '.join(options)}, got {option}; "
        + (f"write {' or '.join(hints)}" if hints else "a key of docs/config.md is given as key=value")
    )
