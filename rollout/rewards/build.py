"""From a configuration to the panel that rates episodes."""

from dataclasses import replace
from pathlib import Path

import torch

from segue.conf.judge import JudgeSettings, read_judge
from segue.conf.model_config import ModelConfig
from segue.conf.reward_term import JUDGE_TERM, RewardTermSpec, read_reward_terms
from segue.conf.schema import SegueConfig
from segue.envs.errors import EnvironmentSetupError
from segue.model.checkpoint import import_checkpoint
from segue.model.published_config import load_published_config
from segue.rollout.chat import Chat
from segue.rollout.engine.base import Engine, Sampling
from segue.rollout.engine.native import build_native_engine
from segue.rollout.rewards.judge import Judge, ScoreForm
from segue.rollout.rewards.panel import NamedTerm, RewardPanel
from segue.rollout.rewards.user_term import UserTerm, build_user_term, find_user_term
from segue.rollout.trajectory import PolicyVersion

# of a user's term; what it relies on may be back a moment later
_ATTEMPTS = 3


def build_panel(config: SegueConfig, engine: Engine, chat: Chat, device: torch.device) -> RewardPanel | None:
    """The panel of `rollout.reward_terms`; None without any.

    Args:
        engine: the policy's, which judges where no other model is named.
        chat: the policy's, and every judge's.
        device: where models of judges compute.
    Raises:
        EnvironmentSetupError: a term cannot be found or built.
    """
    terms = []
    for spec in read_reward_terms(config.rollout.reward_terms):
        term: Judge | UserTerm
        if spec.term == JUDGE_TERM:
            # it samples several answers itself, and the same ones if asked again
            term, attempts = _build_judge(spec, config, engine, chat, device), 1
        else:
            term, attempts = build_user_term(spec, config.env.import_folder), _ATTEMPTS
        terms.append(NamedTerm(name=spec.name, term=term, timeout_s=spec.timeout_s, attempts=attempts))
    return RewardPanel(terms) if terms else None


def check_terms(config: SegueConfig, chat: Chat) -> None:
    """Find each term without building it.

    Raises:
        EnvironmentSetupError: one cannot be found, or does not take its arguments.
    """
    for spec in read_reward_terms(config.rollout.reward_terms):
        if spec.term == JUDGE_TERM:
            settings = read_judge(spec)
            model = config.model if settings.model is None else _judge_model(spec, settings.model, chat)
            _form(settings, config, chat, model)
        else:
            find_user_term(spec, config.env.import_folder)


def judges_of_their_own(config: SegueConfig) -> list[tuple[RewardTermSpec, JudgeSettings, Path]]:
    """Judges that are not the policy, and the folders of their models."""
    judges = [
        (spec, read_judge(spec)) for spec in read_reward_terms(config.rollout.reward_terms) if spec.term == JUDGE_TERM
    ]
    return [(spec, settings, Path(settings.model)) for spec, settings in judges if settings.model is not None]


def _judge_model(spec: RewardTermSpec, folder: str, chat: Chat) -> ModelConfig:
    path, vocab_size = f"{spec.path}.kwargs.model", chat.tokenizer.vocab_size
    try:
        model, _ = load_published_config(Path(folder))
    except (OSError, ValueError) as error:
        raise EnvironmentSetupError(f"{path} must be the folder of an exported model, got {folder}: {error}") from error
    if model.vocab_size < vocab_size:
        raise EnvironmentSetupError(
            f"{path} must know the {vocab_size} ids of the run's tokenizer, got a model of {model.vocab_size}"
        )
    return model


def _form(settings: JudgeSettings, config: SegueConfig, chat: Chat, model: ModelConfig) -> ScoreForm:
    # what the engine has room for
    max_tokens = min(config.rollout.max_episode_tokens, model.max_position_embeddings)
    return ScoreForm(chat, settings, max_tokens=max_tokens)


def _build_judge(spec: RewardTermSpec, config: SegueConfig, policy: Engine, chat: Chat, device: torch.device) -> Judge:
    settings, engine, model_config = read_judge(spec), policy, config.model
    if settings.model is not None:
        try:
            model_config, model = import_checkpoint(settings.model)
        except (OSError, ValueError) as error:
            raise EnvironmentSetupError(f"{spec.path}.kwargs.model must be an exported model: {error}") from error
        own = replace(config.rollout, state_budget_mb=settings.state_budget_mb, record_experts=False)
        engine = build_native_engine(model.to(device), own, version=PolicyVersion(0, 0))
    sampling = Sampling(
        temperature=settings.temperature,
        max_new_tokens=settings.max_new_tokens,
        stop_ids=chat.stop_ids,
        seed=config.seed,
        training=False,
    )
    form = _form(settings, config, chat, model_config)
    return Judge(name=spec.name, engine=engine, form=form, settings=settings, sampling=sampling)
