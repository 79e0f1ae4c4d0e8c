"""Rollout against learner: log-probabilities of sampled tokens, by decoding and by the sweeps, fp32 on CPU.

The engine decodes token by token from carried states; the learner runs the same tokens packed, in segments. They differ
by rounding, and where rounding flips the choice of an expert, by more: so all tokens are compared with the engine's
experts replayed, and those before a trajectory's first flip without.

Not covered here: that the gap stays as it is over steps (tests/e2e/test_frozen_learner.py).
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_cases import NUM_BINS, make_config, make_model
from rollout_cases import make_engine, make_id, make_prompt, make_sampling, open_session, play_turns, run
from tolerances import LOGPROB_GAP_NATS, ROUTE_FLIPS

from segue.learner.bare_backend import BareBackend
from segue.learner.batch import TokenBatch
from segue.learner.schedule import SegmentSchedule
from segue.learner.segment_module import SegmentModule, state_layout, unpack_outputs
from segue.learner.sweeps import evaluate_tokens
from segue.model.network import SegueModel

NUM_SESSIONS, TEMPERATURE = 14, 0.8


@pytest.fixture(scope="module")
def model() -> SegueModel:
    return make_model(make_config(), torch.float32)


@pytest.fixture(scope="module")
def played(model) -> list[tuple]:
    """Per session: stream, experts, and the turns' completions; siblings of one prefix, about 260 tokens each."""
    engine = make_engine(model, num_slots=NUM_SESSIONS + 1, num_pages=1200, max_sessions=NUM_SESSIONS)

    async def play():
        sampling = make_sampling(temperature=TEMPERATURE, max_new_tokens=70)
        prefix = open_session(engine, make_prompt(37), None)
        sessions = [engine.open(make_id(index), fork_of=prefix) for index in range(NUM_SESSIONS)]
        turns = await asyncio.gather(*(play_turns(engine, session, sampling) for session in sessions))
        return [(s.token_ids.copy(), s.expert_ids, t) for s, t in zip(sessions, turns, strict=True)]

    return run(play())


def make_labels(played) -> tuple[TokenBatch, list[np.ndarray]]:
    """The sampled tokens as labels, and the engine's log-probabilities at each token."""
    behaviours, is_label = [], []
    for tokens, _, turns in played:
        behaviour, labels = np.zeros(len(tokens)), np.zeros(len(tokens), bool)
        for start, completion in turns:
            own = slice(start, start + len(completion.token_ids))
            behaviour[own], labels[own] = completion.logprobs, True
        behaviours.append(behaviour)
        is_label.append(labels)
    streams = [tokens for tokens, _, _ in played]
    return TokenBatch.pack(
        streams, is_label, [np.full(len(tokens), TEMPERATURE, np.float32) for tokens in streams]
    ), behaviours


class RouteRecorder(torch.nn.Module):
    """Wraps a module and keeps the experts of each run."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module
        self.routes: list[np.ndarray] = []

    def forward(self, *inputs):
        outputs = self.module(*inputs)
        self.routes.append(unpack_outputs(outputs).expert_ids.numpy())
        return outputs


def learner_view(model: SegueModel, batch: TokenBatch) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Log-probability at each token (0 where not a label) and experts, per trajectory, from the learner's sweep."""
    module = RouteRecorder(SegmentModule(model, NUM_BINS))
    (schedule,) = SegmentSchedule.build(batch.lengths, 1, 64, 640, pair_cost=0.01, sweep_all=True).ranks
    labels = evaluate_tokens(BareBackend(module, state_layout(model)), schedule, batch).logprob.numpy()
    logprob = np.zeros(len(batch.token_ids))
    logprob[batch.is_label] = labels
    routes = np.zeros((len(batch.token_ids), *module.routes[0].shape[1:]), np.int64)
    for step, found in zip(schedule.swept, module.routes, strict=True):
        places = [batch.offsets[s.trajectory] + np.arange(s.start, s.end) for s in step.segments]
        routes[np.concatenate(places)] = found
    return np.split(logprob, batch.offsets[1:-1]), np.split(routes, batch.offsets[1:-1])


def test_all_log_probabilities_agree_once_the_engines_experts_are_replayed(model, played):
    batch, behaviours = make_labels(played)
    batch = replace(batch, replay_ids=np.concatenate([experts for _, experts, _ in played]).astype(np.int64))
    logprobs, _ = learner_view(model, batch)
    gaps = [np.abs(a - b).max() for a, b in zip(logprobs, behaviours, strict=True)]
    assert batch.num_labels == NUM_SESSIONS * 3 * 70
    # two forms of arithmetic, so not the same numbers
    assert 0.0 < max(gaps) <= LOGPROB_GAP_NATS


def test_log_probabilities_agree_up_to_the_first_route_flip_and_flips_are_rare(
    model, played, record_testsuite_property
):
    batch, behaviours = make_labels(played)
    logprobs, routes = learner_view(model, batch)
    num_routes = num_flips = num_compared = 0
    gaps = []
    for (tokens, experts, _), logprob, free, behaviour in zip(played, logprobs, routes, behaviours, strict=True):
        # the last sampled token was never fed to the engine
        flips = (np.sort(free[:-1], -1) != np.sort(experts[:-1], -1)).any(-1)
        flipped_at = np.flatnonzero(flips.any(-1))
        # token t is predicted from the tokens before it, so a flip at t touches predictions from t + 1 on
        clean = flipped_at[0] + 1 if len(flipped_at) else len(tokens)
        num_routes += flips[:clean].size
        num_flips += int(flips[:clean].sum())
        num_compared += clean
        gaps.append(np.abs(logprob - behaviour)[:clean].max())
    record_testsuite_property("route_flips", f"{num_flips} of {num_routes} token-layers")
    record_testsuite_property("logprob_gap_max_nats", max(gaps))
    # enough that one flip is within the bound
    assert num_routes >= 1 / ROUTE_FLIPS
    assert num_flips <= ROUTE_FLIPS * num_routes, f"{num_flips} of {num_routes} token-layers flipped"
    assert num_compared > 0.9 * len(batch.token_ids)
    assert max(gaps) <= LOGPROB_GAP_NATS
