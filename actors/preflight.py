"""What can be known to fail before any process starts, beyond the configuration's own rules."""

import asyncio
from dataclasses import fields
from importlib.resources import files
from pathlib import Path

from segue.actors.errors import RunError
from segue.actors.run_folder import EXPORT_NAME
from segue.conf.errors import ConfigError
from segue.conf.load import SHIPPED_WARM_START
from segue.conf.model_config import ModelConfig
from segue.conf.schema import EnvConfig, SegueConfig, Skill
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure
from segue.model.published_config import load_published_config
from segue.model.tokenizer.load import load_tokenizer


def check_before_start(config: SegueConfig) -> None:
    """Hold tokenizer, model and initial weights against each other.

    Raises:
        ConfigError: they do not fit.
    """
    check_tokenizer(config)
    initial_model(config)


def initial_model(config: SegueConfig) -> Path | None:
    """Folder of the exported model to start from; None starts from random weights.

    Raises:
        ConfigError: there is no such folder, or it holds another model than the configured one.
    """
    given = config.run.init_from
    if given is None:
        return None
    folder = Path(str(files("segue.model"))) / SHIPPED_WARM_START if given == SHIPPED_WARM_START else Path(given)
    if not (folder / "config.json").is_file():
        raise ConfigError(
            f"run.init_from must be an exported model, {SHIPPED_WARM_START} or null, got {given}; "
            f"`segue pretrain` makes one"
        )
    _check_same_model(config.model, folder)
    return folder


def trained_model(config: SegueConfig) -> Path:
    """Folder of the exported model to play with: of the run in `run.dir`, else `run.init_from`.

    Raises:
        ConfigError: there is none.
    """
    if config.run.dir is not None:
        folder = Path(config.run.dir) / EXPORT_NAME
        if not folder.is_dir():
            raise ConfigError(
                f"run.dir must hold a finished run with {EXPORT_NAME}/, got {config.run.dir}; "
                "`segue export` writes one from a checkpoint, for run.init_from"
            )
        return folder
    model = initial_model(config)
    if model is None:
        raise ConfigError("run.init_from must name an exported model where nothing is trained, got null")
    return model


def check_tokenizer(config: SegueConfig) -> None:
    """Hold the tokenizer against the model.

    Raises:
        ConfigError: there is none such, or the model has fewer ids.
    """
    try:
        size = load_tokenizer(config.tokenizer).vocab_size
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if size > config.model.vocab_size:
        raise ConfigError(
            f"model.vocab_size must be at least the {size} ids of tokenizer {config.tokenizer}, "
            f"got {config.model.vocab_size}"
        )


def check_environment(config: EnvConfig, demonstrator: Skill | None = None) -> None:
    """Build the environment once, on an env worker.

    Args:
        demonstrator: the skill that has to play; asked for one turn.
    Raises:
        ConfigError: it cannot be built, or has no such demonstrator.
        RunError: its worker did not start.
    """
    try:
        asyncio.run(_try_environment(config, demonstrator))
    except EnvironmentSetupError as error:
        raise ConfigError(str(error)) from error
    except EnvironmentFailure as error:
        raise ConfigError(f"env must have a demonstrator that plays, got {config.id}: {error}") from error
    except InfrastructureFailure as error:
        raise RunError(f"an episode of {config.id} could not begin: {error}") from error


async def _try_environment(config: EnvConfig, demonstrator: Skill | None) -> None:
    client = EnvClient(config, 1)
    await client.start()
    try:
        if demonstrator is not None:
            await client.reset("preflight", 0, None)
            await client.expert("preflight", demonstrator.value)
    finally:
        await client.stop()


def _check_same_model(wanted: ModelConfig, folder: Path) -> None:
    try:
        found, _ = load_published_config(folder)
    except ValueError as error:
        raise ConfigError(f"run.init_from must hold an exported model, got another: {error}") from error
    different = [
        f"model.{field.name}: {getattr(wanted, field.name)} here, {getattr(found, field.name)} there"
        for field in fields(ModelConfig)
        if getattr(wanted, field.name) != getattr(found, field.name)
    ]
    if different:
        raise ConfigError(f"run.init_from must hold the configured model, got another: {'; '.join(different)}")
