"""Tokenizers: ids of structure, round trips, arbitrary ids, adapters and what is refused as a tokenizer."""

import json
import random
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from segue.model.tokenizer.base import Tokenizer as TokenizerProtocol
from segue.model.tokenizer.base import render
from segue.model.tokenizer.bpe import BpeTokenizer
from segue.model.tokenizer.byte import ByteTokenizer
from segue.model.tokenizer.load import load_tokenizer
from segue.model.tokenizer.special import STRUCTURE_TOKENS, SpecialIds
from segue.model.tokenizer.tiktoken_adapter import TiktokenTokenizer

WORDS = ["SELECT", "name", "clio", "ü", "日本", "🙂", " ", "\n", "'", "=", "12", "\x00", *STRUCTURE_TOKENS]


class FakeEncoding:
    """A `tiktoken.Encoding` in small: the bytes, a gap in the ids, then the structure tokens from 300 on."""

    n_vocab = 300 + len(STRUCTURE_TOKENS)

    def __init__(self, names: tuple[str, ...] = STRUCTURE_TOKENS) -> None:
        self._ids = {bytes([i]): i for i in range(256)} | {name.encode(): 300 + i for i, name in enumerate(names)}
        self._bytes = {token_id: name for name, token_id in self._ids.items()}

    def encode_ordinary(self, text: str) -> list[int]:
        return list(text.encode())

    def encode_single_token(self, text_or_bytes: str) -> int:
        return self._ids[text_or_bytes.encode()]

    def decode_single_token_bytes(self, token: int) -> bytes:
        return self._bytes[token]


def make_backend(names: tuple[str, ...] = STRUCTURE_TOKENS, *, special: bool = True) -> Tokenizer:
    """Byte-level BPE without merges, structure tokens from id 256 on."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokens = [AddedToken(name, special=special, normalized=False) for name in names]
    _ = backend.add_special_tokens(tokens) if special else backend.add_tokens(tokens)
    return backend


def make_tokenizers() -> list[TokenizerProtocol]:
    return [
        ByteTokenizer(),
        load_tokenizer("segue_bpe_1k"),
        BpeTokenizer(make_backend()),
        TiktokenTokenizer(FakeEncoding()),
    ]


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_text_comes_back_and_reaches_no_structure(tokenizer: TokenizerProtocol) -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = "".join(rng.choices(WORDS, k=rng.randrange(12)))
        ids = tokenizer.encode(text)
        assert not tokenizer.special.names.keys() & set(ids)
        assert all(0 <= i < tokenizer.vocab_size for i in ids)
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_structure_ids_follow_each_other_at_the_end(tokenizer: TokenizerProtocol) -> None:
    first = tokenizer.vocab_size - len(STRUCTURE_TOKENS)
    assert tokenizer.special == SpecialIds(*range(first, tokenizer.vocab_size))
    # the order of Kimi-K3's ids
    special = tokenizer.special
    assert special.bos < special.eos < special.end_of_msg < special.open < special.close < special.sep
    assert special.sep < special.media_begin < special.media_content < special.media_end < special.media_pad
    assert special.media_pad < special.pad


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_any_ids_decode_and_render(tokenizer: TokenizerProtocol) -> None:
    rng = random.Random(1)
    for _ in range(100):
        ids = [rng.randrange(tokenizer.vocab_size + 50) for _ in range(20)]
        tokenizer.decode(ids)
        render(tokenizer, ids)
    sep = tokenizer.special.sep
    half = tokenizer.encode("ü")[:-1] or tokenizer.encode("🙂")[:-1]
    beyond = tokenizer.vocab_size + 7
    ids = [*tokenizer.encode("a<|sep|>"), sep, *half, beyond]
    # structure adds nothing to text; the broken character and the unknown id are one sign each
    assert tokenizer.decode(ids) == "a<|sep|>" + "\ufffd" * 2
    assert render(tokenizer, ids) == f"a<|sep|><|sep|>\ufffd<|{beyond}|>"


@pytest.mark.parametrize("tokenizer", make_tokenizers())
def test_what_utf8_cannot_hold_becomes_a_question_mark(tokenizer: TokenizerProtocol) -> None:
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_bytes_are_their_values() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.encode("aü") == [0x61, 0xC3, 0xBC]
    assert tokenizer.special.bos == 256
    assert tokenizer.vocab_size == 256 + 11


def test_the_shipped_vocabulary_is_small_and_regular() -> None:
    tokenizer = load_tokenizer("segue_bpe_1k")
    assert tokenizer.vocab_size <= 1024
    # a word is one token, the same wherever it stands; a number is its digits
    (clio,) = tokenizer.encode("clio")
    for text in ("price of clio in car?", "WHERE model='clio'", "car(clio,"):
        assert clio in tokenizer.encode(text)
    assert tokenizer.encode("57") == tokenizer.encode("5") + tokenizer.encode("7")
    for text in ("message", " role", '="', "tool-declare", "argument", "boolean", "SELECT MAX("):
        assert len(tokenizer.encode(text)) == 1


def test_a_transformers_style_file_is_read(tmp_path: Path) -> None:
    backend = make_backend()
    backend.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"))
    assert tokenizer.special.open == 256 + STRUCTURE_TOKENS.index("<|open|>")
    # the file's own flag would make the name in a text the token
    assert tokenizer.special.open in backend.encode("<|open|>").ids
    assert tokenizer.special.open not in tokenizer.encode("<|open|>")


def test_an_unfit_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing <\|sep\|>, \[PAD\]"):
        BpeTokenizer(make_backend(tuple(n for n in STRUCTURE_TOKENS if n not in ("<|sep|>", "[PAD]"))))
    with pytest.raises(ValueError, match=r"must hold \[BOS\] as a special token, but text reaches it"):
        BpeTokenizer(make_backend(special=False))
    words = Tokenizer(models.BPE(vocab={"a": 0, **{n: i + 1 for i, n in enumerate(STRUCTURE_TOKENS)}}, merges=[]))
    with pytest.raises(ValueError, match="must be byte-level"):
        BpeTokenizer(words)
    with pytest.raises(ValueError, match=r"missing \[BOS\]"):
        TiktokenTokenizer(FakeEncoding(STRUCTURE_TOKENS[1:]))
    with pytest.raises(ValueError, match="tokenizer must be bytes, segue_bpe_1k or the path of a file, got nothing"):
        load_tokenizer("nothing")
    (tmp_path / "foreign.json").write_text(json.dumps({"x": 1}))
    with pytest.raises(ValueError, match=r"foreign\.json must be a file of the tokenizers library"):
        load_tokenizer(str(tmp_path / "foreign.json"))
