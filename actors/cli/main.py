"""`segue <command>`: finds the command, turns errors of the user's into one line and an exit code.

Nothing heavy is imported before a command runs: each has a module of its own.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from segue.actors.errors import Interrupted, RunError
from segue.actors.terminal import visible
from segue.conf.environment import apply_driver_environment
from segue.conf.errors import ConfigError

COMMANDS = {
    "train": "reinforcement learning; goes on where a run folder stands",
    "pretrain": "imitation of the environment's demonstrator",
    "eval": "held-out success of a trained model",
    "rollout": "play episodes and print them",
    "describe": "parameters, memory and operations of a model",
    "check-env": "hold an environment against the contract",
    "export": "write a run's model as other implementations read it",
    "import": "read a model that another implementation wrote",
    "completion": "make bash, zsh or fish complete all this",
}

EXIT_USER_ERROR = 2
EXIT_INTERRUPTED = 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Returns:
        The exit code: 0, 2 for what the user can mend, 130 after Ctrl-C.
    """
    if "_ARGCOMPLETE" in os.environ:
        # loads for the shell alone, and does not come back
        from segue.actors.cli.completion import answer

        answer(COMMANDS)
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        print(f"segue {metadata.version('segue')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        return _complain(f"command must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")
    apply_driver_environment()
    module = importlib.import_module(f"segue.actors.cli.{name.replace('-', '_')}_command")
    try:
        return module.main(rest)
    except (ConfigError, RunError) as error:
        if "--debug" in rest:
            raise
        return _complain(str(error))
    except OSError as error:
        # nobody below knows better: a folder that was deleted, a disk that is full
        if "--debug" in rest:
            raise
        return _complain(f"{name} could not go on: {error}; mend that, then give the command again")
    except (Interrupted, KeyboardInterrupt):
        return EXIT_INTERRUPTED


def _overview() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items()]
    return "\n".join(
        [
            "segue <command> [key=value ...]",
            "",
            *lines,
            "",
            "segue <command> --help tells more, segue --version which this is.",
        ]
    )


def _complain(message: str) -> int:
    # it may quote what an environment said
    print(f"segue: {visible(message)}", file=sys.stderr)
    return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
