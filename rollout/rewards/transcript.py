"""A finished episode as text, read back from its tokens: what terms are given."""

from itertools import pairwise

import numpy as np

from segue.model.tokenizer.base import render
from segue.rollout.chat import AssistantTurn, Chat
from segue.rollout.episode import Episode
from segue.rollout.rewards.term import FinishedEpisode, SpokenTurn
from segue.rollout.trajectory import Int32Array, Outcome
from segue.rollout.xtml import MalformedTurn


def read_episode(episode: Episode, outcome: Outcome, chat: Chat) -> FinishedEpisode:
    """The episode as its terms see it; its session may be closed."""
    assert episode.session_id.index is not None, "a prefix is no episode"
    stream = np.zeros(0, np.int32) if episode.session is None else episode.session.token_ids
    spans = [(turn.start, turn.start + len(turn.completion.token_ids)) for turn in episode.turns]
    results = [chat.read_tool_results(stream[end:start]) for (_, end), (start, _) in pairwise(spans)]
    end_of_task = spans[0][0] if spans else len(stream)
    system, user = chat.read_task(stream[:end_of_task]) if end_of_task else ("", "")
    turns = [
        SpokenTurn(
            text=render(chat.tokenizer, stream[start:end]),
            said=_read_turn(stream[start:end], chat),
            results=read,
            reward_terms=turn.reward_terms,
        )
        # nobody read the last one's
        for turn, (start, end), read in zip(episode.turns, spans, [*results, ()], strict=False)
    ]
    return FinishedEpisode(
        task_id=episode.task.id,
        index=episode.session_id.index,
        attempt=episode.session_id.attempt,
        seed=episode.task.seed,
        outcome=outcome,
        system=system,
        user=user,
        turns=tuple(turns),
        info=episode.info,
        num_tokens=len(stream),
        num_sampled_tokens=sum(end - start for start, end in spans),
    )


def _read_turn(token_ids: Int32Array, chat: Chat) -> AssistantTurn | None:
    try:
        return chat.parse_assistant(token_ids)
    except MalformedTurn:
        return None
