"""`segue train`."""

import argparse
from pathlib import Path

from segue.actors.cli.parser import add_multirun, make_parser, parse

ABOUT = "Train with reinforcement learning. A run.dir that holds a run is resumed."
EXAMPLES = (
    "",
    "seed=1 train.steps=200 cluster.threads=2",
    "algorithm=grpo train.max_staleness=1 cluster.rollout_actors=2",
    "env.id=my_package:MyEnv-v0 run.init_from=null",
    "run.dir=runs/2026-01-31_12-00-00_train",
    "--multirun seed=0,1,2",
)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("train", ABOUT, EXAMPLES)
    add_multirun(parser)
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose, run_jobs

    if arguments.multirun:
        return run_jobs("train", arguments)
    config = compose("train", arguments)
    if config is not None:
        # Ray and the tensor library load here and not for --help
        from segue.actors.phase import PhaseKind
        from segue.actors.preflight import check_memory
        from segue.actors.run import run
        from segue.actors.user_loss import check_loss
        from segue.conf.placement import placed
        from segue.model.device import count_gpus

        settled = placed(config, count_gpus())
        cluster = settled.cluster
        check_memory(settled, num_rollout=cluster.num_rollout_actors, num_learners=cluster.num_learner_ranks)
        check_loss(config)
        run(config, PhaseKind.train, arguments=arguments.overrides, launch_folder=Path.cwd())
    return 0
