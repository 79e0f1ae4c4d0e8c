"""`segue <command>`: finds the command, turns errors of the user's into one line and an exit code.

Nothing heavy is imported before a command runs: each has a module of its own.
"""

import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import metadata

from segue.actors.cli.standard_streams import flush_output, give_up_output, has_no_reader, mend_standard_streams
from segue.actors.errors import Interrupted, RunError
from segue.actors.terminal import visible
from segue.conf.environment import apply_driver_environment
from segue.conf.errors import ConfigError

COMMANDS = {
    "train": "reinforcement learning; goes on where a run folder stands",
    "pretrain": "imitation of the environment's demonstrator",
    "eval": "held-out success of a trained model",
    "rollout": "play episodes and print them",
    "simulate": "what a training run's loop would do, in virtual time and without a model",
    "describe": "parameters, memory and operations of a model",
    "check-env": "hold an environment against the contract",
    "export": "write a run's model as other implementations read it",
    "import": "read a model that another implementation wrote",
    "completion": "make bash, zsh or fish complete all this",
}

EXIT_DONE = 0
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
    mend_standard_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    name, rest = (arguments[0], arguments[1:]) if arguments else ("--help", [])
    try:
        code = _run(name, rest)
        flush_output()
    except (ConfigError, RunError) as error:
        if "--debug" in rest:
            raise
        code = _complain(str(error))
    except OSError as error:
        if isinstance(error, BrokenPipeError) and has_no_reader():
            # who reads no more has what was wanted
            code = EXIT_DONE
        elif "--debug" in rest:
            raise
        else:
            # nobody below knows better: a folder that was deleted, a disk that is full
            code = _complain(f"{name} could not go on: {error}; mend that, then give the command again")
    except (Interrupted, KeyboardInterrupt):
        code = EXIT_INTERRUPTED
    give_up_output()
    return code


def _run(name: str, rest: list[str]) -> int:
    if name in ("-h", "--help"):
        print(_overview())
        return EXIT_DONE
    if name == "--version":
        print(f"segue {metadata.version('segue')}")
        return EXIT_DONE
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"; nearest: {close[0]}" if close else ""
        raise ConfigError(f"command must be one of {', '.join(COMMANDS)}, got {name!r}{hint}")
    apply_driver_environment()
    module = importlib.import_module(f"segue.actors.cli.{name.replace('-', '_')}_command")
    try:
        return int(module.main(rest))
    # the parser's, behind its help or its complaint
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_USER_ERROR


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
    # where nobody can be told, the code still says it
    with suppress(OSError):
        # it may quote what an environment said
        print(f"segue: {visible(message)}", file=sys.stderr)
    return EXIT_USER_ERROR


if __name__ == "__main__":
    sys.exit(main())
