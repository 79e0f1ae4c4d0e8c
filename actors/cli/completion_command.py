"""`segue completion`."""

import argparse

from segue.actors.cli.completion import SHELLS, shell_code

ABOUT = "Print what makes a shell complete segue's commands, options, keys and values."
EPILOG = """in the shell's start file:
  bash, zsh:  eval "$(segue completion bash)"
  fish:       segue completion fish | source"""


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="segue completion", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("shell", choices=SHELLS)
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    print(shell_code(build_parser().parse_args(argv).shell))
    return 0
