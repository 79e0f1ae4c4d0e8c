"""Train a small byte-level BPE vocabulary for short episodes of tool use.

    python -m segue.model.tokenizer.train_bpe --texts texts.jsonl --out vocabulary.json

The same texts give the same file. How text is split before merging is chosen for a small model that copies names from
a question into SQL:

- a word is the same token after a space, a quote or a bracket, since signs and spaces never join it;
- a number is its digits;
- SQL keywords and the signs between words may join (`SELECT MAX(`, ` = '`);
- the declaration of a tool is one chunk, and one entry of the vocabulary when most documents repeat it: a run gives
  the same tools in every episode, and they would else be half of its prompt.
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from segue.model.tokenizer.special import STRUCTURE_TOKENS

_KEYWORDS = (
    "SELECT|FROM|WHERE|COUNT|MAX|MIN|SUM|AVG|DISTINCT|GROUP|ORDER|BY|HAVING|LIMIT|DESC|ASC|JOIN|INNER|LEFT|ON|AS|AND"
    "|OR|NOT|NULL|IS|IN|LIKE|BETWEEN"
)
_DECLARATION = r'\{"function":\{.+?\},"type":"function"\}'
_SPLIT = "|".join(
    [
        _DECLARATION,
        # what XTML encodes alone and the other rules would cut
        r"\A(?: [a-z]+|tool-declare)\z",
        rf"(?:(?!{_DECLARATION})[^\p{{L}}\p{{N}}]|(?<!\p{{L}})(?:{_KEYWORDS})(?!\p{{L}}))+",
        r"\p{L}+",
        r"\p{N}",
    ]
)
# what XTML encodes alone; rare ones would not be met in the texts
_XTML_TEXTS = (
    *("message", "think", "response", "tools", "call", "argument"),
    *(" role", " type", " tool", " index", " key", '="', '"'),
    *("system", "user", "assistant", "tool", "tool-declare"),
    *("string", "number", "boolean", "null", "object", "array"),
)
# a declaration that at least this share of the documents holds becomes one entry
_COMMON_SHARE = 0.5


def train_bpe(documents: Iterable[list[str]], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer with the structure tokens as its last entries.

    Args:
        documents: each the texts of one episode that are encoded on their own.
        vocab_size: entries in all, at most; fewer where the texts hold fewer pairs.
    Raises:
        ValueError: `vocab_size` has no room for the bytes, the structure and the common declarations.
    """
    splitter = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    texts = list(documents)
    common = _common_declarations(texts)
    whole = [*_XTML_TEXTS, *common]
    room = vocab_size - len(STRUCTURE_TOKENS) - len(whole)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    if room < len(alphabet):
        raise ValueError(f"vocab_size must be at least {vocab_size - room + len(alphabet)}, got {vocab_size}")

    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = splitter
    learner.train_from_iterator(
        # the common declarations once: what they share may join where room is left, for the sake of other tools
        chain(common, (piece for document in texts for text in document for piece in _between(text, common))),
        trainers.BpeTrainer(vocab_size=room, min_frequency=2, initial_alphabet=alphabet, show_progress=False),
    )
    learnt = json.loads(learner.to_str())["model"]
    vocab: dict[str, int] = learnt["vocab"]
    for text in whole:
        ((chunk, _),) = splitter.pre_tokenize_str(text)
        vocab.setdefault(chunk, len(vocab))
    # ignore_merges: a chunk that is an entry is that entry, without the merges that would build it
    merges = [tuple(pair) for pair in learnt["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in STRUCTURE_TOKENS])
    return tokenizer


def _common_declarations(documents: list[list[str]]) -> list[str]:
    finder = pre_tokenizers.Split(Regex(_DECLARATION), "isolated")
    counts: Counter[str] = Counter()
    for document in documents:
        chunks = {chunk for text in document for chunk, _ in finder.pre_tokenize_str(text)}
        counts.update(chunk for chunk in chunks if chunk.startswith('{"function":'))
    return sorted(chunk for chunk, count in counts.items() if count >= _COMMON_SHARE * len(documents))


def _between(text: str, declarations: list[str]) -> list[str]:
    # an entry of its own needs no merges, and would take most of them
    pieces = [text]
    for declaration in declarations:
        pieces = [part for piece in pieces for part in piece.split(declaration)]
    return pieces


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=Path, required=True, help="JSON lines, each the list of one episode's texts")
    parser.add_argument("--out", type=Path, required=True, help="file of the vocabulary")
    parser.add_argument("--vocab-size", type=int, default=1024, help="entries in all, structure tokens included")
    arguments = parser.parse_args()
    with arguments.texts.open() as lines:
        tokenizer = train_bpe((json.loads(line) for line in lines), arguments.vocab_size)
    tokenizer.save(str(arguments.out), pretty=True)


if __name__ == "__main__":
    main()
