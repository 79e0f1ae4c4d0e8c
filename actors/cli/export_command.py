"""`segue export`."""

import argparse
from pathlib import Path

ABOUT = "Write the model of a run's checkpoint as a folder that other implementations read."
EPILOG = """examples:
  segue export runs/2026-01-31_12-00-00_train my_model
  segue export runs/2026-01-31_12-00-00_train my_model --step 50"""


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="segue export", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run_folder", type=Path, help="folder of a run")
    parser.add_argument("target", type=Path, help="folder to write; must not exist")
    parser.add_argument("--step", type=int, metavar="N", help="checkpoint to take; the newest by default")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = build_parser().parse_args(argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose_stored

    folder = arguments.run_folder.absolute()
    config = compose_stored(folder)
    # Ray and the tensor library load here and not for --help
    from segue.actors.export import export_run

    export_run(config, folder, arguments.target.absolute(), step=arguments.step)
    print(f"wrote {arguments.target}")
    return 0
