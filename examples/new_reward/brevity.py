"""A reward term of your own: a little for saying little, beside what the environment pays."""


def brevity(episode, *, max_tokens: int, weight: float = 0.1) -> float:
    """`weight` for an episode whose turns have at most `max_tokens` tokens, and less the longer they are.

    `segue.rollout.rewards.term.FinishedEpisode` has all that a term may read: text, calls and results of each turn,
    the outcome, what the environment says of the task.
    """
    return weight * min(1.0, max_tokens / max(episode.num_sampled_tokens, 1))
