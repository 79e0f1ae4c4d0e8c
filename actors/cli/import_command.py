"""`segue import`."""

import argparse
from pathlib import Path

from segue.conf.errors import ConfigError

ABOUT = "Read a model in the form of kimi_linear or kimi_k3, check every tensor, and write it for run.init_from."
EPILOG = """examples:
  segue import downloads/some_model my_model"""


def build_parser() -> argparse.ArgumentParser:
    """The options."""
    parser = argparse.ArgumentParser(
        prog="segue import", description=ABOUT, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with config.json and safetensors files")
    parser.add_argument("target", type=Path, help="folder to write; must not exist")
    parser.add_argument("--debug", action="store_true", help="show where an error came from")
    return parser


def main(argv: list[str]) -> int:
    """Run the command."""
    arguments = build_parser().parse_args(argv)
    # the tensor library loads here and not for --help
    from segue.model.checkpoint import export_checkpoint, import_checkpoint

    try:
        _, model = import_checkpoint(arguments.source)
        export_checkpoint(model, arguments.target)
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    print(f"wrote {arguments.target}: {sum(parameter.numel() for parameter in model.parameters()):,} parameters")
    return 0
