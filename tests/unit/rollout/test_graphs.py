"""Decoding steps of fixed sizes, as a GPU captures them: on a CPU they run launch by launch, with the same results."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from model_cases import make_config, make_model
from rollout_cases import make_engine, make_id, make_prompt, make_sampling, open_session, run

from segue.model.checkpoint import published_tensors
from segue.model.weights import pack_weights
from segue.rollout.trajectory import PolicyVersion


def play(engine, samplings, *, swaps=False):
    """Completions of a session a sampling, of which the second half start from a common prefix."""

    async def go():
        prefix = open_session(engine, make_prompt(9), None)
        sessions = []
        for index, _ in enumerate(samplings):
            is_fork = index >= len(samplings) // 2
            session = engine.open(make_id(index), fork_of=prefix if is_fork else None)
            engine.extend(session, make_prompt(3 + 2 * index, seed=index))
            sessions.append(session)
        first = await asyncio.gather(*map(engine.generate, sessions, samplings))
        if swaps:
            await engine.load_weights(pack_weights(published_tensors(make_model(make_config(), seed=5))), LATER)
        return [*first, *await asyncio.gather(*map(engine.generate, sessions, samplings))], sessions

    return run(go())


LATER = PolicyVersion(1, 9)


@pytest.mark.parametrize("swaps", [False, True])
def test_steps_of_fixed_sizes_sample_what_steps_of_any_size_do(swaps):
    samplings = [make_sampling(max_new_tokens=5 + 3 * index) for index in range(5)]
    samplings[1] = replace(samplings[1], training=False, greedy=True)
    free, free_sessions = play(make_engine(), samplings, swaps=swaps)
    fixed, fixed_sessions = play(make_engine(num_spare=1), samplings, swaps=swaps)
    for one, other in zip(free, fixed, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)
        assert np.abs(one.logprobs - other.logprobs).max() < 1e-6
    for one, other in zip(free_sessions, fixed_sessions, strict=True):
        assert np.array_equal(one.expert_ids, other.expert_ids)


def test_rows_that_exclude_tokens_sample_as_in_steps_of_any_size():
    samplings = [make_sampling(max_new_tokens=12), make_sampling(max_new_tokens=12, training=False, top_k=3)]
    free, _ = play(make_engine(), samplings)
    fixed, _ = play(make_engine(num_spare=1), samplings)
    for one, other in zip(free, fixed, strict=True):
        assert np.array_equal(one.token_ids, other.token_ids)


def test_experts_need_not_be_recorded():
    samplings = [make_sampling(max_new_tokens=4)]
    free, _ = play(make_engine(), samplings)
    fixed, sessions = play(make_engine(num_spare=1, record_experts=False), samplings)
    assert np.array_equal(free[0].token_ids, fixed[0].token_ids)
    assert sessions[0].expert_ids is None
