"""Plain text of a curriculum: tokenised into the run folder once, and pieces of it as trajectories."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from segue.conf.errors import ConfigError
from segue.conf.schema import SegueConfig
from segue.learner.corpus import Corpus, find_files, is_whole, write_corpus
from segue.model.tokenizer.load import load_tokenizer
from segue.rollout.trajectory import Int32Array, Outcome, Source, Trajectory, Turn

_TELL_EVERY_S = 10.0
# a file on average, below which a step has so many sequences that they are what takes its time
_SHORT_TOKENS = 32


def check_text(config: SegueConfig) -> None:
    """Look for a curriculum's text before anything starts.

    Raises:
        ConfigError: there are too few files.
    """
    if config.pretrain.curriculum.text is not None:
        find_files(config.pretrain.curriculum.text)


def prepare_corpus(config: SegueConfig, folder: Path, draft: Path, say: Callable[[str], None]) -> None:
    """Have a run's text stand in its folder, or in its draft, if it has any.

    Args:
        folder: of a run that goes on: its text stays as it was.
        draft: of one that has not begun.
        say: is told how far it is, where that takes long.
    Raises:
        ConfigError: the files are too few, cannot be read, are no text, or hold less of it than one sequence takes.
        OSError: there is no room.
    """
    pattern, told_at = config.pretrain.curriculum.text, time.monotonic()
    if pattern is None or is_whole(folder) or is_whole(draft):
        return

    def note(done: int, total: int) -> None:
        nonlocal told_at
        if time.monotonic() > told_at + _TELL_EVERY_S:
            told_at = time.monotonic()
            # files may grow
            total = max(done, total)
            say(f"tokenising pretrain.curriculum.text: {done / total:.0%} of {total / 1e6:,.0f} MB")

    write_corpus(draft, find_files(pattern), load_tokenizer(config.tokenizer), note)
    _check_size(config, open_corpus(config, draft), say)


def _check_size(config: SegueConfig, corpus: Corpus, say: Callable[[str], None]) -> None:
    longest, num_tokens, num_documents = max(_text_lengths(config)), corpus.epoch_tokens, corpus.num_documents
    if num_tokens < longest:
        raise ConfigError(
            f"pretrain.curriculum.text must hold at least {longest} tokens to train on, the longest length of text in "
            f"pretrain.curriculum.stages, got {num_tokens} (files: {num_documents}, beside those of "
            "pretrain.curriculum.held_out_documents); give more text"
        )
    if num_tokens < _SHORT_TOKENS * num_documents:
        say(
            f"pretrain.curriculum.text has {num_tokens / num_documents:.0f} tokens a file, and each file is a sequence "
            "of its own: steps of so many sequences are slow; write texts that may see each other into one file"
        )


def open_corpus(config: SegueConfig, folder: Path) -> Corpus:
    """The corpus that `prepare_corpus` left."""
    return Corpus(
        folder,
        num_held_out=config.pretrain.curriculum.held_out_documents,
        shortest_span=min(_text_lengths(config)),
        seed=config.seed,
    )


def _text_lengths(config: SegueConfig) -> list[int]:
    """Lengths at which any stage has text, in tokens; one at least, where there is text at all."""
    return [length for stage in config.pretrain.curriculum.stages if stage.text_share for length in stage.length_mix]


def text_trajectory(piece: Int32Array, *, task_id: str, group_id: str, index: int) -> Trajectory:
    """A piece of text as what travels: all tokens but the first are trainable.

    Args:
        piece: [T], T >= 2, of `Corpus.pieces`.
        task_id, group_id, index: of the group that holds it.
    """
    num_tokens = len(piece)
    trainable = np.ones(num_tokens, np.bool_)
    trainable[0] = False
    return Trajectory(
        token_ids=piece,
        trainable=trainable,
        source=Source.text,
        behaviour_logprob=np.zeros(num_tokens, np.float32),
        policy_incarnation=np.zeros(num_tokens, np.int32),
        policy_step=np.zeros(num_tokens, np.int32),
        turns=(Turn(start=1, end=num_tokens, temperature=1.0, reward_terms={}, num_calls=0),),
        outcome_terms={},
        outcome=Outcome.success,
        task_id=task_id,
        group_id=group_id,
        index=index,
        attempt=0,
        seed=0,
    )
