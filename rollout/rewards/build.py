"""From a configuration to the panel that rates episodes."""

from segue.conf.reward_term import JUDGE_TERM, RewardTermSpec, read_reward_terms
from segue.conf.schema import SegueConfig
from segue.envs.errors import EnvironmentSetupError
from segue.rollout.rewards.panel import NamedTerm, RewardPanel
from segue.rollout.rewards.user_term import build_user_term, find_user_term


def build_panel(config: SegueConfig) -> RewardPanel | None:
    """The panel of `rollout.reward_terms`; None without any.

    Raises:
        EnvironmentSetupError: a term cannot be found or built.
    """
    terms = [_build(spec, config) for spec in read_reward_terms(config.rollout.reward_terms)]
    return RewardPanel(terms) if terms else None


def check_terms(config: SegueConfig) -> None:
    """Find each term, without building it.

    Raises:
        EnvironmentSetupError: one cannot be found, or does not take its arguments.
    """
    for spec in read_reward_terms(config.rollout.reward_terms):
        find_user_term(spec, config.env.import_folder)


def _build(spec: RewardTermSpec, config: SegueConfig) -> NamedTerm:
    if spec.term == JUDGE_TERM:
        raise EnvironmentSetupError("no judge yet")
    term = build_user_term(spec, config.env.import_folder)
    return NamedTerm(name=spec.name, term=term, timeout_s=spec.timeout_s)
