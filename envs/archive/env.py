"""The environment `archive`: read a long archive page by page, then answer a question about what it said."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from segue.envs.archive.expert import answer_turn, reading_turn
from segue.envs.archive.question import KINDS
from segue.envs.archive.shape import Shape, as_tuple
from segue.envs.archive.task import ArchiveTask, Split, make_task
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult
from segue.envs.truth import SUCCESS_REWARD, check_rates, is_fallible

_OPTIONS = ("classes", "fact_region", "length_tokens", "split")


class Reading(Enum):
    """Which pages a policy may ask for."""

    sequential = "sequential"
    """The next one."""
    free = "free"
    """The next one, or any by its number."""


class ArchiveEnv(ToolEnv):
    """An archive of entries such as `clio price 57`, whose last page ends with a question.

    Nothing but the question, which nobody sees before the end, tells the entries that matter from the others: a policy
    has to carry all of them, or has to have kept the pages. The user's message shows the first page.

    Reward terms:
        success: on the answer; 1 if the question was seen and the answer equals the truth after trimming white space,
            else 0.
        process: at the first reading of a page that holds a decisive entry; an equal part of `page_reward` each. The
            first page, which nobody has to ask for, earns nothing.

    Info: `question_class`, `split`, `truth`, `num_pages`, `facts` (the decisive entries) and `fact_positions` (shares
    of the archive before each) with the task; `page` (the one shown last, from 1) and `question_seen` with the task and
    every step; `is_success` with the last.

    Reset options: `classes`, `fact_region`, `length_tokens` and `split` override the constructor's for one episode.
    """

    def __init__(
        self,
        *,
        length_tokens: int = 2048,
        page_tokens: int = 256,
        fact_region: Sequence[float] = (0.0, 1.0),
        classes: Sequence[str] = tuple(KINDS),
        reading: str = "sequential",
        split: str = "train",
        page_reward: float = 0.0,
        spare_calls: int = 4,
        slip_rate: float = 0.25,
        sloppy_rate: float = 0.65,
    ) -> None:
        """Builds the environment; pages are drawn when they are asked for.

        Args:
            length_tokens: of the archive; a multiple of `page_tokens`.
            page_tokens: of a page; at least 64. `env.max_observation_chars` must have room for one.
            fact_region: part of the archive in which decisive entries lie, as two shares of its length.
            classes: of questions, some of recall, latest, count and two_hop.
            reading: a member of `Reading`.
            split: a member of `Split`.
            page_reward: for reading all decisive pages; in [0, 1].
            spare_calls: tool calls beyond those that read on to the end and answer, after which an episode is
                truncated.
            slip_rate: probability that the fallible demonstrator answers wrongly; in [0, 1].
            sloppy_rate: probability that it answers in a form that the grader refuses; in [0, 1].
        """
        check_rates(page_reward=page_reward, slip_rate=slip_rate, sloppy_rate=sloppy_rate)
        if type(spare_calls) is not int or spare_calls < 0:
            raise ValueError(f"spare_calls must be an integer of at least 0, got {spare_calls!r}")
        self._shape = Shape(
            length_tokens=length_tokens, page_tokens=page_tokens, fact_region=as_tuple("fact_region", fact_region),
            classes=as_tuple("classes", classes),
        )  # fmt: skip
        if Reading(reading) is Reading.sequential:
            self.tools = tuple(spec for spec in self.tools if spec.name != "open")
        self._split = Split(split)
        self._page_reward = page_reward
        self._spare_calls = spare_calls
        self._slip_rate = slip_rate
        self._sloppy_rate = sloppy_rate
        # (seed, options), from which the task follows
        self._drawn_from: tuple[int, dict[str, Any]] | None = None
        self._task: ArchiveTask | None = None
        self._page = 0
        self._is_question_seen = False
        self._unread: set[int] = set()

    @property
    def max_page_chars(self) -> int:
        """No observation has more characters."""
        return self._shape.max_page_chars

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Draws the seed's question and shows the first page.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = set(options) - set(_OPTIONS)
        if unknown:
            raise ValueError(f"reset options of archive may be {', '.join(_OPTIONS)}, got {sorted(unknown)}")
        task = self._take_up(seed, options)
        self._is_question_seen = False
        first_page = self._show(0)
        # the first page is shown unasked
        self._unread = set(task.decisive_pages) - {0}
        decisive = [placed for placed in task.placed if placed.is_decisive]
        info = {
            "question_class": task.question.kind, "split": self._split_of(options).value,
            "truth": task.question.truth, "num_pages": task.shape.num_pages,
            "facts": [placed.entry.text for placed in decisive],
            "fact_positions": [placed.position for placed in decisive], **self.progress(),
        }  # fmt: skip
        rules = (
            f"an archive of {task.shape.num_pages} pages; the last one ends with a question to answer. "
            "where entries disagree, the later one holds"
        )
        return Task(user=f"{rules}\n{first_page}", info=info)

    @tool("Next page.")
    def next(self) -> ToolResult:
        """The page after the one shown last."""
        if self._page + 1 == self._running.shape.num_pages:
            return ToolResult(observation="error: this is the last page")
        return self._read(self._page + 1)

    @tool("Open a page.")
    def open(self, page: int) -> ToolResult:
        """Any page, by its number from 1."""
        num_pages = self._running.shape.num_pages
        if not 1 <= page <= num_pages:
            return ToolResult(observation=f"error: pages are 1 to {num_pages}")
        return self._read(page - 1)

    @tool("Answer.")
    def answer(self, value: str) -> ToolResult:
        """Ends the episode; nobody is right before the question."""
        is_right = self._is_question_seen and value.strip() == self._running.question.truth
        return ToolResult(
            observation="right" if is_right else "wrong", terminated=True, is_success=is_right,
            reward_terms={"success": SUCCESS_REWARD if is_right else 0.0},
        )  # fmt: skip

    def progress(self) -> dict[str, Any]:
        """Where the reader is."""
        return {"page": self._page + 1, "question_seen": self._is_question_seen}

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """Reads on to the question, then answers it."""
        errs = is_fallible(skill)
        if not self._is_question_seen:
            return reading_turn()
        slip_rate, sloppy_rate = (self._slip_rate, self._sloppy_rate) if errs else (0.0, 0.0)
        return answer_turn(self._running.question, slip_rate, sloppy_rate, rng)

    def snapshot(self) -> bytes:
        """What the task follows from, and how far it was read."""
        assert self._drawn_from is not None, "reset draws the task"
        seed, options = self._drawn_from
        state = {
            "seed": seed, "options": options, "page": self._page, "is_question_seen": self._is_question_seen,
            "unread": sorted(self._unread),
        }  # fmt: skip
        return json.dumps(state).encode()

    def restore(self, data: bytes) -> None:
        """Draws the task again and reads on from there."""
        state = json.loads(data)
        self._take_up(state["seed"], state["options"])
        self._page, self._is_question_seen = state["page"], state["is_question_seen"]
        self._unread = set(state["unread"])

    def _take_up(self, seed: int, options: dict[str, Any]) -> ArchiveTask:
        changes = {name: value for name, value in options.items() if name != "split"}
        for name in ("fact_region", "classes"):
            if name in changes:
                changes[name] = as_tuple(name, changes[name])
        shape = replace(self._shape, **changes)
        self._task = make_task(seed, shape, self._split_of(options))
        self._drawn_from = (seed, dict(options))
        # each page but the first, and the answer
        self.max_calls = shape.num_pages + self._spare_calls
        return self._task

    def _split_of(self, options: dict[str, Any]) -> Split:
        return Split(options["split"]) if "split" in options else self._split

    def _read(self, number: int) -> ToolResult:
        terms = {}
        if self._page_reward and number in self._unread:
            num_decisive = len(set(self._running.decisive_pages) - {0})
            terms["process"] = self._page_reward / num_decisive
        self._unread.discard(number)
        return ToolResult(observation=self._show(number), reward_terms=terms)

    def _show(self, number: int) -> str:
        task = self._running
        self._page = number
        text = task.page(number)
        if number + 1 < task.shape.num_pages:
            return text
        self._is_question_seen = True
        return f"{text}\nquestion: {task.question.text}"

    @property
    def _running(self) -> ArchiveTask:
        assert self._task is not None, "reset draws the task"
        return self._task
