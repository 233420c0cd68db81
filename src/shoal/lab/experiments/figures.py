"""Figures of regret, F1 score and α, from stored results or from traces, in the widths of print."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.axes import Axes

from shoal.core.types import Vector
from shoal.lab.plots import method_styles, policy_named
from shoal.lab.simulation import Trace, recorded_rounds
from shoal.reporting import charts
from shoal.reporting.charts import Axis, ChartLine, literal
from shoal.reporting.curves import Curve, mean_curve

if TYPE_CHECKING:  # results need the extra `parquet`, traces do not
    from shoal.lab.experiments.stored import Results
    from shoal.lab.experiments.summaries import SummaryRow

Traces = Trace | Sequence[Trace]
Width = Literal["column", "page"] | float | None

SHOWN_POINTS = 400
"""Points per curve; the eye cannot tell more apart."""
SMALL = 0.62
"""Lines and markers of a figure in print, relative to those of a report."""


@dataclass(frozen=True)
class Kind:
    """A figure drawn for every environment: its name, its texts, and how to get the curve of a row or run."""

    name: str
    heading: str
    caption: str
    axis: Axis
    bounds: tuple[float, float]
    stored: Callable[["Results", "SummaryRow"], Curve | None]
    """The curve of a row of stored results; None if it was not measured."""
    traced: Callable[[Trace], tuple[Vector, Vector]]
    """The curve of a trace, as x and y."""


def _stored_curve(column: str) -> Callable[["Results", "SummaryRow"], Curve | None]:
    def found(results: "Results", row: "SummaryRow") -> Curve | None:
        from shoal.lab.experiments.summaries import curve

        return curve(results.table, column, row.cell)

    return found


def _regret_of(trace: Trace) -> tuple[Vector, Vector]:
    rounds = recorded_rounds(len(trace.regret), SHOWN_POINTS)
    return rounds.astype(np.float64), trace.regret[rounds - 1]


_MEAN = "mean over runs; bands are 95% intervals of the mean."
REGRET = Kind(
    "regret",
    "regret over rounds",
    f"Cumulative regret at the best α of each method, {_MEAN}",
    Axis(
        "round t", "cumulative regret $R_t$ (reward units)", "round t", "cumulative regret",
        reading="Round ", switch="logarithmic axis",
    ),
    (0.0, np.inf),
    _stored_curve("curve_regret"),
    _regret_of,
)  # fmt: skip
ALPHA = Kind(
    "alpha",
    "final regret against α",
    f"Final regret against α, {_MEAN}",
    Axis(
        "width α of the confidence bonus", "final regret $R_T$ (reward units)", "α", "final regret",
        reading="Final regret at α = ", switch="logarithmic axis", log=True, every_point=True,
    ),
    (0.0, np.inf),
    lambda _, row: None if row.fixed else row.regret_by_alpha,
    lambda trace: (np.empty(0), np.array([trace.final_regret])),
)  # fmt: skip
F1 = Kind(
    "f1",
    "F1 score over rounds",
    f"F1 score of the graph at the best α of each method, {_MEAN}",
    Axis(
        "round t", "F1 score of the graph (0 to 1)", "round t", "F1 score",
        reading="Round ", limits=(-0.03, 1.03), digits=2,
    ),
    (0.0, 1.0),
    _stored_curve("curve_f1"),
    lambda trace: (trace.recorded.astype(np.float64), trace.f1),
)  # fmt: skip
KINDS = (REGRET, ALPHA, F1)
"""One figure of each kind per environment."""


def plot_regret(
    source: "Results | Traces | Mapping[str, Traces]",
    *,
    labels: str | Sequence[str] | None = None,
    environment: str | None = None,
    methods: Iterable[str] | None = None,
    width: Width = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw cumulative regret over rounds, the mean over runs with its 95% interval.

    Parameters
    ----------
    source : Results, Trace, sequence of Trace, or mapping from labels to traces
        What `load_results` or `simulate` returned. From results, each method is drawn at its best α; traces
        with the same label become one curve.
    labels : str or sequence of str, optional
        One per trace, unless `source` is a mapping; by default "run 0", "run 1", …. A label that starts with
        the name of a policy gets its colour.
    environment : str, optional
        Id of an environment of the results; by default there is a panel for each.
    methods : iterable of str, optional
        Ids of the results' methods, or labels; by default all.
    width : "column", "page" or float, optional
        Width in print: 3.25, 6.75 or that many inches, with text of 8 points and the legend below. By
        default the figure is made for the screen.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    Axes
        The first panel. Save it with `ax.figure.savefig("regret.pdf")`, or `.png`, or `.pgf` where LaTeX is
        installed. Fonts in PDF files are TrueType (type 42), as publishers require.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> policy = shoal.Independent(n_agents=4, dim=3, alpha=0.5)
    >>> trace = shoal.simulate(policy, world, horizon=100, seed=0)
    >>> ax = plot_regret(trace, labels="Ind", width="column")

    For a grid: `plot_regret(load_results("results/quick"), width="page")`.
    """
    return _plot(REGRET, source, labels, environment, methods, width, ax)


def plot_f1(
    source: "Results | Traces | Mapping[str, Traces]",
    *,
    labels: str | Sequence[str] | None = None,
    environment: str | None = None,
    methods: Iterable[str] | None = None,
    width: Width = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw the F1 score of the graph over rounds, the mean over runs with its 95% interval.

    The arguments are those of `plot_regret`. There must be true clusters to score against.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> policy = shoal.CLUB(n_agents=4, dim=3, alpha=0.5, gamma=0.5)
    >>> ax = plot_f1(shoal.simulate(policy, world, horizon=100, seed=0), labels="CLUB")
    """
    return _plot(F1, source, labels, environment, methods, width, ax)


def plot_alpha(
    source: "Results | Mapping[str, Mapping[float, Traces]]",
    *,
    environment: str | None = None,
    methods: Iterable[str] | None = None,
    width: Width = None,
    ax: Axes | None = None,
) -> Axes:
    """Draw final regret against α, the mean over runs with its 95% interval.

    The arguments are those of `plot_regret`. Traces are given by label and α:
    `{"CLUB": {0.3: traces, …}, …}`.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> runs = {
    ...     alpha: shoal.simulate(shoal.CLUB(4, 3, alpha=alpha, gamma=0.5), world, horizon=100, seed=0)
    ...     for alpha in (0.1, 0.3, 1.0)
    ... }
    >>> ax = plot_alpha({"CLUB": runs}, width="column")
    """
    return _plot(ALPHA, source, None, environment, methods, width, ax)


def result_lines(kind: Kind, results: "Results", rows: Sequence["SummaryRow"]) -> list[ChartLine]:
    """The curves of rows of stored results, without those that were not measured."""
    styles = method_styles((row.method, row.policy) for row in rows)
    curves = [(row, kind.stored(results, row)) for row in rows]
    return [
        ChartLine(row.label, styles[row.method], curve, row.method)
        for row, curve in curves
        if curve is not None
    ]


def draw_panels(axis: Axis, panels: Mapping[str, Sequence[ChartLine]], width: str | float) -> list[Axes]:
    """Draw panels by title in a width of print, with one legend below."""
    labels = {line.label for lines in panels.values() for line in lines}
    axes = charts.printed_axes(width, len(panels), sorted(labels))
    for panel, (title, lines) in zip(axes, panels.items(), strict=True):
        charts.draw_chart(panel, lines, axis, scale=SMALL)
        panel.set_title(literal(title))
        place = panel.get_subplotspec()
        if place is not None and not place.is_first_col():
            panel.set_ylabel("")
    charts.legend_of_panels(axes)
    figure = axes[0].get_figure(root=True)
    assert figure is not None
    charts.print_size(figure)
    return axes


def _plot(
    kind: Kind,
    source: Any,
    labels: str | Sequence[str] | None,
    environment: str | None,
    methods: Iterable[str] | None,
    width: Width,
    ax: Axes | None,
) -> Axes:
    if width is not None and ax is not None:
        raise ValueError("width must be left out with ax, whose figure has its own")
    wanted = None if methods is None else [methods] if isinstance(methods, str) else list(methods)
    if isinstance(source, Trace | Mapping) or (isinstance(source, Sequence) and not isinstance(source, str)):
        if environment is not None:
            raise ValueError("environment must be left out with traces: it is for stored results")
        panels = {"": _chosen(_trace_lines(kind, source, labels), wanted)}
    else:
        if labels is not None:
            raise ValueError("labels must be left out with results, whose methods have labels of their own")
        panels = _result_panels(kind, source, environment, wanted)
    if ax is None and width is not None:
        return draw_panels(kind.axis, panels, width)[0]
    if ax is None:
        across = len(panels)
        figure = charts.blank(width=1.6 + 4.8 * across, height=4.8)
        axes: list[Axes] = list(figure.subplots(1, across, squeeze=False)[0])
    elif len(panels) > 1:
        raise ValueError(f"environment must be one of {', '.join(panels)}: ax has room for one")
    else:
        axes = [ax]
    for panel, (title, lines) in zip(axes, panels.items(), strict=True):
        charts.draw_chart(panel, lines, kind.axis)
        panel.set_ylabel(kind.axis.ylabel)
        panel.set_title(literal(title), fontsize=10)
    axes[-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return axes[0]


def _result_panels(
    kind: Kind, source: Any, environment: str | None, wanted: list[str] | None
) -> dict[str, list[ChartLine]]:
    from shoal.lab.experiments.stored import Results

    if not isinstance(source, Results):
        raise ValueError(
            f"source must be what load_results or simulate returned, got {type(source).__name__}"
        )
    if environment is not None and environment not in source.environments:
        known = ", ".join(source.environments)
        raise ValueError(f"environment must be one of {known}, got {environment!r}")
    keys = source.environments if environment is None else [environment]
    panels = {
        source.title(key): lines
        for key in keys
        if (lines := _chosen(result_lines(kind, source, source.of(key)), wanted, strict=False))
    }
    if not panels:
        asked = "" if wanted is None else f" of {', '.join(wanted)}"
        raise ValueError(f"the results have no {kind.heading}{asked}")
    return panels


def _trace_lines(kind: Kind, source: Any, labels: str | Sequence[str] | None) -> list[ChartLine]:
    curves = _alpha_curves(source) if kind is ALPHA else _averaged(kind, *_labelled(source, labels))
    styles = method_styles((name, policy_named(name)) for name in curves)
    return [ChartLine(name, styles[name], curve) for name, curve in curves.items()]


def _averaged(kind: Kind, traces: Sequence[Trace], names: Sequence[str]) -> dict[str, Curve]:
    found = {}
    for name in dict.fromkeys(names):
        runs = [kind.traced(trace) for trace, label in zip(traces, names, strict=True) if label == name]
        x = runs[0][0]
        if any(not np.array_equal(x, other) for other, _ in runs):
            raise ValueError(f"traces labelled {name!r} must have the same number of rounds to be averaged")
        values = np.array([y for _, y in runs], dtype=np.float64)
        if np.isnan(values).any():
            raise ValueError(f"traces labelled {name!r} have no {kind.heading}: there are no true clusters")
        found[name] = mean_curve(x, values, bounds=kind.bounds)
    return found


def _alpha_curves(source: Any) -> dict[str, Curve]:
    if not isinstance(source, Mapping) or not all(isinstance(runs, Mapping) for runs in source.values()):
        raise ValueError('traces must be given by label and α: {"CLUB": {0.3: traces, …}, …}')
    found = {}
    for name, runs in source.items():
        points = [
            _averaged(ALPHA, _listed(traces), [name] * len(_listed(traces)))[name]
            for _, traces in sorted(runs.items())
        ]
        x = np.array(sorted(float(alpha) for alpha in runs))
        parts = (
            np.concatenate([getattr(point, part) for point in points]) for part in ("mean", "low", "high")
        )
        found[str(name)] = Curve(x, *parts)
    if not found:
        raise ValueError("traces must not be empty")
    return found


def _chosen(lines: list[ChartLine], wanted: Sequence[str] | None, *, strict: bool = True) -> list[ChartLine]:
    """The lines of the methods that were asked for, by id or label."""
    if wanted is None:
        return lines
    known = {name for line in lines for name in (line.key, line.label) if name}
    if strict and (unknown := [name for name in wanted if name not in known]):
        raise ValueError(f"methods must be among {', '.join(sorted(known))}, got {unknown[0]!r}")
    return [line for line in lines if line.key in wanted or line.label in wanted]


def _labelled(
    traces: "Traces | Mapping[str, Traces]", labels: str | Sequence[str] | None
) -> tuple[list[Trace], list[str]]:
    """Traces and their labels, one each."""
    if isinstance(traces, Mapping):
        if labels is not None:
            raise ValueError("labels must be left out when traces has them as keys")
        pairs = [(trace, str(name)) for name, group in traces.items() for trace in _listed(group)]
        listed, names = [trace for trace, _ in pairs], [name for _, name in pairs]
    else:
        listed = _listed(traces)
        names = [labels] if isinstance(labels, str) else list(labels or [])
        names = [f"run {index}" for index in range(len(listed))] if labels is None else names
    if not listed:
        raise ValueError("traces must not be empty")
    if len(names) != len(listed):
        raise ValueError(f"labels must have one entry for each of the {len(listed)} traces, got {len(names)}")
    return listed, names


def _listed(traces: "Traces") -> list[Trace]:
    listed = [traces] if isinstance(traces, Trace) else list(traces)
    for trace in listed:
        if not isinstance(trace, Trace):
            raise ValueError(f"traces must be what simulate returned, got {type(trace).__name__}")
    return listed
