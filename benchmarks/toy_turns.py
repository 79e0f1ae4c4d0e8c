"""A toy of turns whose rewards come late, learnt through the learner's own selection, losses, sweeps and balance.

In each turn the policy sees a sign, drawn anew in every episode, and answers with one token. A right answer earns what
the sign is worth, seen at once but paid `DELAY` turns later, or with the last turn: cheap signs pay little, dear ones
much, so that episodes differ by luck as well. What differs between two runs is a `Setting`.

Legend: N episodes of a step, K turns, T = 2 K tokens.
"""

from collections import deque
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from segue.conf.model_config import LinearAttnConfig, ModelConfig
from segue.conf.schema import AdvantageConfig, CriticConfig, LearnerConfig, LossConfig
from segue.learner.balance import load_violation, router_biases, update_biases
from segue.learner.bare_backend import BareBackend
from segue.learner.critic import make_critic_loss
from segue.learner.policy_batch import load_policy_batch, make_policy_loss
from segue.learner.schedule import SegmentSchedule
from segue.learner.segment_module import SegmentModule, state_layout
from segue.learner.selection import select_trajectories
from segue.learner.staleness import is_fresh
from segue.learner.sweeps import run_sweeps
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel, build_model
from segue.model.routing import Routing
from segue.model.state import DifferentiableState
from segue.model.value_head import ValueHead
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Group, Outcome, PolicyVersion, Source, Trajectory, Turn

NUM_ANSWERS, NUM_TURNS, DELAY = 4, 12, 2
WORTH = np.repeat([0.2, 1.0], NUM_ANSWERS)
"""Of each sign; its right answer is its number modulo `NUM_ANSWERS`."""
SEGMENT = 64
NUM_BINS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How a run learns."""

    advantage: AdvantageConfig
    loss: LossConfig
    critic: CriticConfig = field(default_factory=CriticConfig)
    lr: float = 2e-3
    age: int = 0
    """Learner steps that the weights which play lag behind those that are trained."""
    is_balanced: bool = False
    """The router's biases move."""
    num_groups: int = 2
    group_size: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a run came to, an entry a step."""

    earned: list[float]
    """Earned in the step's episodes, of all that could be."""
    explained: list[float]
    """With a critic, what its values explain of the variance of returns, before the update."""
    violation: list[float]
    """Load of the busiest expert over the mean load, less 1; the worse layer."""


def make_config() -> ModelConfig:
    """A KDA and an MLA layer; the vocabulary is the signs, then the answers."""
    return ModelConfig(
        vocab_size=len(WORTH) + NUM_ANSWERS,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        q_lora_rank=16,
        kv_lora_rank=16,
        qk_nope_head_dim=16,
        qk_rope_head_dim=8,
        v_head_dim=16,
        linear_attn_config=LinearAttnConfig(full_attn_layers=[2], num_heads=2, head_dim=32),
        num_experts=8,
        num_experts_per_token=2,
        moe_intermediate_size=16,
        routed_expert_hidden_size=16,
    )


@torch.no_grad()
def play(
    model: SegueModel, signs_NK: NDArray[np.int64], generator: torch.Generator, step: int, group_size: int
) -> list[StoredGroup]:
    """An episode for each row of signs, all in step, by weights of `step`; `group_size` neighbours are compared."""
    num = len(signs_NK)
    tokens_NT = np.zeros((num, 2 * NUM_TURNS), np.int64)
    logprob_NT = np.zeros((num, 2 * NUM_TURNS), np.float32)
    state = DifferentiableState.zeros(model.config, num, torch.float32)
    for k in range(NUM_TURNS):
        tokens_NT[:, 2 * k] = signs_NK[:, k]
        new_NT = tokens_NT[:, max(2 * k - 1, 0) : 2 * k + 1]
        hidden, state = model(PackedInputs.pack([torch.from_numpy(row) for row in new_NT]), state, Routing())
        log_p = torch.log_softmax(model.lm_head(hidden[new_NT.shape[1] - 1 :: new_NT.shape[1]]), -1)
        said = torch.multinomial(log_p.exp(), 1, generator=generator)
        logprob_NT[:, 2 * k + 1] = log_p.gather(1, said)[:, 0].numpy()
        tokens_NT[:, 2 * k + 1] = said[:, 0].numpy()
    episodes = [
        make_trajectory(tokens_T, logprob_T, index % group_size, step)
        for index, (tokens_T, logprob_T) in enumerate(zip(tokens_NT, logprob_NT, strict=True))
    ]
    return [make_group(episodes[start : start + group_size], step) for start in range(0, num, group_size)]


def make_group(episodes: Sequence[Trajectory], step: int) -> StoredGroup:
    """Episodes that weights of `step` played."""
    version = PolicyVersion(0, step)
    return StoredGroup.of(
        Group(
            task_id="toy",
            group_id="toy",
            trajectories=tuple(episodes),
            first_version=version,
            last_version=version,
            made_by="toy",
        )
    )


def make_trajectory(tokens_T: NDArray[np.int64], logprob_T: NDArray[np.float32], index: int, step: int) -> Trajectory:
    """What right answers earn comes `DELAY` turns later."""
    signs_K, answers_K = tokens_T[::2], tokens_T[1::2] - len(WORTH)
    is_right_K = answers_K == signs_K % NUM_ANSWERS
    earned_K = np.zeros(NUM_TURNS)
    np.add.at(earned_K, np.minimum(np.arange(NUM_TURNS) + DELAY, NUM_TURNS - 1), WORTH[signs_K] * is_right_K)
    return Trajectory(
        token_ids=tokens_T.astype(np.int32),
        trainable=np.arange(len(tokens_T)) % 2 == 1,
        source=Source.policy,
        behaviour_logprob=logprob_T,
        policy_incarnation=np.zeros(len(tokens_T), np.int32),
        policy_step=np.full(len(tokens_T), step, np.int32),
        turns=tuple(
            Turn(start=2 * k + 1, end=2 * k + 2, temperature=1.0, reward_terms={"process": float(r)}, num_calls=1)
            for k, r in enumerate(earned_K)
        ),
        outcome_terms={},
        outcome=Outcome.success if is_right_K.all() else Outcome.failure,
        task_id="toy",
        group_id="toy",
        index=index,
        attempt=0,
        seed=0,
    )


def learn(setting: Setting, seed: int, num_steps: int) -> Learnt:
    """Learn from random weights."""
    config = LearnerConfig(advantage=setting.advantage, critic=setting.critic, loss=setting.loss)
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    model = build_model(make_config(), torch.float32)
    model.init_weights(generator)
    head = ValueHead(model.config.hidden_size, torch.float32) if config.advantage.has_critic else None
    module = SegmentModule(model, NUM_BINS, head)
    backend = BareBackend(module, state_layout(model))
    parameters = [{"params": list(model.parameters()), "lr": setting.lr}]
    if head is not None:
        parameters.append({"params": list(head.parameters()), "lr": setting.lr * config.critic.lr_ratio})
    optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)
    # the oldest plays
    versions = deque([(0, deepcopy(model))], maxlen=setting.age + 1)
    learnt = Learnt(earned=[], explained=[], violation=[])
    for step in range(num_steps):
        signs_NK = rng.integers(0, len(WORTH), (setting.num_groups * setting.group_size, NUM_TURNS))
        played_step, player = versions[0]
        groups = play(player, signs_NK, generator, played_step, setting.group_size)
        earned = sum(member.reward for group in groups for member in group.members)
        learnt.earned.append(float(earned / WORTH[signs_NK].sum()))
        fresh = partial(is_fresh, version=PolicyVersion(0, step), restored_steps=(0,), max_staleness=setting.age)
        selection = select_trajectories(groups, config, fresh)
        if selection.lengths:
            (schedule,) = SegmentSchedule.build(
                selection.lengths, 1, SEGMENT, 64 * SEGMENT, pair_cost=0.0, sweep_all=config.advantage.needs_whole_step
            ).ranks
            batch = load_policy_batch(groups, selection, schedule.trajectories, fresh, config.advantage)
            if config.advantage.has_critic:
                is_warming_up = step < config.critic.warmup_steps
                module.value_reaches_model = not is_warming_up
                loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=is_warming_up)
            else:
                loss_fn = make_policy_loss(batch, config.loss)
            result = run_sweeps(
                backend,
                schedule,
                batch.tokens,
                loss_fn,
                is_exact=True,
                counts_routes=setting.is_balanced,
                measures_logits=False,
            )
            learnt.violation.append(max(load_violation(result.tokens.expert_load)))
            if config.advantage.has_critic:
                learnt.explained.append(explained_variance(groups, selection.members, result.tokens.value.numpy()))
            if setting.is_balanced:
                histogram = result.tokens.route_histogram
                update_biases(router_biases(model), histogram, model.config.num_experts_per_token)
            torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        versions.append((step + 1, deepcopy(model)))
    return learnt


def explained_variance(
    groups: Sequence[StoredGroup], members: Sequence[tuple[int, int]], value_T: NDArray[np.float32]
) -> float:
    """1 - variance of (return - value) over that of returns, before all turns."""
    earned = np.array([groups[group].members[index].turn_rewards for group, index in members])
    returns = earned[:, ::-1].cumsum(1)[:, ::-1]
    return float(1.0 - (returns - value_T.reshape(len(members), -1)[:, ::2]).var() / returns.var())
