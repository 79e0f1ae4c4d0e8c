"""`curves.png` and `recall.png`: what `metrics.jsonl` says, drawn."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter, StrMethodFormatter

from segue.actors.recorder import Values, read_metrics
from segue.conf.rules import EVALUATION_MODES, SAMPLED_MODE

Series = dict[str, tuple[list[int], list[float]]]
"""Metric to its steps and values."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One drawing: every metric whose name starts with one of the prefixes."""

    title: str
    unit: str
    prefixes: tuple[str, ...]


_STALENESS = Panel("staleness", "steps", ("staleness/age/",))
# in its place where every token is fresh
_LENGTHS = Panel("tokens of an episode", "tokens", ("batch/tokens/", "batch/sampled_tokens/"))
_SHARE = "share of episodes"
PANELS = (
    Panel("success", _SHARE, ("batch/success", *(f"eval/{mode}/success" for mode in EVALUATION_MODES))),
    Panel("checks", _SHARE, ("batch/check/", f"eval/{SAMPLED_MODE}/check/")),
    Panel("reward terms", "reward", ("batch/reward_term/", "batch/reward/mean")),
    Panel("loss and entropy", "nats", ("update/loss/total", "policy/entropy/")),
    Panel("log-probability gap", "nats", ("policy/logprob_gap/", "policy/kl_estimate/")),
    _STALENESS,
    Panel("load violation", "over the mean", ("router/violation/",)),
    Panel("tokens per second", "tokens/s", ("rollout/prefill/", "rollout/decode/", "learner/tokens/per_s")),
    Panel("seconds of a step", "s", ("loop/step/", "loop/wait/", "loop/learn/")),
    Panel("held-out loss", "nats", ("held_out/", "curriculum/loss/", "curriculum/short_loss/")),
)
_COLUMNS = 3


class CurvesSink:
    """Redraws both after each evaluation; it listens behind the sink that writes `metrics.jsonl`.

    A drawing that fails ends no run: it is told once, as each damaged line of the metrics is.
    """

    def __init__(self, metrics: Path, curves: Path, recall: Path, say: Callable[[str], None]) -> None:
        self._metrics = metrics
        self._curves = curves
        self._recall = recall
        self._say = say
        self._told: set[str] = set()
        self._has_evaluation = False

    def write(self, kind: str, step: int, values: Values) -> None:
        """See `recorder.Sink`."""
        if kind == "step" and self._has_evaluation:
            self._draw()
        self._has_evaluation |= kind in ("eval", "stage")

    def close(self, status: str) -> None:
        """See `recorder.Sink`."""
        self._draw()

    def _draw(self) -> None:
        self._has_evaluation = False
        try:
            lines = read_metrics(self._metrics, self._tell)
            draw_recall(lines, self._recall)
            draw_curves(lines, self._curves)
        # whatever the drawing library says
        except Exception as error:
            self._tell(f"{self._curves} could not be drawn: {type(error).__name__}: {error}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._say(text)


def draw_curves(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw every panel that has values, and replace the file.

    Args:
        lines: of `recorder.read_metrics`.
    """
    panels = _filled_panels(_series(lines))
    rows = max(1, -(-len(panels) // _COLUMNS))
    figure = _figure(_COLUMNS, rows)
    for number, (panel, found) in enumerate(panels):
        _draw(figure.add_subplot(rows, _COLUMNS, number + 1), panel, found)
    _save(figure, path)


@dataclass(frozen=True, slots=True)
class RecallCurve:
    """Probability of the answering turn by distance, at one measurement, in archives of one length."""

    step: int
    length: int
    is_extrapolated: bool
    """Longer than anything trained till then."""
    distances: tuple[float, ...]
    """Tokens, ascending."""
    probabilities: tuple[float, ...]


def recall_curves(lines: Sequence[dict[str, Any]]) -> list[RecallCurve]:
    """The curves of all measurements of recall, by step and length.

    Args:
        lines: of `recorder.read_metrics`.
    """
    curves = []
    for line in lines:
        metrics = line["metrics"]
        lengths = sorted({int(name.split("/")[1]) for name in metrics if name.startswith("recall/")})
        for length in lengths:
            prefix = f"recall/{length}/"
            quarters = sorted({name.split("/")[2] for name in metrics if name.startswith(prefix)})
            curves.append(
                RecallCurve(
                    step=line["step"],
                    length=length,
                    is_extrapolated=length > metrics["curriculum/longest/tokens"],
                    distances=tuple(metrics[f"{prefix}{quarter}/distance_tokens"] for quarter in quarters),
                    probabilities=tuple(metrics[f"{prefix}{quarter}/probability"] for quarter in quarters),
                )
            )
    return curves


def draw_recall(lines: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw recall by distance, a panel a measurement, and replace the file; nothing where there is no measurement.

    Args:
        lines: of `recorder.read_metrics`.
    """
    curves = recall_curves(lines)
    steps = sorted({curve.step for curve in curves})
    if not steps:
        return
    figure = _figure(len(steps), 1)
    for number, step in enumerate(steps):
        axes = figure.add_subplot(1, len(steps), number + 1)
        for curve in (curve for curve in curves if curve.step == step):
            style, note = ("--", ", beyond training") if curve.is_extrapolated else ("-", "")
            label = f"{curve.length} tokens{note}"
            axes.plot(curve.distances, curve.probabilities, style, marker="o", markersize=4, label=label)
        axes.set_xscale("log", base=2)
        # plain numbers: powers would need fonts for formulas
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_ylim(-0.02, 1.02)
        _label(axes, f"recall after step {step}", "tokens between fact and question", "probability of answering right")
    _save(figure, path)


def _figure(columns: int, rows: int) -> Figure:
    figure = Figure(figsize=(5 * columns, 3 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Figure, path: Path) -> None:
    temporary = path.with_name(f".{path.name}")
    figure.savefig(temporary, format="png", dpi=100)
    temporary.replace(path)


def _filled_panels(series: Series) -> list[tuple[Panel, Series]]:
    """The panels that have something to show."""

    def chosen(panel: Panel) -> Series:
        return {name: values for name, values in series.items() if name.startswith(panel.prefixes)}

    is_stale = any(any(values) for _, values in chosen(_STALENESS).values())
    panels = [_LENGTHS if panel is _STALENESS and not is_stale else panel for panel in PANELS]
    return [(panel, found) for panel in panels if (found := chosen(panel))]


def _series(lines: Sequence[dict[str, Any]]) -> Series:
    series: Series = {}
    for line in lines:
        for name, value in line["metrics"].items():
            if value is not None:
                steps, values = series.setdefault(name, ([], []))
                steps.append(line["step"])
                values.append(value)
    return series


def _draw(axes: Axes, panel: Panel, found: Series) -> None:
    for name, (steps, values) in sorted(found.items()):
        is_evaluation = name.startswith(("eval/", "held_out/", "curriculum/"))
        axes.plot(steps, values, marker="o" if is_evaluation or len(steps) == 1 else "", markersize=4, label=name)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    if panel.unit == _SHARE:
        axes.set_ylim(-0.02, 1.02)
    _label(axes, panel.title, "step", panel.unit)


def _label(axes: Axes, title: str, x: str, y: str) -> None:
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=8)
    axes.set_ylabel(y, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6)
