"""What can be known to fail before any process starts, beyond the configuration's own rules."""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from segue.actors.errors import RunError
from segue.actors.run_folder import EXPORT_NAME
from segue.conf.errors import ConfigError
from segue.conf.load import SHIPPED_WARM_START, STORED_NAME, is_file, require_folder
from segue.conf.model_config import ModelConfig
from segue.conf.placement import device_type
from segue.conf.reward_term import RewardTermSpec
from segue.conf.schema import EnvConfig, OptimizerKind, SegueConfig, Skill
from segue.envs.client import EnvClient
from segue.envs.errors import EnvironmentFailure, EnvironmentSetupError, InfrastructureFailure
from segue.envs.reply import Inspection
from segue.model.describe import describe
from segue.model.device import gpu_memory_bytes
from segue.model.published_config import load_published_config
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import Chat
from segue.rollout.rewards.build import check_terms, judges_of_their_own

NO_OPTIONS: Mapping[str, dict[str, Any]] = MappingProxyType({})

# of a process that has loaded the tensor library
_PROCESS_BYTES = 10**8
# what an optimiser keeps of a parameter at the least, in fp32: both moments of AdamW, the momentum of Muon
_MOMENT_BYTES = {OptimizerKind.adamw: 8, OptimizerKind.muon: 4}


def check_memory(config: SegueConfig, *, num_rollout: int, num_learners: int) -> None:
    """Hold what the actors cannot do without against their budget and this machine's memory.

    Args:
        num_rollout, num_learners: actors that will start; on a cluster that is there they may be anywhere.
    Raises:
        ConfigError: it cannot fit.
    """
    rollout = config.rollout
    budget = rollout.state_budget_mb * 10**6
    needed_mb = -(-episode_state_bytes(config) // 10**6)
    if num_rollout and needed_mb * 10**6 > budget:
        raise ConfigError(
            f"rollout.state_budget_mb must be at least {needed_mb}, for one episode of rollout.max_episode_tokens="
            f"{rollout.max_episode_tokens}, got {rollout.state_budget_mb}"
        )
    if num_rollout:
        budget += _check_judges(config)
    if config.cluster.address is not None:
        return
    rollout_device = device_type(config.cluster.rollout_resources)
    learner_device = device_type(config.cluster.learner_resources)
    for device, memory, whose in (
        ("cpu", psutil.virtual_memory().total, "machine's"),
        ("cuda", gpu_memory_bytes(), "machine's GPU"),
    ):
        players = num_rollout if rollout_device == device else 0
        learners = num_learners if learner_device == device else 0
        if players and budget > memory:
            raise ConfigError(
                f"rollout.state_budget_mb must be below the {memory // 10**6} of this {whose} memory, with those of "
                f"its judges, got {budget // 10**6}"
            )
        least = least_memory_bytes(config, num_rollout=players, num_learners=learners)
        if least > memory:
            raise ConfigError(
                f"model and cluster must fit this {whose} memory of {memory / 1e9:.1f} GB, got at least "
                f"{least / 1e9:,.1f} GB for {players} rollout actors and {learners} learner ranks; take a smaller "
                "model, fewer of them (cluster.rollout_actors, cluster.learner_ranks), or join a cluster "
                "(cluster.address)"
            )


def _check_judges(config: SegueConfig) -> int:
    """Bytes that the states of judges with models of their own may take in one rollout actor."""
    judges = judges_of_their_own(config)
    for spec, settings, folder in judges:
        needed_mb = -(-episode_state_bytes(replace(config, model=_model_in(spec, folder))) // 10**6)
        if needed_mb > settings.state_budget_mb:
            raise ConfigError(
                f"{spec.path}.kwargs.state_budget_mb must be at least {needed_mb}, for one record of "
                f"rollout.max_episode_tokens={config.rollout.max_episode_tokens}, got {settings.state_budget_mb}"
            )
    return sum(settings.state_budget_mb for _, settings, _ in judges) * 10**6


def _model_in(spec: RewardTermSpec, folder: Path) -> ModelConfig:
    try:
        return load_published_config(folder)[0]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{spec.path}.kwargs.model must be an exported model, got another: {error}") from error


def least_memory_bytes(config: SegueConfig, *, num_rollout: int, num_learners: int) -> int:
    """What the actors take at the very least: processes, weights and the optimiser's moments."""
    costs = describe(config.model)
    weights = costs["weights_bytes"][config.learner.precision.name]
    # ZeRO-3 shares the weights out
    num_copies = num_rollout + (min(1, num_learners) if config.learner.zero_stage == 3 else num_learners)
    kinds = (config.learner.optimizer.kind, config.pretrain.optimizer.kind)
    moments = min(_MOMENT_BYTES[kind] for kind in kinds) * costs["parameters"]["total"] if num_learners else 0
    judges = [describe(_model_in(spec, folder)) for spec, _, folder in judges_of_their_own(config)]
    judging = sum(judge["weights_bytes"][config.learner.precision.name] for judge in judges)
    plain = _PROCESS_BYTES * (num_rollout + num_learners)
    return int(num_copies * weights + num_rollout * judging + moments + plain)


def episode_state_bytes(config: SegueConfig) -> int:
    """The state of the longest episode, in the whole pages that a rollout actor keeps it in."""
    state = describe(config.model)["state_bytes"][config.learner.precision.name]
    page_tokens = config.rollout.page_tokens
    num_pages = -(-config.rollout.max_episode_tokens // page_tokens)
    return int(state["recurrent"] + state["conv"] + num_pages * page_tokens * state["row_per_token"])


def check_before_start(config: SegueConfig) -> None:
    """Hold tokenizer, model and initial weights against each other, and find the reward terms.

    Raises:
        ConfigError: they do not fit, or are not there.
    """
    check_tokenizer(config)
    initial_model(config)
    check_reward_terms(config)


def initial_model(config: SegueConfig) -> Path | None:
    """Folder of the exported model to start from; None starts from random weights.

    Raises:
        ConfigError: there is no such folder, or it holds another model than the configured one.
    """
    given = config.run.init_from
    if given is None:
        return None
    folder = Path(str(files("segue.model"))) / SHIPPED_WARM_START if given == SHIPPED_WARM_START else Path(given)
    if not is_file("run.init_from", folder / "config.json"):
        raise ConfigError(
            f"run.init_from must be an exported model, {SHIPPED_WARM_START} or null, got {given}; "
            f"`segue pretrain` makes one"
        )
    _check_same_model(config.model, folder)
    if given == SHIPPED_WARM_START and config.tokenizer != _shipped_tokenizer():
        raise ConfigError(
            f"tokenizer must be {_shipped_tokenizer()} while run.init_from is {SHIPPED_WARM_START}, got "
            f"{config.tokenizer}; run.init_from=null begins with random weights"
        )
    return folder


def trained_model(config: SegueConfig) -> Path:
    """Folder of the exported model to play with: of the run in `run.dir`, else `run.init_from`.

    Raises:
        ConfigError: there is none.
    """
    if config.run.dir is not None:
        require_folder("run.dir", Path(config.run.dir))
        folder = Path(config.run.dir) / EXPORT_NAME
        if not folder.is_dir():
            raise ConfigError(
                f"run.dir must hold a finished run with {EXPORT_NAME}/, got {config.run.dir}; "
                "`segue export` writes one from a checkpoint, for run.init_from"
            )
        if not is_file("run.dir", Path(config.run.dir) / STORED_NAME):
            raise ConfigError(
                f"run.dir must hold {STORED_NAME} beside {EXPORT_NAME}/, got {config.run.dir} without; put it back, or "
                f"give run.init_from={folder} and the rest of the configuration"
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


def check_reward_terms(config: SegueConfig) -> None:
    """Find what `rollout.reward_terms` names; rollout actors build it.

    Raises:
        ConfigError: a term is not there, or does not take its arguments.
    """
    try:
        check_terms(config, Chat(load_tokenizer(config.tokenizer)))
    except EnvironmentSetupError as error:
        raise ConfigError(str(error)) from error


def check_environment(
    config: EnvConfig,
    demonstrator: Skill | None = None,
    options: Mapping[str, dict[str, Any]] = NO_OPTIONS,
    *,
    say: Callable[[str], None],
) -> None:
    """Build the environment on an env worker, and begin an episode with each set of reset options that will be played.

    Args:
        demonstrator: the skill that has to play; asked for one turn.
        options: further reset options that will be played, by what asks for them.
        say: is told where nothing but the environment's info can say what success is.
    Raises:
        ConfigError: it cannot be built, does not begin, or has no such demonstrator.
        RunError: its worker did not start.
    """
    try:
        inspection = asyncio.run(_try_environment(config, demonstrator, options))
    except EnvironmentSetupError as error:
        raise ConfigError(str(error)) from error
    except InfrastructureFailure as error:
        raise RunError(f"an episode of {config.id} could not begin: {error}") from error
    if inspection is not None and inspection.is_foreign and inspection.needed_return is None:
        say(
            f"{config.id} is registered without a reward_threshold: unless info['is_success'] stands in the info of "
            "its last step, every episode fails at its end; else set env.success_return"
        )


async def _try_environment(
    config: EnvConfig, demonstrator: Skill | None, more_options: Mapping[str, dict[str, Any]]
) -> Inspection | None:
    """What the environment says of itself; None where it fails at that, which is no fault of an episode."""
    client = EnvClient(config, 1)
    await client.start()
    try:
        with _told_as(f"env must begin an episode, got {config.id}"):
            await client.reset("preflight", 0, None)
        if demonstrator is not None:
            with _told_as(f"env must have a demonstrator that plays, got {config.id}"):
                await client.expert("preflight", demonstrator.value)
        named = {"env.eval_options": config.eval_options}
        named |= {f"env.variants.{name}": options for name, options in config.variants.items()}
        named |= more_options
        for key, options in named.items():
            with _told_as(f"{key} must be reset options that {config.id} takes, got {options}"):
                await client.reset(key, 0, options)
        try:
            return await client.inspect("preflight")
        except EnvironmentFailure:
            return None
    finally:
        await client.stop()


@contextmanager
def _told_as(rule: str) -> Iterator[None]:
    try:
        yield
    except EnvironmentFailure as error:
        raise ConfigError(f"{rule}: {error}") from error


def _shipped_tokenizer() -> str:
    """The one that the shipped model was trained with."""
    return SegueConfig().tokenizer


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
