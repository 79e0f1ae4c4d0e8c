"""A judge for the toy of looks: a small model that supervision teaches to call `score`, behind the real `Judge`."""

import asyncio

import numpy as np
import torch
from toy_learner import ToyLearner, make_config
from toy_looks import demonstrate, finished, judge_all, make_task, outcome_of, words_of

from segue.conf.judge import JudgeSettings
from segue.conf.schema import LearnerConfig, RolloutConfig
from segue.model.network import build_model
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.chat import AssistantCall, AssistantTurn, Chat
from segue.rollout.engine.base import Sampling
from segue.rollout.engine.native import build_native_engine
from segue.rollout.episode import Episode
from segue.rollout.rewards.judge import Judge, ScoreForm
from segue.rollout.rewards.panel import NamedTerm, RewardPanel
from segue.rollout.trajectory import Outcome, PolicyVersion, Source, Trajectory, Turn

VERDICTS = ("no", "yes")
SETTINGS = JudgeSettings(rubric="Good is the sign that was shown.", scale=1, max_new_tokens=64)
ROLLOUT = RolloutConfig(state_budget_mb=128)


def make_judge(seed: int, num_steps: int) -> RewardPanel:
    """A panel of a judge that was taught by so many steps of 16 episodes, half of them right."""
    chat = Chat(load_tokenizer("segue_bpe_1k"))
    form = ScoreForm(chat, SETTINGS, max_tokens=ROLLOUT.max_episode_tokens)
    model = build_model(make_config(chat.tokenizer.vocab_size), torch.float32)
    model.init_weights(torch.Generator().manual_seed(seed))
    learner = ToyLearner(model, LearnerConfig(), lr=4e-3, segment=512)
    rng = np.random.default_rng(seed)
    for _ in range(num_steps):
        learner.imitate([teach(form, chat, episode) for episode in make_record(rng, 16)])
    sampling = Sampling(
        temperature=SETTINGS.temperature,
        max_new_tokens=SETTINGS.max_new_tokens,
        stop_ids=chat.stop_ids,
        seed=seed,
        training=False,
    )
    engine = build_native_engine(model, ROLLOUT, version=PolicyVersion(0, 0))
    judge = Judge(name="judged", engine=engine, form=form, settings=SETTINGS, sampling=sampling)
    return RewardPanel([NamedTerm(name="judged", term=judge, timeout_s=60.0, attempts=1)])


def make_record(rng: np.random.Generator, num: int) -> list[Episode]:
    """Episodes as a judge may meet them: half are right, and some have not seen the sign."""
    return [demonstrate(make_task(n, rng), rng, skill=1 / 3, fewest=-2) for n in range(num)]


def is_right(episode: Episode) -> float:
    """What the judge should say."""
    return float(outcome_of(episode) is Outcome.success)


def accuracy(panel: RewardPanel, num: int, seed: int) -> float:
    """Share of fresh episodes of which the judge says what is true."""
    episodes = make_record(np.random.default_rng(seed), num)
    scores = asyncio.run(judge_all(episodes, panel))
    return float(np.mean([score == is_right(episode) for score, episode in zip(scores, episodes, strict=True)]))


def teach(form: ScoreForm, chat: Chat, episode: Episode) -> Trajectory:
    """The question of an episode and the answer that is right: what was shown, what was said, whether that is it."""
    question = form.ask(finished(episode))
    value = int(is_right(episode))
    *_, shown, said = ["-", *words_of(episode)[::2][1:], words_of(episode)[-1]]
    call = AssistantCall(tool="score", arguments={"value": value})
    answer = chat.render_assistant(AssistantTurn(response=f"{shown} {said} {VERDICTS[value]}", calls=(call,)))
    token_ids = np.concatenate([question, answer])
    trainable = np.arange(len(token_ids)) >= len(question)
    nothing = np.zeros(len(token_ids), np.int32)
    return Trajectory(
        token_ids=token_ids,
        trainable=trainable,
        source=Source.demonstrator,
        behaviour_logprob=nothing.astype(np.float32),
        policy_incarnation=nothing,
        policy_step=nothing,
        turns=(Turn(start=len(question), end=len(token_ids), temperature=1.0, reward_terms={}, num_calls=1),),
        outcome_terms={},
        outcome=Outcome.success,
        task_id=episode.task.id,
        group_id=episode.group_id,
        index=0,
        attempt=0,
        seed=episode.task.seed,
    )
