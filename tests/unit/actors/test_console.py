"""What the user reads, character by character."""

import io

import pytest
from rich.console import Console

from segue.actors.console import (
    ConsoleView,
    before_and_after,
    duration,
    evaluation_line,
    sparkline,
    step_line,
)
from segue.actors.patient_console import PatientConsole

STEP = {
    "batch/success/mean": 0.5,
    "batch/reward/mean": 0.61,
    "batch/check/query_correct": 0.75,
    "batch/reward_term/process": 0.08,
    "batch/reward_term/success": 0.5,
    "staleness/age/mean_steps": 0.0,
    "rollout/decode/tokens_per_s": 6120.0,
    "rollout/prefill/tokens_per_s": None,
    "loop/eta/s": 130.4,
}
STEP_TEXT = (
    "step 12/100  success 0.50  reward 0.61  (process 0.08, success 0.50)  query_correct 0.75  stale 0.0  "
    "tokens/s decode 6.1k  2m10s left"
)


def test_a_step_is_one_line_of_what_is_there() -> None:
    assert step_line(12, 100, STEP, command="train") == STEP_TEXT


def test_a_zero_has_no_minus() -> None:
    values = {**STEP, "update/loss/total": -1e-9, "batch/reward/mean": -0.001}
    text = step_line(12, 100, values, command="train")
    assert "  reward 0.00  " in text.replace(" (", "  (") and "  loss 0.0000  " in text


def test_a_step_of_imitation_says_whose_success_it_is() -> None:
    expected = STEP_TEXT.replace("success 0.50", "demonstrator success 0.50", 1)
    assert step_line(12, 100, STEP, command="pretrain") == expected


def test_a_last_step_leaves_evaluations_and_no_time_of_zero() -> None:
    text = step_line(100, 100, {**STEP, "loop/eta/s": 0.0}, command="train")
    assert text.endswith("  evaluations left") and "0s" not in text


def test_a_step_without_an_update_says_why() -> None:
    values = {**STEP, "update/applied/count": 0.0, "learner/tokens/stale": 0.0}
    assert "  no update: no group has an advantage  " in step_line(12, 100, values, command="train")
    values["learner/tokens/stale"] = 5.0
    assert "  no update: nothing is left to train  " in step_line(12, 100, values, command="train")
    assert "no update" not in step_line(12, 100, {**values, "update/applied/count": 1.0}, command="train")


def test_a_step_tells_of_failures_where_there_are_any() -> None:
    values = {
        **STEP,
        "batch/malformed/share": 0.0,
        "batch/truncated/share": 0.5,
        "batch/environment_error/share": 0.125,
    }
    expected = STEP_TEXT.replace("tokens/s", "truncated 50%  environment errors 12%  tokens/s")
    assert step_line(12, 100, values, command="train") == expected


def test_an_evaluation_is_one_line_of_success_and_checks() -> None:
    values = {
        "eval/wall/s": 3.0,
        "eval/greedy/success": 0.25,
        "eval/greedy/check/query_correct": 0.5,
        "eval/greedy/class/max": 1.0,
    }
    expected = "evaluation after step 25: greedy success 0.250  greedy check query_correct 0.500"
    assert evaluation_line(25, values) == expected
    assert evaluation_line(None, values) == expected.replace(" after step 25", "")


def test_lines_replace_the_live_view_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    view = ConsoleView(command="train", num_steps=100, is_live=True, console=PatientConsole(file=stream, width=200))
    view.write("step", 12, STEP)
    view.write("restore", 12, {})
    view.say("[not markup] a/b")
    view.close("finished")
    assert stream.getvalue() == STEP_TEXT + "\n[not markup] a/b\n"


def test_the_live_view_shows_the_latest_figures() -> None:
    stream = io.StringIO()
    view = ConsoleView(command="train", num_steps=100, is_live=False, console=PatientConsole(file=stream, width=120))
    view.write("step", 12, STEP)
    printer = Console(file=io.StringIO(), width=120)
    printer.print(view.render())
    text = printer.file.getvalue()  # type: ignore[attr-defined]
    for part in ("segue train", "step 12/100", "2m10s left", "success 0.50", "process 0.08", "decode 6.1k", "▅"):
        assert part in text, part


def test_the_closing_table_shows_changes_and_dashes() -> None:
    printer = Console(file=io.StringIO(), width=80)
    printer.print(before_and_after([("sampled success", 0.25, 0.75), ("joins success", None, 0.5)]))
    lines = printer.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [cell.strip() for cell in lines[3].strip("│").split("│")] == ["sampled success", "0.250", "0.750", "+0.500"]
    assert [cell.strip() for cell in lines[4].strip("│").split("│")] == ["joins success", "–", "0.500", "–"]


def test_names_that_an_environment_chose_are_shown_as_they_are() -> None:
    printer = Console(file=io.StringIO(), width=80)
    printer.print(before_and_after([("list[int]", 0.25, 0.75), ("[/INST]\x1b[2J", 0.0, 0.5)]))
    printer.print(before_and_after([("[/b]", None, 0.75)]))
    view = ConsoleView(command="train", num_steps=1, is_live=False, console=PatientConsole(file=io.StringIO()))
    view.write("step", 1, {**STEP, "batch/reward_term/[/red]": 0.25})
    printer.print(view.render())
    shown = printer.file.getvalue()  # type: ignore[attr-defined]
    assert all(name in shown for name in ("list[int]", "[/INST]\\x1b[2J", "[/b]", "red] 0.25"))


def test_a_table_without_a_before_has_one_column() -> None:
    printer = Console(file=io.StringIO(), width=80)
    printer.print(before_and_after([("sampled success", None, 0.75), ("joins success", None, None)]))
    lines = printer.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines[3:5]]
    assert rows == [["sampled success", "0.750"], ["joins success", "–"]]


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe")])
def test_a_terminal_or_reader_that_is_gone_ends_no_run(error: OSError) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise error

    view = ConsoleView(command="train", num_steps=1, is_live=False, console=PatientConsole(file=Closed(), width=80))
    view.say("ending")
    view.say("ended")


def test_durations_and_sparklines() -> None:
    assert [duration(s) for s in (0.4, 59, 60, 3599.6, 3600, 7261)] == ["0s", "59s", "1m00s", "1h00m", "1h00m", "2h01m"]
    assert sparkline([0.0, 0.5, 1.0, 2.0]) == "▁▅██"
