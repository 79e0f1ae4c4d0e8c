"""What toys play and learn through, without processes: a model in lock-step, and the learner's own selection, losses,
sweeps and balance on one rank.

Legend: N episodes, T tokens.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from segue.conf.model_config import LinearAttnConfig, ModelConfig
from segue.conf.schema import LearnerConfig
from segue.learner.balance import router_biases, update_biases
from segue.learner.bare_backend import BareBackend
from segue.learner.batch import TokenBatch
from segue.learner.critic import make_critic_loss
from segue.learner.policy_batch import load_policy_batch, make_policy_loss
from segue.learner.pretrain import make_imitation_batch, make_imitation_loss
from segue.learner.schedule import RankSchedule, SegmentSchedule
from segue.learner.segment_module import SegmentModule, state_layout
from segue.learner.selection import Selection, select_trajectories
from segue.learner.staleness import is_fresh
from segue.learner.sweeps import LossFunction, StepTokens, run_sweeps
from segue.model.inputs import PackedInputs
from segue.model.network import SegueModel
from segue.model.routing import Routing
from segue.model.state import DifferentiableState
from segue.model.value_head import ValueHead
from segue.rollout.stored_group import StoredGroup
from segue.rollout.trajectory import Group, PolicyVersion, Trajectory

NUM_BINS = 1000


def make_config(vocab_size: int) -> ModelConfig:
    """A KDA and an MLA layer."""
    return ModelConfig(
        vocab_size=vocab_size,
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
def play_in_step(
    model: SegueModel,
    num_turns: int,
    show: Callable[[int], ArrayLike],
    generator: torch.Generator,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Have episodes played side by side, each a stream of what is shown, a token, and what is said, a token.

    Args:
        show: turn, counted from 0, to what each episode is shown in it, [N].

    Returns:
        Tokens and log-probabilities of those that were said, 0 elsewhere; [N, 2 turns].
    """
    columns: list[NDArray[np.int64]] = []
    logprobs: list[NDArray[np.float32]] = []
    state = None
    for k in range(num_turns):
        shown_N = np.asarray(show(k), np.int64)
        new_NT = np.stack([*columns[-1:], shown_N], 1)
        if state is None:
            state = DifferentiableState.zeros(model.config, len(shown_N), torch.float32)
        hidden, state = model(PackedInputs.pack([torch.from_numpy(row) for row in new_NT]), state, Routing())
        log_p = torch.log_softmax(model.lm_head(hidden[new_NT.shape[1] - 1 :: new_NT.shape[1]]), -1)
        said = torch.multinomial(log_p.exp(), 1, generator=generator)
        columns += [shown_N, said[:, 0].numpy()]
        logprobs += [np.zeros(len(shown_N), np.float32), log_p.gather(1, said)[:, 0].numpy()]
    return np.stack(columns, 1), np.stack(logprobs, 1)


def store_group(trajectories: Sequence[Trajectory], step: int) -> StoredGroup:
    """A task's episodes, which weights of `step` played."""
    version = PolicyVersion(0, step)
    return StoredGroup.of(
        Group(
            task_id=trajectories[0].task_id,
            group_id=trajectories[0].group_id,
            trajectories=tuple(trajectories),
            first_version=version,
            last_version=version,
            made_by="toy",
        )
    )


class ToyLearner:
    """Trains a model, in fp32 and on this thread.

    Args:
        model: trained as it is.
        config: `advantage`, `critic` and `loss`.
        lr: learning rate.
        max_staleness: learner steps that the weights which sampled a token may lag behind.
        is_balanced: the router's biases move.
        segment: tokens of a segment.
    """

    def __init__(
        self,
        model: SegueModel,
        config: LearnerConfig,
        *,
        lr: float,
        max_staleness: int = 0,
        is_balanced: bool = False,
        segment: int = 64,
    ) -> None:
        self.step = 0
        self._model = model
        self._config = config
        self._max_staleness = max_staleness
        self._is_balanced = is_balanced
        self._segment = segment
        head = ValueHead(model.config.hidden_size, torch.float32) if config.advantage.has_critic else None
        self._module = SegmentModule(model, NUM_BINS, head)
        self._backend = BareBackend(self._module, state_layout(model))
        parameters = [{"params": list(model.parameters()), "lr": lr}]
        if head is not None:
            parameters.append({"params": list(head.parameters()), "lr": lr * config.critic.lr_ratio})
        self._optimizer = torch.optim.AdamW(parameters, betas=(0.9, 0.95), weight_decay=0.0)

    def reinforce(self, groups: Sequence[StoredGroup]) -> tuple[Selection, StepTokens] | None:
        """A step on groups; None where none of them has an advantage."""
        config = self._config
        version = PolicyVersion(0, self.step)
        fresh = partial(is_fresh, version=version, restored_steps=(0,), max_staleness=self._max_staleness)
        selection = select_trajectories(groups, config, fresh)
        tokens = None
        if selection.lengths:
            schedule = self._plan(selection.lengths)
            batch = load_policy_batch(groups, selection, schedule.trajectories, fresh, config.advantage)
            if config.advantage.has_critic:
                is_warming_up = self.step < config.critic.warmup_steps
                self._module.value_reaches_model = not is_warming_up
                loss_fn = make_critic_loss(batch, config, lambda sums: sums, is_warming_up=is_warming_up)
            else:
                loss_fn = make_policy_loss(batch, config.loss)
            tokens = self._update(schedule, batch.tokens, loss_fn)
        self.step += 1
        return None if tokens is None else (selection, tokens)

    def imitate(self, trajectories: Sequence[Trajectory]) -> float:
        """A step on demonstrations, which age nothing.

        Returns:
            Mean negative log-probability of their tokens, in nats, before the step.
        """
        batch = make_imitation_batch(trajectories)
        tokens = self._update(
            self._plan([trajectory.num_tokens for trajectory in trajectories]),
            batch,
            make_imitation_loss(sum(trajectory.num_trainable for trajectory in trajectories)),
        )
        return -float(np.mean(tokens.logprob.numpy()))

    def _plan(self, lengths: Sequence[int]) -> RankSchedule:
        (schedule,) = SegmentSchedule.build(
            lengths,
            1,
            self._segment,
            64 * self._segment,
            pair_cost=0.0,
            sweep_all=self._config.advantage.needs_whole_step,
        ).ranks
        return schedule

    def _update(self, schedule: RankSchedule, batch: TokenBatch, loss_fn: LossFunction) -> StepTokens:
        result = run_sweeps(
            self._backend,
            schedule,
            batch,
            loss_fn,
            is_exact=True,
            counts_routes=self._is_balanced,
            measures_logits=False,
        )
        if self._is_balanced:
            histogram = result.tokens.route_histogram
            update_biases(router_biases(self._model), histogram, self._model.config.num_experts_per_token)
        torch.nn.utils.clip_grad_norm_(self._module.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()
        return result.tokens
