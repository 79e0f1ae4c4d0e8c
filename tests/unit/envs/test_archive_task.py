"""Archives: pages, places of what decides, and every question's truth derived here a second time from the text."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from segue.envs.archive.entry import count_tokens
from segue.envs.archive.question import KINDS
from segue.envs.archive.shape import Shape
from segue.envs.archive.task import ArchiveTask, Split, make_task
from segue.envs.archive.vocabulary import EVENTS, NAMES, NUMBERS, PHRASES, RELATIONS

NUM_SEEDS = 200
LINE = re.compile(r"([a-z]+(?: [0-9]+)?) ([a-z]+) ([a-z]+(?: [0-9]+)?|[0-9]+)")
# name, topic, name, two spaces, a line's end; and a number of up to two digits behind each name, with a space
MAX_ENTRY_TOKENS = 6 + 2 * 3


def make_shape(**changes: Any) -> Shape:
    values: dict[str, Any] = {
        "length_tokens": 2048, "page_tokens": 256, "fact_region": (0.0, 1.0), "classes": tuple(KINDS),
    }  # fmt: skip
    return Shape(**{**values, **changes})


def read_entries(task: ArchiveTask) -> Iterator[tuple[str, str, str]]:
    """Topic, subject and value of every line, in the order of the archive."""
    for number in range(task.shape.num_pages):
        header, *lines = task.page(number).split("\n")
        assert header == f"{number + 1} of {task.shape.num_pages}"
        for line in lines:
            match = LINE.fullmatch(line)
            assert match is not None, line
            yield match[2], match[1], match[3]


def derive_truth(task: ArchiveTask) -> str:
    """The answer from the question's words and the text, read once from front to back."""
    said: dict[tuple[str, str], str] = {}
    events: Counter[tuple[str, str]] = Counter()
    for topic, subject, value in read_entries(task):
        said[topic, subject] = value
        events[topic, subject] += topic in EVENTS
    kind = task.question.kind
    for phrase in PHRASES[kind]:
        pattern = re.escape(phrase)
        for name in ("topic", "relation", "subject"):
            words = r"[a-z]+(?: [0-9]+)?" if name == "subject" else "[a-z]+"
            pattern = pattern.replace(rf"\{{{name}\}}", rf"(?P<{name}>{words})")
        match = re.fullmatch(pattern, task.question.text)
        if match is not None:
            names = match.groupdict()
            break
    else:
        raise AssertionError(task.question.text)
    if kind == "count":
        return str(events[names["topic"], names["subject"]])
    if kind == "two_hop":
        names["subject"] = said[names["relation"], names["subject"]]
    return said[names["topic"], names["subject"]]


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("split", list(Split))
def test_the_truth_is_what_the_archive_says(kind: str, split: Split) -> None:
    for seed in range(NUM_SEEDS):
        task = make_task(seed, make_shape(classes=(kind,)), split)
        assert task.question.kind == kind
        assert task.question.truth == derive_truth(task), task.question
        question = task.question
        assert question.slips and question.truth not in [slip.answer for slip in question.slips]
        # nobody quotes what the archive does not say
        said = {entry.text for conclusion in (question.right, *question.slips) for entry in conclusion.quotes}
        assert said <= {line for number in range(task.shape.num_pages) for line in task.page(number).split("\n")}
        assert set(question.right.quotes) == set(question.decisive)


def test_the_truth_of_an_archive_whose_names_have_numbers() -> None:
    shape = make_shape(length_tokens=64 * 1024, page_tokens=1024)
    kinds = set()
    for seed in range(12):
        task = make_task(seed, shape, Split.train)
        # 64 Ki tokens / (7 tokens an entry * 2 * 11 topics)
        assert task.register.num_subjects == 425 > len(NAMES)
        kinds.add(task.question.kind)
        assert task.question.truth == derive_truth(task), task.question
    assert kinds == set(KINDS)


def test_a_truth_worked_out_by_hand() -> None:
    task = make_task(3, make_shape(length_tokens=512), Split.train)
    lines = [line for number in range(2) for line in task.page(number).split("\n")]
    assert task.question.text == "what is the latest height of tulip?"
    assert [line for line in lines if line.startswith("tulip height ")] == [
        "tulip height 73",
        "tulip height 4",
    ]
    assert (task.question.truth, [slip.answer for slip in task.question.slips]) == ("4", ["73"])


def test_a_page_is_a_function_of_seed_and_number_alone() -> None:
    shape = make_shape()
    first, again = make_task(5, shape, Split.train), make_task(5, shape, Split.train)
    forwards = [first.page(number) for number in range(shape.num_pages)]
    backwards = [again.page(number) for number in reversed(range(shape.num_pages))]
    assert forwards == backwards[::-1]
    assert make_task(5, shape, Split.train).page(6) == forwards[6]
    assert len(set(forwards)) == shape.num_pages


def test_any_page_of_an_archive_that_no_memory_would_hold() -> None:
    # 10^13 tokens: 18 TB of text
    shape = make_shape(length_tokens=10**13, page_tokens=5000, classes=("recall",), fact_region=(0.5, 0.5))
    task = make_task(1, shape, Split.train)
    assert shape.num_pages == 2 * 10**9
    (page,) = task.decisive_pages
    assert page == 10**9
    (entry,) = task.question.decisive
    assert entry.text in task.page(page).split("\n")
    assert entry.text not in task.page(page - 1).split("\n")
    assert task.page(shape.num_pages - 1).startswith("2000000000 of 2000000000\n")


@pytest.mark.parametrize(("length", "page"), [(128, 64), (2048, 256), (16384, 4096)])
def test_pages_are_full_and_no_fuller(length: int, page: int) -> None:
    for seed in range(40):
        shape = make_shape(length_tokens=length, page_tokens=page)
        task = make_task(seed, shape, Split.train)
        for number in range(shape.num_pages):
            num_tokens = count_tokens(f"{task.page(number)}\n")
            assert page - MAX_ENTRY_TOKENS < num_tokens <= page
            assert len(task.page(number)) + 200 < shape.max_page_chars


@pytest.mark.parametrize("region", [(0.0, 0.1), (0.45, 0.55), (0.9, 1.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0)])
def test_decisive_entries_lie_in_their_region_of_the_text(region: tuple[float, float]) -> None:
    seen = []
    for seed, kind in itertools.product(range(30), KINDS):
        task = make_task(seed, make_shape(length_tokens=4096, fact_region=region, classes=(kind,)), Split.train)
        places: dict[str, float] = {}
        for number in range(task.shape.num_pages):
            before = 256 * number
            for line in task.page(number).split("\n"):
                places[line] = before / 4096
                before += count_tokens(f"{line}\n")
        found = [places[entry.text] for entry in task.question.decisive]
        assert found == sorted(found)
        # all of them may crowd one place; beside them an entry that did not fit, and the line that counts a page
        slack = (len(task.placed) + 2) * 13 / 4096
        assert all(region[0] - slack <= place <= region[1] + slack for place in found), found
        wanted = [placed.position for placed in task.placed if placed.is_decisive]
        assert found == pytest.approx(wanted, abs=slack)
        seen += found
    # and they fill it
    width = region[1] - region[0]
    assert max(seen) - min(seen) >= 0.9 * width


def test_no_other_entry_speaks_of_what_is_asked() -> None:
    for seed, kind in itertools.product(range(50), KINDS):
        task = make_task(seed, make_shape(classes=(kind,)), Split.train)
        counts = Counter((topic, subject) for topic, subject, _ in read_entries(task))
        own = Counter(placed.entry.key for placed in task.placed)
        assert {key: counts[key] for key in own} == own


@pytest.mark.parametrize("length", [2048, 32768, 131072])
def test_neither_form_nor_frequency_tells_what_will_be_asked(length: int) -> None:
    shape = make_shape(length_tokens=length, page_tokens=2048)
    task = make_task(0, shape, Split.train)
    entries = list(read_entries(task))
    counts = Counter((topic, subject) for topic, subject, _ in entries)
    register = task.register
    num_keys = 11 * register.num_subjects
    assert (len(register.numbers), len(register.relations), len(register.events)) == (6, 3, 2)
    # a key comes up twice on average, whatever the length, as what is asked does; 7 tokens an entry are about right
    assert 1.5 < len(entries) / num_keys < 2.3
    repeated = sum(count > 1 for count in counts.values()) / len(counts)
    # of a Poisson variable of mean 2 that is not 0: (1 - 3 exp(-2)) / (1 - exp(-2)) = 0.69
    assert 0.55 < repeated < 0.8


def test_classes_are_about_equally_likely_and_no_others_are_asked() -> None:
    counts = Counter(make_task(seed, make_shape(), Split.train).question.kind for seed in range(1200))
    # 1200 / 4 = 300, standard deviation 15
    assert counts.keys() == set(KINDS) and all(240 < count < 360 for count in counts.values()), counts
    two = {make_task(seed, make_shape(classes=("count", "recall")), Split.train).question.kind for seed in range(50)}
    assert two == {"count", "recall"}


def test_a_seed_is_a_task_and_no_two_splits_share_one() -> None:
    shape = make_shape(length_tokens=256)
    pages = {split: [make_task(seed, shape, split).page(0) for seed in range(500)] for split in Split}
    assert pages[Split.train] == [make_task(seed, shape, Split.train).page(0) for seed in range(500)]
    assert len({page for own in pages.values() for page in own}) == 1000


def test_words_are_told_apart_by_what_they_are() -> None:
    words = (*NAMES, *NUMBERS, *RELATIONS, *EVENTS)
    assert len(set(words)) == len(words)
    assert PHRASES.keys() == KINDS.keys()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("page_tokens", 63, "page_tokens must be an integer of at least 64, got 63"),
        ("page_tokens", 256.0, "page_tokens must be an integer of at least 64, got 256.0"),
        ("length_tokens", 2000, r"length_tokens must be a positive multiple of page_tokens \(256\), got 2000"),
        ("length_tokens", 0, "length_tokens must be a positive multiple"),
        ("length_tokens", -256, "length_tokens must be a positive multiple"),
        ("length_tokens", True, "length_tokens must be a positive multiple"),
        ("length_tokens", "2048", "length_tokens must be a positive multiple"),
        ("fact_region", (0.5,), r"fact_region must be two shares in \[0, 1\], the lower one first, got \[0.5\]"),
        ("fact_region", (0.6, 0.5), "fact_region must be two shares"),
        ("fact_region", (0.0, 1.1), "fact_region must be two shares"),
        ("fact_region", (float("nan"), 1.0), "fact_region must be two shares"),
        ("fact_region", ("0", "1"), "fact_region must be two shares"),
        ("classes", (), "classes must be some of recall, latest, count, two_hop, got"),
        ("classes", ("recall", "sum"), "classes must be some of"),
        ("classes", (["recall"],), "classes must be some of"),
    ],
)
def test_a_shape_that_makes_no_sense_is_refused(field: str, value: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_shape(**{field: value})
