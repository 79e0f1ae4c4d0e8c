"""`segue rollout`."""

import argparse

from segue.actors.cli.parser import make_parser, parse
from segue.conf.errors import ConfigError

ABOUT = (
    "Play held-out episodes and print them, turn by turn, with a trained model or the environment's demonstrator: what "
    "was asked, said, called and brought back, what each turn earned, and how it ended."
)
EXAMPLES = (
    "--episodes 3",
    "--greedy run.dir=runs/2026-01-31_12-00-00_train",
    "--demonstrator pretrain.skill=expert env.kwargs.level=3",
    "--raw run.init_from=my_model",
)


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = make_parser("rollout", ABOUT, EXAMPLES)
    parser.add_argument("--episodes", type=int, default=1, metavar="N", help="how many (1)")
    parser.add_argument("--greedy", action="store_true", help="take the likeliest tokens")
    parser.add_argument(
        "--demonstrator", action="store_true", help="let pretrain.skill (fallible, or expert) play, no model"
    )
    parser.add_argument("--raw", action="store_true", help="print token streams as they are, structure as marks")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = parse(build_parser(), argv)
    # Hydra loads here and not for --help
    from segue.actors.cli.command_line import compose

    if arguments.episodes < 1:
        raise ConfigError(f"--episodes must be at least 1, got {arguments.episodes}")
    config = compose("rollout", arguments)
    if config is not None:
        # Ray and the tensor library load here and not for --help
        from segue.actors.playback import play_and_print
        from segue.actors.preflight import check_memory
        from segue.conf.placement import placed
        from segue.model.device import count_gpus

        check_memory(placed(config, count_gpus()), num_rollout=1, num_learners=0)
        play_and_print(
            config,
            num_episodes=arguments.episodes,
            greedy=arguments.greedy,
            demonstrator=arguments.demonstrator,
            is_raw=arguments.raw,
        )
    return 0
