"""What a critic is worth where rewards come late: steps through the learner's own selection, losses and sweeps.

A toy of turns: in each the policy sees a sign and answers with one token; a right answer earns its part of 1, but two
turns later, or with the last turn. Group mean pays a trajectory's whole reward to all of its turns; turn returns pay a
turn what comes after it, also for earlier answers; a critic may know what earlier answers will still bring.

python benchmarks/bench_critic.py            # a few minutes on one core; prints a line a run
"""

import argparse
import time
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from segue.conf.model_config import LinearAttnConfig, ModelConfig
from segue.conf.schema import AdvantageConfig, AdvantageKind, CriticConfig, LearnerConfig, LossConfig, LossKind
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

KINDS = (AdvantageKind.group_mean, AdvantageKind.turn_returns, AdvantageKind.turn_gae)
NUM_SIGNS, NUM_TURNS, DELAY = 4, 5, 2
GROUPS, GROUP_SIZE, LR = 4, 8, 2e-3
SEGMENT = 64
FIRST = PolicyVersion(0, 0)


def make_config() -> ModelConfig:
    """A KDA and an MLA layer; the vocabulary is the signs, then the answers."""
    return ModelConfig(
        vocab_size=2 * NUM_SIGNS,
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
def play(model: SegueModel, signs_NK: NDArray[np.int64], generator: torch.Generator) -> list[Trajectory]:
    """An episode for each row of signs, all in step."""
    num = len(signs_NK)
    tokens = np.zeros((num, 0), np.int64)
    logprob = np.zeros((num, 2 * NUM_TURNS), np.float32)
    for k in range(NUM_TURNS):
        tokens = np.concatenate([tokens, signs_NK[:, k : k + 1]], axis=1)
        inputs = PackedInputs.pack([torch.from_numpy(row) for row in tokens])
        hidden, _ = model(inputs, DifferentiableState.zeros(model.config, num, torch.float32), Routing())
        log_p = torch.log_softmax(model.lm_head(hidden[tokens.shape[1] - 1 :: tokens.shape[1]]), -1)
        said = torch.multinomial(log_p.exp(), 1, generator=generator)
        logprob[:, 2 * k + 1] = log_p.gather(1, said)[:, 0].numpy()
        tokens = np.concatenate([tokens, said.numpy()], axis=1)
    return [make_trajectory(row, own, index) for index, (row, own) in enumerate(zip(tokens, logprob, strict=True))]


def make_trajectory(tokens_T: NDArray[np.int64], logprob_T: NDArray[np.float32], index: int) -> Trajectory:
    """Rewards of right answers (a sign's own number) come `DELAY` turns later."""
    is_right = tokens_T[1::2] == tokens_T[::2] + NUM_SIGNS
    earned = np.zeros(NUM_TURNS)
    np.add.at(earned, np.minimum(np.arange(NUM_TURNS) + DELAY, NUM_TURNS - 1), is_right / NUM_TURNS)
    zeros = np.zeros(len(tokens_T), np.int32)
    return Trajectory(
        token_ids=tokens_T.astype(np.int32),
        trainable=np.arange(len(tokens_T)) % 2 == 1,
        source=Source.policy,
        behaviour_logprob=logprob_T,
        policy_incarnation=zeros,
        policy_step=zeros,
        turns=tuple(
            Turn(start=2 * k + 1, end=2 * k + 2, temperature=1.0, reward_terms={"process": float(r)}, num_calls=1)
            for k, r in enumerate(earned)
        ),
        outcome_terms={},
        outcome=Outcome.success if is_right.all() else Outcome.failure,
        task_id="toy",
        group_id="toy",
        index=index % GROUP_SIZE,
        attempt=0,
        seed=0,
    )


def make_groups(trajectories: Sequence[Trajectory]) -> list[StoredGroup]:
    """Neighbours with the same signs are compared."""
    return [
        StoredGroup.of(
            Group(
                task_id="toy",
                group_id="toy",
                trajectories=tuple(trajectories[start : start + GROUP_SIZE]),
                first_version=FIRST,
                last_version=FIRST,
                made_by="toy",
            )
        )
        for start in range(0, len(trajectories), GROUP_SIZE)
    ]


def learn(kind: AdvantageKind, seed: int, num_steps: int) -> tuple[list[float], list[float]]:
    """Mean reward of each step's episodes, and with a critic what its values explain of returns before the update."""
    config = LearnerConfig(
        advantage=AdvantageConfig(kind=kind), critic=CriticConfig(), loss=LossConfig(kind=LossKind.ppo_clip)
    )
    advantage, critic = config.advantage, config.critic
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    model = build_model(make_config(), torch.float32)
    model.init_weights(generator)
    head = ValueHead(model.config.hidden_size, torch.float32) if advantage.has_critic else None
    module = SegmentModule(model, 100, head)
    backend = BareBackend(module, state_layout(model))
    groups = [{"params": list(model.parameters()), "lr": LR}]
    if head is not None:
        groups.append({"params": list(head.parameters()), "lr": LR * critic.lr_ratio})
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), weight_decay=0.0)
    fresh = partial(is_fresh, version=FIRST, restored_steps=(0,), max_staleness=0)
    rewards, explained = [], []
    for step in range(num_steps):
        signs = rng.integers(0, NUM_SIGNS, (GROUPS, NUM_TURNS)).repeat(GROUP_SIZE, axis=0)
        stored = make_groups(play(model, signs, generator))
        rewards.append(float(np.mean([member.reward for group in stored for member in group.members])))
        selection = select_trajectories(stored, config, fresh)
        if not selection.lengths:
            continue
        (schedule,) = SegmentSchedule.build(
            selection.lengths, 1, SEGMENT, 64 * SEGMENT, pair_cost=0.0, sweep_all=advantage.needs_whole_step
        ).ranks
        batch = load_policy_batch(stored, selection, schedule.trajectories, fresh, advantage)
        is_warming_up = step < critic.warmup_steps
        if advantage.has_critic:
            module.value_reaches_model = not is_warming_up
            loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=is_warming_up)
        else:
            loss_fn = make_policy_loss(batch, config.loss)
        result = run_sweeps(
            backend, schedule, batch.tokens, loss_fn, is_exact=True, counts_routes=False, measures_logits=False
        )
        if advantage.has_critic:
            explained.append(explained_variance(stored, selection.members, result.tokens.value.numpy()))
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return rewards, explained


def explained_variance(
    stored: Sequence[StoredGroup], members: Sequence[tuple[int, int]], value_T: NDArray[np.float32]
) -> float:
    """1 - variance of (return - value) over that of returns, before all turns."""
    earned = np.array([stored[group].members[index].turn_rewards for group, index in members])
    returns = earned[:, ::-1].cumsum(1)[:, ::-1]
    return float(1.0 - (returns - value_T.reshape(len(members), -1)[:, ::2]).var() / returns.var())


def main() -> None:
    """A line for each kind and seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=[kind.name for kind in KINDS], default=[k.name for k in KINDS])
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(arguments.seeds):
        for kind in map(AdvantageKind, arguments.kinds):
            start = time.process_time()
            rewards, explained = learn(kind, seed, arguments.steps)
            tail = arguments.steps // 6
            text = f"{kind.name:13} seed {seed}: mean reward {np.mean(rewards):.3f}, last {tail} steps "
            text += f"{np.mean(rewards[-tail:]):.3f}, every {tail}th step {[round(r, 2) for r in rewards[::tail]]}"
            if explained:
                text += f", explained variance {[round(v, 2) for v in explained[::tail]]}"
            print(f"{text}; {time.process_time() - start:.0f} CPU s", flush=True)


if __name__ == "__main__":
    main()
