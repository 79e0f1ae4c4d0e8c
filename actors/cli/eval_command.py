"""`segue eval`."""

import argparse
from pathlib import Path

from segue.actors.cli.parser import add_multirun, make_parser, parse
from segue.conf.errors import ConfigError

ABOUT = "Play held-out tasks with a trained model: run.dir names a finished run, or run.init_from an exported model."
EXAMPLES = (
    "run.dir=runs/2026-01-31_12-00-00_train",
    "run.init_from=my_model eval.episodes=500 eval.temperature=0.6",
    "--multirun run.dir=runs/first,runs/second",
)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("eval", ABOUT, EXAMPLES)
    add_multirun(parser)
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="new folder for the results (runs/<date>_eval)")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose, run_jobs
    from segue.conf.load import absolute_path

    out = None if arguments.out is None else Path(absolute_path("--out", Path.cwd(), str(arguments.out)))
    if out is not None and out.exists():
        raise ConfigError(f"--out must not exist, got {out}")
    if arguments.multirun:
        return run_jobs("eval", arguments, out=out)
    config = compose("eval", arguments)
    if config is not None:
        # Ray and the tensor library load here and not for --help
        from segue.actors.examine import examine
        from segue.actors.preflight import check_memory
        from segue.conf.placement import placed
        from segue.model.device import count_gpus

        settled = placed(config, count_gpus())
        check_memory(settled, num_rollout=settled.cluster.num_rollout_actors, num_learners=0)
        examine(config, arguments=arguments.overrides, launch_folder=Path.cwd(), out=out)
    return 0
