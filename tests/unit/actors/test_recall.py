"""A curriculum's sequences as a rollout actor makes them, and what recall is measured on and says.

That measuring changes nothing and that its figures are the model's is tests/e2e/test_curriculum.py.
"""

import asyncio
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from segue.actors.errors import RunError
from segue.actors.plots import draw_recall, recall_curves
from segue.actors.recall import recall_options, recall_point
from segue.actors.rollout_actor import HeldOutGroup, HeldOutRequest, RolloutActor
from segue.actors.stages import StepPlan
from segue.actors.task import Task, member_seed
from segue.actors.text import open_corpus, prepare_corpus
from segue.conf.errors import ConfigError
from segue.conf.load import load_config
from segue.conf.schema import SegueConfig
from segue.learner.corpus import TextSpan
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.trajectory import Group, Source
from segue.rollout.trajectory_file import load_group

STAGE = "{length_mix:{256:1.0},text_share:0.5,tokens_per_step:512,max_steps:2,eval_every:1}"


def make_run(folder: Path) -> SegueConfig:
    for name in "abc":
        (folder / f"{name}.txt").write_text(f"{name} " * 130)
    config = load_config(
        [
            "experiment=curriculum",
            f"pretrain.curriculum.stages=[{STAGE}]",
            f"pretrain.curriculum.text={folder}/*.txt",
            "pretrain.curriculum.held_out_documents=1",
            "env.kwargs.page_tokens=128",
            "env.kwargs.length_tokens=256",
        ],
        "pretrain",
    )
    (folder / "groups").mkdir()
    (folder / "held_out").mkdir()
    prepare_corpus(config, folder / "none", folder / "text", lambda _: None)
    return config


def test_text_that_fills_no_sequence_is_refused_and_files_of_a_word_are_told(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    told: list[str] = []
    for name in "abc":
        (tmp_path / f"{name}.txt").write_text("a")
    # a word and its end mark in each of two files; the third is held out
    with pytest.raises(ConfigError, match=r"text must hold at least 256 tokens .* got 4 \(files: 2, beside"):
        prepare_corpus(config, tmp_path / "none", tmp_path / "draft", told.append)
    for number in range(128):
        (tmp_path / f"{number}.txt").write_text("a")
    prepare_corpus(config, tmp_path / "none", tmp_path / "another", told.append)
    assert len(told) == 1 and told[0].startswith("pretrain.curriculum.text has 2 tokens a file")


def held_out(config: SegueConfig, folder: Path, **changes: Any) -> HeldOutRequest:
    values = {
        "name": "recall_256_2",
        "seeds": tuple(range(config.eval.seed_start, config.eval.seed_start + 6)),
        "options": {**config.env.eval_options, **recall_options(256, 2)},
        "folder": folder / "held_out",
        "recalls": True,
    }
    return HeldOutRequest(**(values | changes))


def test_an_actor_makes_what_a_plan_and_a_measurement_ask_for(tmp_path: Path) -> None:
    config = make_run(tmp_path)
    span = TextSpan(30, 256)
    plan = StepPlan(demonstrations=(256, 384), text=(span,))
    pieces = open_corpus(config, tmp_path / "text").pieces(span)
    task = Task(number=3, task_id="demonstration-0000003", seed=9, incarnation=0, plan=plan)

    async def play() -> tuple[Group, HeldOutGroup, str]:
        actor = RolloutActor(config, name="rollout-0", run_folder=tmp_path, mark=None)
        await actor.start(None)
        try:
            record = await actor.demonstrate(task)
            # plain text is no episode
            assert record.num_text_tokens == sum(len(piece) - 1 for piece in pieces) > 200
            assert len(record.episodes) == 2 and all(episode.is_success for episode in record.episodes)
            kept = await actor.keep_demonstrations(held_out(config, tmp_path))
            actor._agent.config.max_turns = 1
            with pytest.raises(RunError) as caught:
                await actor.keep_demonstrations(held_out(config, tmp_path))
            return load_group(tmp_path / "groups" / record.file, digest=record.digest), kept, str(caught.value)
        finally:
            await actor.stop()

    group, kept, refusal = asyncio.run(play())
    shown, text = group.trajectories[:2], group.trajectories[2:]
    assert [t.info["num_pages"] for t in shown] == [2, 3]
    limit = config.eval.seed_start
    assert [t.seed for t in shown] == [member_seed(task, index, limit) for index in range(2)]
    assert [t.token_ids.tolist() for t in text] == [piece.tolist() for piece in pieces]
    assert {t.source for t in text} == {Source.text}

    answers = load_group(kept.path, digest=kept.digest)
    assert len(answers.trajectories) == 6
    assert kept.num_labels == sum(t.num_trainable for t in answers.trajectories)
    tokenizer = load_tokenizer(config.tokenizer)
    for trajectory, distance in zip(answers.trajectories, kept.distances, strict=True):
        turn = trajectory.turns[-1]
        assert np.flatnonzero(trajectory.trainable).tolist() == list(range(turn.start, turn.end))
        said = tokenizer.decode(trajectory.token_ids[turn.start : turn.end].tolist())
        (fact,), truth = trajectory.info["facts"], trajectory.info["truth"]
        assert said.index(fact) < said.rindex(truth)
        # so far back the stream has just said the fact
        assert tokenizer.decode(trajectory.token_ids[: turn.start - distance].tolist()).endswith(fact)
        # the second quarter from the end, and what a few turns add
        assert 256 / 4 - 15 <= distance <= 256 / 2 + 110
    assert refusal.startswith("a demonstration with the reset options {'split': 'heldout_seeds', 'length_tokens': 256,")
    assert "must come to its own end, got truncated_turns after" in refusal


def test_quarters_count_from_the_question() -> None:
    regions = [recall_options(512, quarter)["fact_region"] for quarter in (1, 2, 3, 4)]
    assert regions == [[0.75, 1.0], [0.5, 0.75], [0.25, 0.5], [0.0, 0.25]]


def test_a_point_is_the_mean_probability_and_the_mean_of_its_logarithm() -> None:
    point = recall_point(512, 1, [10, 30], [math.log(0.9), math.log(0.1)])
    assert (point.distance_tokens, point.probability) == (20, pytest.approx(0.5))
    assert point.logprob == pytest.approx(math.log(0.09) / 2)


def make_line(step: int, longest: int, lengths: tuple[int, ...]) -> dict[str, Any]:
    metrics: dict[str, float] = {"curriculum/longest/tokens": longest}
    for length in lengths:
        for quarter in (1, 2):
            metrics[f"recall/{length}/{quarter}/distance_tokens"] = length * quarter / 2
            metrics[f"recall/{length}/{quarter}/probability"] = 1 / quarter
            metrics[f"recall/{length}/{quarter}/logprob_nats"] = -1.0
    return {"kind": "stage", "step": step, "metrics": metrics}


def test_curves_tell_what_was_trained_from_what_is_extrapolated(tmp_path: Path) -> None:
    lines = [make_line(0, 0, (512, 4096)), make_line(20, 512, ()), make_line(40, 512, (512, 4096))]
    curves = recall_curves(lines)
    assert [(c.step, c.length, c.is_extrapolated) for c in curves] == [
        (0, 512, True),
        (0, 4096, True),
        (40, 512, False),
        (40, 4096, True),
    ]
    assert curves[0].distances == (256, 512) and curves[0].probabilities == (1.0, 0.5)
    path = tmp_path / "recall.png"
    draw_recall([], path)
    assert not path.exists(), "nothing is drawn where nothing was measured"
    draw_recall(lines, path)
    assert path.read_bytes().startswith(b"\x89PNG")
