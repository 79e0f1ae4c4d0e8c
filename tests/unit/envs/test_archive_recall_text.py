"""Documents that teach recall: what they say again is what they said, and how far back, in numbers."""

import math
import random
import re
import sys
from pathlib import Path

import pytest

from segue.envs.archive import recall_text
from segue.envs.archive.recall_text import make_document
from segue.envs.archive.vocabulary import NAMES, NUMBERS, RELATIONS

NUM_LINES = 40
QUESTION = re.compile(r"question: (?:what is the )?([a-z]+) of ([a-z]+)\?")


def documents() -> list[list[str]]:
    return [make_document(random.Random(seed), NUM_LINES).splitlines() for seed in range(300)]


def test_what_is_said_again_is_what_was_said_last_and_a_question_is_followed_by_its_answer() -> None:
    num_new = num_again = num_asked = 0
    steps_back = []
    for lines in documents():
        assert NUM_LINES <= len(lines) <= NUM_LINES + 1
        said: dict[tuple[str, str], str] = {}
        order: list[tuple[str, str]] = []
        asked: tuple[str, str] | None = None
        for line in lines:
            match = QUESTION.fullmatch(line)
            if match is not None:
                asked = (match[2], match[1])
                continue
            subject, topic, value = line.split(" ")
            assert subject in NAMES and topic in (*NUMBERS, *RELATIONS)
            key = (subject, topic)
            if said.get(key) == value:
                num_again += 1
                last = max(i for i, known in enumerate(order) if known == key)
                steps_back.append((len(order) - last, len(order)))
            else:
                # a later entry of a key replaces the earlier one, and is no answer
                assert asked is None
                num_new += 1
                order.append(key)
                said[key] = value
            if asked is not None:
                assert asked == key
                num_asked += 1
            asked = None
    # six in ten, and a third of these; the first line is always new
    assert num_again / (num_again + num_new) == pytest.approx(0.6 * (NUM_LINES - 1) / NUM_LINES, abs=0.03)
    assert num_asked / num_again == pytest.approx(1 / 3, abs=0.03)
    # log-uniform: of n entries, `low` to `high` - 1 back in a share of log((high - 0.5) / (low - 0.5)) / log(n)
    for low, high in ((2, 4), (4, 8)):
        found = sum(low <= back < high for back, _ in steps_back)
        expected = sum(
            max(math.log(min(high - 0.5, count) / (low - 0.5)), 0.0) / math.log(count)
            for _, count in steps_back
            if count > 1
        )
        assert found == pytest.approx(expected, rel=0.15)


def test_a_document_is_a_function_of_its_seed() -> None:
    texts = {make_document(random.Random(seed), NUM_LINES) for seed in (1, 2, 1)}
    assert len(texts) == 2


def test_the_command_writes_a_file_each_as_many_short_as_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "texts"
    sizes = ["--min-lines", "5", "--max-lines", "20"]
    monkeypatch.setattr(sys, "argv", ["recall_text", str(folder), "--documents", "200", *sizes, "--seed", "9"])
    recall_text.main()
    paths = sorted(folder.iterdir())
    assert [path.name for path in paths] == [f"{number:05d}.txt" for number in range(200)]
    lengths = [path.read_text().count("\n") for path in paths]
    assert min(lengths) >= 5 and max(lengths) <= 21
    # 10 lies half way in orders of magnitude; a document may have a line more
    assert 70 <= sum(length <= 10 for length in lengths) <= 130


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["new", "--documents", "0"], "--documents must be at least 1, got 0"),
        (["new", "--min-lines", "0"], "--min-lines must be at least 1 and at most --max-lines, got 0 and 22"),
        (["new", "--max-lines", "4"], "--min-lines must be at least 1 and at most --max-lines, got 5 and 4"),
        (["there"], "folder must be a new one, got there, which is there"),
    ],
)
def test_what_makes_no_texts_is_told(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    monkeypatch.setattr(sys, "argv", ["recall_text", *arguments])
    with pytest.raises(SystemExit) as end:
        recall_text.main()
    assert end.value.code == 2 and told in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["there"]
