"""What `rollout.reward_terms.<name>.kwargs` says of a judge."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from segue.conf.errors import ConfigError
from segue.conf.reward_term import RewardTermSpec


@dataclass(kw_only=True, slots=True)
class JudgeSettings:
    """A model that rates an episode by a rubric."""

    rubric: str = ""
    """What is good and what is not, in words; must be given."""
    model: str | None = None
    """Folder of an exported model, which stays as it is; null is the policy itself, with its present weights."""
    scale: int = 10
    """The judge gives a whole number from 0 to this."""
    best: float = 1.0
    """What the highest number is worth; the term is number / scale x best."""
    attempts: int = 3
    """Answers that are sampled at most, until one holds a score."""
    temperature: float = 0.3
    """Of the answer, in [0.01, 100]."""
    max_new_tokens: int = 128
    """Tokens of an answer."""
    state_budget_mb: int = 256
    """Memory for the states of a model of its own in one rollout actor, in MB."""


def read_judge(spec: RewardTermSpec) -> JudgeSettings:
    """The settings of a judge.

    Raises:
        ConfigError: a key is unknown, or a value is none that it takes.
    """
    path = f"{spec.path}.kwargs"
    try:
        merged = OmegaConf.merge(OmegaConf.structured(JudgeSettings), spec.kwargs)
        settings = cast(JudgeSettings, OmegaConf.to_object(merged))
    except OmegaConfBaseException as error:
        raise ConfigError(f"{path} must be settings of a judge, got another: {str(error).splitlines()[0]}") from error
    if not settings.rubric.strip():
        raise ConfigError(f"{path}.rubric must be given, got {settings.rubric!r}")
    if settings.model is None and "state_budget_mb" in spec.kwargs:
        raise ConfigError(f"{path}.state_budget_mb must be left alone while the policy judges: they share its engine's")
    _require(path, "scale", 1, settings.scale, 1_000_000)
    _require(path, "best", -1e6, settings.best, 1e6)
    _require(path, "attempts", 1, settings.attempts, 100)
    _require(path, "temperature", 0.01, settings.temperature, 100.0)
    _require(path, "max_new_tokens", 1, settings.max_new_tokens, 2**31 - 1)
    _require(path, "state_budget_mb", 1, settings.state_budget_mb, 2**31 - 1)
    return settings


def resolve_judge(kwargs: dict[str, Any], absolute: Callable[[str], str]) -> None:
    """Make the path of a judge's model absolute, if there is one."""
    if isinstance(kwargs.get("model"), str):
        kwargs["model"] = absolute(kwargs["model"])


def _require(path: str, name: str, lowest: float, value: float, highest: float) -> None:
    if not lowest <= value <= highest:
        raise ConfigError(f"{path}.{name} must be in [{lowest:g}, {highest:g}], got {value}")
