"""Budgets of effort: an episode whose policy sampled more than its task's class needs earns -1, whatever it did."""

from segue.conf.reward_term import OVER_BUDGET_TERM
from segue.envs.reply import CLASS_KEY
from segue.rollout.episode import Episode
from segue.rollout.trajectory import total_reward

BUDGET_KEY = "budget_tokens"
"""Key of a trajectory's info: the budget that it had."""
_OVER_BUDGET_REWARD = -1.0


def task_class(info: dict[str, object]) -> str:
    """The class of a task by what its environment says of it; the empty text where it names none."""
    return str(info.get(CLASS_KEY, ""))


def charge(episode: Episode) -> None:
    """Note the budget of an episode that has ended and was rated, and have one beyond it earn -1.

    Counted are the tokens that the policy sampled, in all turns, reasoning and arguments of calls included. The other
    terms stay as they are: one more, `over_budget`, makes up the difference.

    Source:
        Kimi K3, arXiv 2607.24653, section 4.1.2: the reward becomes -1 where T(y) > tau b0(x).
    Example:
        A budget of 120, an episode of 121 sampled tokens that earned `process` 0.1 and `success` 1: `over_budget` is
        -1 - 1.1 = -2.1, and the sum -1. One of 120 tokens keeps its 1.1.
    """
    budget = episode.task.budgets.get(task_class(episode.info))
    if budget is None:
        return
    episode.info[BUDGET_KEY] = budget
    num_sampled = sum(len(turn.completion.token_ids) for turn in episode.turns)
    if num_sampled > budget:
        earned = total_reward((turn.reward_terms for turn in episode.turns), episode.outcome_terms)
        episode.outcome_terms[OVER_BUDGET_TERM] = _OVER_BUDGET_REWARD - earned
