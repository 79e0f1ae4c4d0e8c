"""The trainer of the small vocabulary: sizes, equal output for equal texts, and how text is split before merging."""

import json
import random
from pathlib import Path

import pytest

from segue.model.tokenizer.bpe import BpeTokenizer
from segue.model.tokenizer.train_bpe import main, train_bpe

DECLARATION = (
    '{"function":{"description":"Run 2 things.","name":"%s","parameters":{"type":"object"}},"type":"function"}'
)


def make_documents(num_documents: int = 60) -> list[list[str]]:
    rng = random.Random(0)
    documents = []
    for i in range(num_documents):
        table, column, name = (rng.choice(words) for words in (["car", "film"], ["price", "speed"], ["clio", "alien"]))
        tools = DECLARATION % "query" + "," + DECLARATION % ("common" if i % 3 else "rare")
        query = f"SELECT MAX({column}) FROM {table} WHERE name = '{name}'"
        documents.append(
            [f"[{tools}]", f"{table}({column})\nhighest {column} of {name}?", query, str(rng.randrange(99))]
        )
    return documents


def pieces_of(tokenizer: BpeTokenizer, text: str) -> list[str]:
    return [tokenizer.decode([token_id]) for token_id in tokenizer.encode(text)]


def test_text_is_split_into_words_digits_and_what_stands_between() -> None:
    tokenizer = BpeTokenizer(train_bpe(make_documents(), 1024))
    assert pieces_of(tokenizer, "SELECT MAX(price) FROM car WHERE name = 'clio'") == [
        *("SELECT MAX(", "price", ") FROM ", "car", " WHERE ", "name", " = '", "clio", "'")
    ]
    assert pieces_of(tokenizer, "speed of 123?") == ["speed", " ", "of", " ", "1", "2", "3", "?"]


def test_a_declaration_of_most_documents_is_one_entry() -> None:
    tokenizer = BpeTokenizer(train_bpe(make_documents(), 350))
    # "query" stands in all documents, "common" in two thirds, "rare" in one third
    assert len(tokenizer.encode(DECLARATION % "query")) == 1
    assert len(tokenizer.encode(DECLARATION % "common")) == 1
    assert len(tokenizer.encode(DECLARATION % "rare")) > 1
    assert pieces_of(tokenizer, f"[{DECLARATION % 'query'}]") == ["[", DECLARATION % "query", "]"]


def test_what_xtml_encodes_alone_is_one_entry() -> None:
    tokenizer = BpeTokenizer(train_bpe(make_documents(), 1024))
    for text in ("message", "think", " role", " type", '="', '"', "tool-declare", "boolean"):
        assert len(tokenizer.encode(text)) == 1


def test_the_size_is_a_bound() -> None:
    # fewer than the bound only by the texts of XTML that merges made, too
    assert 300 <= BpeTokenizer(train_bpe(make_documents(), 310)).vocab_size <= 310
    with pytest.raises(ValueError, match=r"vocab_size must be at least 29., got 200"):
        train_bpe(make_documents(), 200)


def test_the_command_writes_the_same_file_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text("\n".join(json.dumps(document) for document in make_documents()))
    files = []
    for name in ("a.json", "b.json"):
        command = ["train_bpe", "--texts", str(texts), "--out", str(tmp_path / name), "--vocab-size", "400"]
        monkeypatch.setattr("sys.argv", command)
        main()
        files.append((tmp_path / name).read_bytes())
    assert files[0] == files[1]
    assert BpeTokenizer.from_file(tmp_path / "a.json").vocab_size <= 400
