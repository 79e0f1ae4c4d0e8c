"""`segue eval`."""

from pathlib import Path

from segue.actors.cli.command_line import add_multirun, compose, make_parser, run_jobs

ABOUT = "Play held-out tasks with a trained model: run.dir names a finished run, or run.init_from an exported model."
EXAMPLES = (
    "run.dir=runs/2026-01-31_12-00-00_train",
    "run.init_from=my_model eval.episodes=500 eval.temperature=0.6",
    "--multirun run.dir=runs/first,runs/second",
)


def main(argv: list[str]) -> int:
    """Run the command."""
    parser = make_parser("eval", ABOUT, EXAMPLES)
    add_multirun(parser)
    arguments = parser.parse_intermixed_args(argv)
    if arguments.multirun:
        return run_jobs("eval", arguments.overrides)
    config = compose("eval", arguments)
    if config is not None:
        # Ray and the tensor library load here and not for --help
        from segue.actors.examine import examine
        from segue.actors.preflight import check_memory

        check_memory(config, num_rollout=config.cluster.rollout_actors, num_learners=0)
        examine(config, arguments=arguments.overrides, launch_folder=Path.cwd())
    return 0
