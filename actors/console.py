"""What the user sees while a run goes on: a live view on a terminal, one line a step elsewhere."""

from collections.abc import Sequence
from contextlib import suppress

from rich.console import Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from segue.actors.evaluation import ODD_ENDS
from segue.actors.patient_console import PatientConsole
from segue.actors.recorder import Values
from segue.actors.terminal import visible

_SPARKS = "▁▂▃▄▅▆▇█"
_HISTORY = 60
_SUCCESS = "batch/success/mean"
_IMITATION = "pretrain"

Row = tuple[str, float | None, float | None]
"""Name, before, after."""

# what a step's line and the live view show: label, metric, format (z: no minus before a zero)
_SHOWN = (
    ("success", _SUCCESS, "{:.2f}"),
    ("reward", "batch/reward/mean", "{:z.2f}"),
    ("loss", "update/loss/total", "{:z.4f}"),
    ("gap", "policy/logprob_gap/mean_nats", "{:.1e}"),
    ("stale", "staleness/age/mean_steps", "{:.1f}"),
    ("load", "router/violation/max", "{:.2f}"),
)
_RATES = (
    ("prefill", "rollout/prefill/tokens_per_s"),
    ("decode", "rollout/decode/tokens_per_s"),
    ("learn", "learner/tokens/per_s"),
)
# shown only where there is any
_FAILURES = (
    ("malformed", "batch/malformed/share"),
    ("truncated", "batch/truncated/share"),
    ("environment errors", "batch/environment_error/share"),
    ("infrastructure failures", "batch/infrastructure/share"),
)


class ConsoleView:
    """Listens to the recorder as a `Sink` and shows what matters."""

    def __init__(self, *, command: str, num_steps: int, is_live: bool, console: PatientConsole | None = None) -> None:
        self._console = console or PatientConsole()
        self._command = command
        self._num_steps = num_steps
        self._latest: dict[str, float | None] = {}
        self._history: list[float] = []
        self._status = "starting"
        self._step = 0
        self._live = Live(console=self._console, refresh_per_second=2, get_renderable=self.render)
        self._is_live = is_live and self._console.is_terminal
        if self._is_live:
            self._live.start()

    def __enter__(self) -> "ConsoleView":
        return self

    def __exit__(self, *_: object) -> None:
        self._end_live()

    def say(self, text: str) -> None:
        """Print one line that stays."""
        self._console.say(text)

    def set_status(self, text: str) -> None:
        """What the run is at; shown in the live view only."""
        self._status = text

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `recorder.Sink`."""
        if kind == "restore":
            return
        self._latest.update(values)
        self._step = step
        if kind == "eval":
            self.say(evaluation_line(step if self._num_steps else None, values))
        elif kind == "stage":
            self.say(stage_line(step, values))
        else:
            self._history = [*self._history, values[_SUCCESS] or 0.0][-_HISTORY:]
            if not self._is_live:
                self.say(step_line(step, self._num_steps, values, command=self._command))

    def close(self, status: str) -> None:
        """Leave the terminal as it was."""
        self._end_live()

    def _end_live(self) -> None:
        if self._is_live:
            with suppress(OSError):
                self._live.stop()

    def render(self) -> RenderableType:
        """The live view."""
        figures = Table.grid(padding=(0, 2))
        figures.add_row(
            *(_bold(label, form.format(self._latest[n])) for label, n, form in _present(self._latest, self._command))
        )
        terms = Table.grid(padding=(0, 2))
        named = _named(self._latest, ("batch/reward_term/", "batch/check/"))
        terms.add_row(*map(_plain, named), *_failures(self._latest))
        rates = Table.grid(padding=(0, 2))
        rates.add_row("tokens/s", *(f"{label} {_rate(self._latest[n])}" for label, n in _RATES if self._latest.get(n)))
        eta = self._latest.get("loop/eta/s")
        steps = f"step {self._step}/{self._num_steps} · " if self._num_steps else ""
        title = f"segue {self._command} · {steps}{self._status}"
        if eta is not None:
            title += f" · {_left(self._step, self._num_steps, eta)}"
        return Panel(
            Group(
                ProgressBar(total=max(self._num_steps, 1), completed=self._step),
                Text(f"{_success_label(self._command)} {sparkline(self._history)}"),
                figures,
                terms,
                rates,
            ),
            title=title,
        )


def step_line(step: int, num_steps: int, values: Values, *, command: str) -> str:
    """A step on one line."""
    parts = [f"step {step}/{num_steps}"]
    for label, name, form in _present(values, command):
        parts.append(f"{label} {form.format(values[name])}")
        if name == "batch/reward/mean":
            terms = _named(values, ("batch/reward_term/",))
            parts += [f"({', '.join(terms)})"] if terms else []
            parts += _named(values, ("batch/check/",))
    parts += _failures(values)
    if values.get("update/applied/count") == 0:
        is_advantage = not values.get("learner/tokens/stale") and not values.get("learner/trajectories/infrastructure")
        parts.append(f"no update: {'no group has an advantage' if is_advantage else 'nothing is left to train'}")
    rates = [f"{label} {_rate(values[name])}" for label, name in _RATES if values.get(name)]
    if rates:
        parts.append("tokens/s " + ", ".join(rates))
    eta = values.get("loop/eta/s")
    if eta is not None:
        parts.append(_left(step, num_steps, eta))
    return "  ".join(parts)


def evaluation_line(step: int | None, values: Values) -> str:
    """An evaluation on one line; None where nothing is trained."""
    parts = [
        f"{name.removeprefix('eval/').replace('/', ' ')} {value:.3f}"
        for name, value in values.items()
        if value is not None and (name.endswith("/success") or "/check/" in name or (_is_odd_end(name) and value))
    ]
    when = "" if step is None else f" after step {step}"
    return f"evaluation{when}: " + "  ".join(parts)


def stage_line(step: int, values: Values) -> str:
    """A curriculum's measurement on one line."""
    loss, short_loss, change = (
        values[f"curriculum/{name}"] for name in ("loss/nats", "short_loss/nats", "slope/share")
    )
    parts = [f"held-out loss {loss:.4f}", f"on the first stage's mix {short_loss:.4f}"]
    parts += [] if change is None else [f"{change:+.2%} a measurement"]
    return f"stage {values['curriculum/stage/number']:.0f} after step {step}: " + "  ".join(parts)


def before_and_after(rows: Sequence[Row]) -> Table:
    """A table of figures before and after; None is shown as a dash. Where there is no before, of one column."""
    if all(before is None for _, before, _ in rows):
        return _one_column(rows)
    table = Table("held-out", "before", "after", "change")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, before, after in rows:
        change = "–" if before is None or after is None else f"{after - before:+z.3f}"
        table.add_row(_plain(name), *("–" if value is None else f"{value:.3f}" for value in (before, after)), change)
    return table


def _one_column(rows: Sequence[Row]) -> Table:
    table = Table("held-out", "share")
    table.columns[1].justify = "right"
    for name, _, value in rows:
        table.add_row(_plain(name), "–" if value is None else f"{value:.3f}")
    return table


def sparkline(values: Sequence[float]) -> str:
    """Shares in [0, 1] as bars."""
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round(min(max(value, 0.0), 1.0) * top)] for value in values)


def duration(seconds: float) -> str:
    """`1h02m`, `3m05s`, `42s`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def _plain(name: str) -> Text:
    # an environment chose it: brackets in it are no markup
    return Text(visible(name))


def _bold(label: str, figure: str) -> Text:
    # not markup, which a line printed above the view without markup would leave unread
    return Text.assemble(f"{label} ", (figure, "bold"))


def _present(values: Values, command: str) -> list[tuple[str, str, str]]:
    return [
        (_success_label(command) if name == _SUCCESS else label, name, form)
        for label, name, form in _SHOWN
        if values.get(name) is not None
    ]


def _success_label(command: str) -> str:
    """Whose success a step's figure is: in imitation the policy plays in evaluations only."""
    return "demonstrator success" if command == _IMITATION else "success"


def _left(step: int, num_steps: int, eta_s: float) -> str:
    return f"{duration(eta_s)} left" if step < num_steps else "evaluations left"


def _named(values: Values, prefixes: tuple[str, ...]) -> list[str]:
    found = [(n.rpartition("/")[2], v) for n, v in values.items() if n.startswith(prefixes) and v is not None]
    return [f"{name} {value:z.2f}" for name, value in sorted(found)]


def _failures(values: Values) -> list[str]:
    return [f"{label} {value:.0%}" for label, name in _FAILURES if (value := values.get(name))]


def _is_odd_end(name: str) -> bool:
    parts = name.split("/")
    return len(parts) == 3 and parts[2] in ODD_ENDS


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value / 1000:.1f}k" if value >= 1000 else f"{value:.0f}"
