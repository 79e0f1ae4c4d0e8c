"""The environment `python`: answer a question by running Python in a sandbox."""

import json
import random
import signal
from collections.abc import Sequence
from typing import Any

from segue.envs.python.expert import answer_turn, program_turn
from segue.envs.python.problem import Problem
from segue.envs.python.program import ProgramReply, ProgramRunner
from segue.envs.python.task import TRAINING_CLASSES, Split, check_classes, check_level, make_problem
from segue.envs.tool import tool
from segue.envs.tool_env import Task, ToolEnv, ToolResult
from segue.envs.truth import PROCESS_REWARD, check_rates, grade_answer, is_fallible

MAX_CODE_CHARS = 16384
_SIGNAL_STATUS = 128


class PythonEnv(ToolEnv):
    """Questions that a short program answers, often about a file beside it.

    Each program runs in a sandbox of its own, with fresh copies of the task's files, so a call depends on its code
    alone. The grader reads the answer and what programs printed, and no file.

    Reward terms:
        success: on the answer; 1 if it equals the truth after trimming white space, else 0.
        process: once, on the first program that ends well and prints exactly the truth; 0.1. Nothing is lost by
            answering, so no behaviour without an answer is worth more than one with it.
        efficiency: on a right answer; 0.1 less a quarter of it for each call beyond two, at least 0.

    Info: `question_class`, `level`, `split`, `truth` with the task; `output_correct` (a program printed exactly the
    truth) with the task and every step; `is_success` with the last.

    Reset options: `level` and `split` override the constructor's for one episode.
    """

    def __init__(
        self,
        *,
        runner: ProgramRunner,
        level: int = 1,
        classes: Sequence[str] = TRAINING_CLASSES,
        split: str = "train",
        max_calls: int = 8,
        slip_rate: float = 0.25,
        sloppy_rate: float = 0.65,
    ) -> None:
        """Builds the environment; problems are drawn at reset.

        Args:
            runner: runs the programs.
            level: 1 (files of 5 to 9 lines) or 2 (100 to 200).
            classes: of problems, some of total, highest, count_above, count_word, reverse, reorder, simulate and
                table_total; `heldout_kinds` has its own.
            split: a member of `Split`.
            max_calls: tool calls after which an episode is truncated.
            slip_rate: probability that the fallible demonstrator writes a wrong program; in [0, 1].
            sloppy_rate: probability that it answers in a form that the grader refuses; in [0, 1].
        """
        check_rates(slip_rate=slip_rate, sloppy_rate=sloppy_rate)
        check_level(level)
        self.max_calls = max_calls
        self._runner = runner
        self._level = level
        self._classes = check_classes(classes)
        self._split = Split(split)
        self._slip_rate = slip_rate
        self._sloppy_rate = sloppy_rate
        # (seed, level, split), from which the problem follows
        self._drawn_from: tuple[int, int, str] | None = None
        self._problem: Problem | None = None
        self._last_output: str | None = None
        self._is_output_correct = False

    def begin(self, seed: int, options: dict[str, Any]) -> Task:
        """Draws the seed's problem.

        Raises:
            ValueError: an option is unknown or out of range.
        """
        unknown = set(options) - {"level", "split"}
        if unknown:
            raise ValueError(f"reset options of python may be level and split, got {sorted(unknown)}")
        level = options.get("level", self._level)
        split = Split(options["split"]) if "split" in options else self._split
        problem = make_problem(seed, level, split, self._classes)
        self._drawn_from, self._problem = (seed, level, split.value), problem
        self._last_output, self._is_output_correct = None, False
        info = {
            "question_class": problem.kind, "level": level, "split": split.value, "truth": problem.truth,
            "output_correct": False,
        }  # fmt: skip
        return Task(user=problem.text, info=info)

    @tool("Run Python.")
    def run_python(self, code: str) -> ToolResult:
        """What a program prints."""
        if len(code) > MAX_CODE_CHARS:
            problem = f"code must have at most {MAX_CODE_CHARS} characters, got {len(code)}"
            return ToolResult(observation=f"error: {problem}")
        reply = self._runner.run(code, self._running.files)
        self._last_output = reply.output
        is_truth = reply.exit_status == 0 and reply.output.strip() == self._running.truth
        terms = {"process": PROCESS_REWARD} if is_truth and not self._is_output_correct else {}
        self._is_output_correct |= is_truth
        return ToolResult(observation=_render(reply), reward_terms=terms)

    @tool("Answer.")
    def answer(self, text: str) -> ToolResult:
        """Ends the episode."""
        return grade_answer(text, self._running.truth, self._num_calls)

    def progress(self) -> dict[str, Any]:
        """Whether a program has printed the truth."""
        return {"output_correct": self._is_output_correct}

    def expert(self, skill: str, rng: random.Random) -> dict[str, Any]:
        """Runs a program, then answers with what it printed."""
        errs = is_fallible(skill)
        if self._last_output is None:
            return program_turn(self._running, self._slip_rate if errs else 0.0, rng)
        return answer_turn(self._last_output, self._sloppy_rate if errs else 0.0, rng)

    def snapshot(self) -> bytes:
        """What the episode's programs came to; running them again might come to something else."""
        assert self._drawn_from is not None, "reset draws the problem"
        seed, level, split = self._drawn_from
        state = {
            "seed": seed, "level": level, "split": split, "last_output": self._last_output,
            "is_output_correct": self._is_output_correct,
        }  # fmt: skip
        return json.dumps(state).encode()

    def restore(self, data: bytes) -> None:
        """Draws the problem again and goes on from what its programs came to."""
        state = json.loads(data)
        self._drawn_from = (state["seed"], state["level"], state["split"])
        self._problem = make_problem(state["seed"], state["level"], Split(state["split"]), self._classes)
        self._last_output, self._is_output_correct = state["last_output"], state["is_output_correct"]

    @property
    def _running(self) -> Problem:
        assert self._problem is not None, "reset draws the problem"
        return self._problem


def _render(reply: ProgramReply) -> str:
    """The output, and a line on how the program ended where that was not well."""
    output = reply.output.rstrip("\n")
    if reply.stopped is not None:
        ending = f"error: stopped: {reply.stopped}"
    elif reply.exit_status:
        ending = f"error: {_name_status(reply.exit_status)}"
    else:
        return output or "none"
    return f"{output}\n{ending}" if output else ending


def _name_status(status: int) -> str:
    try:
        return f"ended by {signal.Signals(status - _SIGNAL_STATUS).name}"
    # no number of a signal
    except ValueError:
        return f"exit status {status}"
