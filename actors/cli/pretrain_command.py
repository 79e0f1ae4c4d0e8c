"""`segue pretrain`."""

import argparse
from pathlib import Path

from segue.actors.cli.parser import add_multirun, make_parser, parse

ABOUT = "Imitate the environment's demonstrator, in stages if you like. A run.dir that holds a run is resumed."
EXAMPLES = (
    "",
    "pretrain.steps=2000 pretrain.skill=expert",
    "experiment=curriculum",
    "run.init_from=runs/2026-01-31_12-00-00_train/export",
)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("pretrain", ABOUT, EXAMPLES)
    add_multirun(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose, run_jobs

    if arguments.multirun:
        return run_jobs("pretrain", arguments)
    config = compose("pretrain", arguments)
    if config is not None:
        # Ray and the tensor library load here and not for --help
        from segue.actors.phase import PhaseKind
        from segue.actors.preflight import check_memory
        from segue.actors.run import run
        from segue.conf.placement import placed
        from segue.model.device import count_gpus

        settled = placed(config, count_gpus())
        cluster = settled.cluster
        check_memory(settled, num_rollout=cluster.num_rollout_actors, num_learners=cluster.num_learner_ranks)
        run(config, PhaseKind.pretrain, arguments=arguments.overrides, launch_folder=Path.cwd())
    return 0
