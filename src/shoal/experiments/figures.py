"""The figures of the report, and three plots for a user's own policies and traces.

Only matplotlib's objects are used, never pyplot, so that nothing depends on a display or on global state.
Every method keeps its colour and marker in all figures; its second variant is dashed.
"""

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.ticker import FuncFormatter, NullFormatter
from scipy.sparse.csgraph import connected_components

from shoal import theory
from shoal.environments.base import Environment
from shoal.experiments.results import write_whole
from shoal.experiments.tables import Curve, GammaPoint, mean_curve, unique
from shoal.experiments.validation import (
    Band,
    Measured,
    band_interval,
    cluster_bound,
    misassigned_curve,
    pair_at,
    upper_bound,
)
from shoal.policies.base import Policy
from shoal.policies.bass import BASS
from shoal.simulation import Trace, simulate
from shoal.types import Integers, Matrix, Vector

DPI = 150
BLUE, ORANGE, RED, GREEN, GREY = "#1f77b4", "#e87000", "#d62728", "#1b8a5a", "#6b6b6b"


@dataclass(frozen=True)
class Style:
    """How a method is drawn, on paper and on the page."""

    color: str
    marker: str
    dash: tuple[float, ...]
    """On and off lengths in line widths; empty for a solid line."""
    width: float


FAMILIES: dict[str, tuple[str, str]] = {
    "dynucb": ("#d9489b", "D"),
    "club": (BLUE, "o"),
    "sclub": ("#8c564b", "s"),
    "cmlb": (RED, "^"),
    "bass": (ORANGE, "*"),
    "independent": ("#949494", "x"),
    "oracle": ("#3a3a3a", "+"),
    "cluster_mixture": ("#5b2a86", "P"),
}
"""Colour and marker of each policy. The colour-blind can tell those of our own from the others."""

OTHERS = (("#17827f", "v"), ("#6a4fb3", "X"), ("#7a7a00", "h"), ("#00629b", "<"))
"""Colours and markers of policies that are not in the paper."""

DASHES: tuple[tuple[float, ...], ...] = ((), (4.0, 2.0), (1.0, 1.5), (5.0, 1.5, 1.0, 1.5))
"""Lines of the first, second, … variant of a policy."""

OWN_DASHES: dict[str, tuple[tuple[float, ...], ...]] = {
    "cluster_mixture": ((3.0, 1.0, 3.0, 1.0, 1.0, 1.0), (2.0, 1.0)),
}
"""Lines of what is not in the paper, so that no reader takes it for one of its methods."""


def method_styles(methods: Iterable[tuple[str, str]]) -> dict[str, Style]:
    """Styles of methods given as (id, policy); variants of a policy share its colour, not its dashes."""
    seen: dict[str, int] = {}
    others = cycle(OTHERS)
    families = dict(FAMILIES)
    styles: dict[str, Style] = {}
    for method, policy in methods:
        if method in styles:
            continue
        if policy not in families:
            families[policy] = next(others)
        color, marker = families[policy]
        variant, dashes = seen.get(policy, 0), OWN_DASHES.get(policy, DASHES)
        seen[policy] = variant + 1
        width = 2.2 if policy in ("bass", "cluster_mixture") else 1.5
        styles[method] = Style(color, marker, dashes[variant % len(dashes)], width)
    return styles


def save(figure: Figure, directory: Path, name: str) -> Path:
    """Write a figure as PNG and PDF and return the path of the PNG. The same figure gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    undated = {"png": {"Software": None}, "pdf": {"CreationDate": None, "Creator": None, "Producer": None}}
    for kind, metadata in undated.items():
        drawn = io.BytesIO()
        figure.savefig(drawn, format=kind, dpi=DPI, metadata=metadata)
        write_whole(directory / f"{name}.{kind}", drawn.getvalue())
    return directory / f"{name}.png"


def literal(text: str) -> str:
    """A text that matplotlib shows as it is: "$" starts no formula, "_" at its start hides no line."""
    shown = text.replace("$", r"\$")
    return f" {shown}" if shown.startswith("_") else shown


# Figures of the experiments


@dataclass(frozen=True)
class Line:
    """A curve with the label and style of its method."""

    label: str
    style: Style
    curve: Curve


def regret_figure(lines: Sequence[Line], title: str) -> Figure:
    """Cumulative regret over rounds, mean with its 95% interval."""
    figure, ax = _figure(title)
    _draw(ax, lines)
    ax.set(xlabel="round t", ylabel="cumulative regret $R_t$ (reward units)")
    ax.set_ylim(bottom=0.0)
    _thousands(ax, "xy")
    _legend(figure)
    return figure


def alpha_figure(lines: Sequence[Line], title: str) -> Figure:
    """Final regret against α, mean with its 95% interval, on a logarithmic axis of regret."""
    figure, ax = _figure(title)
    _draw(ax, lines, every_point=True)
    ax.set(xlabel="width α of the confidence bonus", ylabel="final regret $R_T$ (reward units)", yscale="log")
    positive = np.concatenate([line.curve.mean[line.curve.mean > 0.0] for line in lines])
    if len(positive):  # bands may reach below zero, which this axis cannot show
        ax.set_ylim(bottom=0.5 * float(positive.min()))
    _thousands(ax, "y")
    _legend(figure)
    return figure


def f1_figure(lines: Sequence[Line], title: str) -> Figure:
    """F1 score of the graph over rounds, mean with its 95% interval."""
    figure, ax = _figure(title)
    _draw(ax, lines)
    ax.set(xlabel="round t", ylabel="F1 score of the graph (0 to 1)", ylim=(-0.03, 1.03))
    _thousands(ax, "x")
    _legend(figure)
    return figure


def gamma_figure(
    points: Sequence[GammaPoint], titles: Mapping[str, str], printed: Mapping[str, float]
) -> Figure:
    """Final regret of BASS against γ for both radii, one panel per environment.

    Parameters
    ----------
    points : sequence of GammaPoint
    titles : mapping
        Titles of environments.
    printed : mapping
        The published mean for BASS (δ = 0.1), for environments where it can be compared.
    """
    environments = unique(point.environment for point in points)
    columns = min(len(environments), 2)
    lines = math.ceil(len(environments) / columns)
    figure = _blank(width=1.2 + 4.2 * columns, height=0.9 + 3.3 * lines)
    axes = figure.subplots(lines, columns, squeeze=False)
    for ax in axes.flat[len(environments) :]:
        ax.set_visible(False)
    looks = {
        "beta": (ORANGE, "*", "-", "ellipsoids scaled by β (as published)"),
        "beta_squared": ("#6a4fb3", "o", "--", "ellipsoids scaled by β² (as in the proofs)"),
    }
    for ax, environment in zip(axes.flat, environments, strict=False):
        here = [point for point in points if point.environment == environment]
        for radius, (color, marker, line, label) in looks.items():
            for delta in sorted({point.delta for point in here if point.radius == radius}):
                chosen = [point for point in here if (point.radius, point.delta) == (radius, delta)]
                mean = np.array([point.regret.mean for point in chosen])
                half = np.nan_to_num([point.regret.high - point.regret.mean for point in chosen])
                ax.errorbar(
                    [point.gamma for point in chosen], mean, yerr=half, color=color, marker=marker, capsize=3,
                    linestyle=line, markersize=8 if marker == "*" else 5, label=f"{label}, δ = {delta:g}",
                )  # fmt: skip
        if environment in printed:
            ax.axhline(printed[environment], color=GREY, linestyle=":", label="published, γ = 2, δ = 0.1")
        ax.set_title(literal(titles.get(environment, environment)), fontsize=10)
        ax.set(xlabel="scale γ of the ellipsoids", ylabel="final regret $R_T$ (reward units)")
        ax.set_ylim(bottom=0.0)
        _thousands(ax, "y")
        ax.grid(alpha=0.25)
    _legend_below(figure, axes.flat[: len(environments)])
    return figure


# Theory against simulation

SQUARED = "#6a4fb3"
RADIUS_LOOKS = {
    "beta": (ORANGE, "*", "scaled by β (default)"),
    "beta_squared": (SQUARED, "o", "scaled by β² (proofs)"),
}
"""Colour, marker and name of the two ways to scale the ellipsoids of BASS."""


def coverage_figure(measured: Measured) -> Figure:
    """Share of runs in which θ stayed inside its ellipsoid against the share promised, for both radii."""
    setting, coverage = measured.setting, measured.coverage
    promised = 1.0 - np.array(setting.coverage_deltas)
    order = np.argsort(promised)
    figure = _blank(width=9.0, height=4.9)
    axes = figure.subplots(1, 2, sharey=True)
    figure.suptitle("Does the confidence ellipsoid hold the parameter in all rounds?", fontsize=11)
    looks = tuple(zip((RED, ORANGE, BLUE, GREEN), "^sov", strict=True))
    panels = (("radius β, as printed", coverage.plain), ("radius β + ‖θ‖, as derived", coverage.widened))
    for ax, (title, shares) in zip(axes, panels, strict=True):
        ax.fill_between([0.0, 1.0], 0.0, [0.0, 1.0], color=RED, alpha=0.07, linewidth=0, label="broken")
        ax.plot([0.0, 1.0], [0.0, 1.0], color="black", linestyle="--", linewidth=1.0, label="promised: 1 − δ")
        for scale, row, (color, marker) in zip(setting.coverage_scales, shares, cycle(looks), strict=False):
            ax.plot(
                promised[order], np.array(row)[order], color=color, marker=marker, markersize=6,
                label=f"noise R = {scale:g}", clip_on=False,
            )  # fmt: skip
        ax.set_title(title, fontsize=10)
        ax.set(xlabel="share promised, 1 − δ", ylabel="share of runs with θ inside", xlim=(0, 1), ylim=(0, 1))
        ax.grid(alpha=0.25)
        ax.label_outer()
    _legend_below(figure, axes)
    return figure


def separation_figure(measured: Measured) -> Figure:
    """Separation times against the gap, median and quartiles, with the bounds of theory."""
    setting = measured.setting
    gaps = np.array(setting.gaps)
    figure, ax = _figure("Rounds until two agents stop sharing")
    for radius, (color, marker, label) in RADIUS_LOOKS.items():
        _draw_times(ax, gaps, measured.separation[radius], color, marker, f"measured, {label}")
    dense = np.geomspace(gaps[0], gaps[-1], 60)
    lower = (("printed", (0, (1, 1)), RED), ("derived", "--", GREY), ("corrected", ":", GREY))
    for reading, dashes, color in lower:
        bound = theory.separation_time_lower(setting.delta, dense, reading=reading)  # type: ignore[arg-type]
        ax.plot(dense, bound, color=color, linestyle=dashes, label=f"lower bound, {reading}")
    upper = [upper_bound(setting, gap, 1.0, "derived") for gap in dense]
    ax.plot(
        dense,
        np.array(upper, dtype=np.float64),
        color="black",
        linestyle="-.",
        label="upper bound, derived\n(for β²)",
    )
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"distance $\|\theta_i - \theta_j\|$ of the two parameters",
        ylabel="round of separation",
    )
    ax.set_xticks(gaps, [f"{gap:g}" for gap in gaps])
    ax.xaxis.set_minor_formatter(NullFormatter())
    _thousands(ax, "y")
    _legend(figure)
    return figure


def low_noise_figure(measured: Measured) -> Figure:
    """Separation times against the noise, so low that the printed upper bound applies; one panel per gap."""
    setting = measured.setting
    figure = _blank(width=9.4, height=5.0)
    axes = figure.subplots(1, len(setting.low_noise_gaps), sharey=True, squeeze=False)[0]
    figure.suptitle("Rounds until two agents stop sharing, with little noise", fontsize=11)
    color, marker, label = RADIUS_LOOKS["beta_squared"]
    for ax, gap, rows in zip(axes, setting.low_noise_gaps, measured.low_noise, strict=True):
        scales = gap * np.array(setting.low_noise_ratios)
        times = np.array([[t if t > 0 else math.inf for t in row] for row in rows])
        _draw_times(ax, scales, rows, color, marker, f"measured, {label}")
        late = np.quantile(times, 1.0 - setting.delta, axis=1, method="inverted_cdf")
        share = f"round by which {1.0 - setting.delta:.0%} are separated"
        ax.plot(scales, late, color=color, linestyle=":", marker="v", label=share)
        dense = np.linspace(scales[0], scales[-1], 120)
        looks = (("printed", (0, (1, 1)), RED), ("derived", "-.", "black"), ("corrected", "--", GREY))
        for reading, dashes, shade in looks:
            bounds = [upper_bound(setting, gap, scale, reading) for scale in dense]
            shown = np.array([math.nan if bound is None else bound for bound in bounds], dtype=np.float64)
            ax.plot(dense, shown, color=shade, linestyle=dashes, label=f"upper bound, {reading}")
        ax.set_title(f"parameters {gap:g} apart", fontsize=10)
        ax.set(yscale="log", xlabel="noise scale R", ylabel="round of separation")
        ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        ax.yaxis.set_minor_formatter(NullFormatter())
        ax.grid(alpha=0.25)
        ax.label_outer()
    _legend_below(figure, axes)
    return figure


def sharing_figure(measured: Measured) -> Figure:
    """Regret of two agents that share and of two that do not, with the bounds; one panel per gap."""
    setting = measured.setting
    figure = _blank(width=11.4, height=5.4)
    axes = figure.subplots(1, len(setting.sharing_gaps), sharey=True, squeeze=False)[0]
    figure.suptitle("Regret of two agents, and how much the theory allows", fontsize=11)
    for ax, gap in zip(axes, setting.sharing_gaps, strict=True):
        entries = {entry.radius: entry for entry in measured.sharing if entry.gap == gap}
        rounds = np.array(entries["beta"].rounds, dtype=np.float64)
        for radius, (color, marker, label) in RADIUS_LOOKS.items():
            entry = entries[radius]
            _draw_band(ax, rounds, entry.together, setting.sharing_runs, color, marker, f"BASS, {label}")
            times = [t if t > 0 else math.inf for t in entry.separated]
            middle = float(np.median(times))
            if math.isfinite(middle):
                ax.axvline(middle, color=color, linestyle=":", linewidth=1.0)
        color, marker = FAMILIES["independent"]
        alone = entries["beta"].alone
        _draw_band(ax, rounds, alone, setting.sharing_runs, color, marker, "two agents that do not share")
        common: dict[str, Any] = {"horizon": rounds}
        network = theory.regret_bound_network(
            setting.delta, setting.sharing_dim, bias=max(entries["beta"].biases[2], 0.0), **common
        )
        individual = theory.regret_bound_individual(
            setting.delta, setting.sharing_dim, gamma=setting.gamma, bias=entries["beta"].biases[0], **common
        )
        single = theory.nu(setting.delta, setting.sharing_dim, rounds)
        ax.plot(rounds, single, color=GREY, linestyle=":", label="bound of a single agent, ν")
        ax.plot(rounds, network, color="black", linestyle="-.", label="bound of the mean of both (μ′)")
        ax.plot(rounds, individual, color="black", linestyle="--", label="bound of the first agent (μ)")
        apart = "same parameter" if gap == 0.0 else f"parameters {gap:g} apart"
        ax.set_title(apart, fontsize=10)
        ax.set(yscale="log", xlabel="round t", ylabel="mean regret of an agent")
        _thousands(ax, "xy")
        ax.grid(alpha=0.25)
        ax.label_outer()
    _legend_below(figure, axes)
    return figure


def clusters_figure(measured: Measured) -> Figure:
    """Misassigned agents, regret and communication over rounds under clusters, with their bounds."""
    setting = measured.setting
    figure = _blank(width=11.4, height=5.6)
    wrong, regret, cost = figure.subplots(1, 3)
    figure.suptitle(
        f"{setting.n_agents} agents in {setting.n_clusters} clusters {setting.cluster_gap:g} apart",
        fontsize=11,
    )
    for entry in measured.exploring:
        color, marker, label = RADIUS_LOOKS[entry.policy]
        rounds = np.array(entry.rounds, dtype=np.float64)
        _draw_band(wrong, rounds, entry.misassigned, setting.cluster_runs, color, marker, f"BASS, {label}")
    dense = np.arange(1, setting.cluster_rounds + 1)
    for reading, dashes, color in (("printed", (0, (1, 1)), RED), ("derived", "-.", "black")):
        bounds = misassigned_curve(setting, dense, reading)
        wrong.plot(dense, bounds, color=color, linestyle=dashes, label=f"bound, {reading}")
    looks = {**RADIUS_LOOKS, "oracle": (*FAMILIES["oracle"], "")}
    for entry in measured.clusters:
        color, marker, label = looks[entry.policy]
        name = "Oracle" if entry.policy == "oracle" else f"BASS, {label}"
        rounds = np.array(entry.rounds, dtype=np.float64)
        _draw_band(regret, rounds, entry.regret, setting.cluster_runs, color, marker, name)
        if entry.policy != "oracle":
            _draw_band(cost, rounds, entry.communication, setting.cluster_runs, color, marker, name)
    ends = {
        (entry.policy, reading): cluster_bound(setting, entry, reading)
        for entry in measured.clusters
        for reading in ("printed", "derived")
    }
    last = setting.cluster_rounds
    for (policy, reading), value in ends.items():
        if policy == "beta":
            continue
        name = "oracle" if policy == "oracle" else "BASS, β²"
        color = FAMILIES["oracle"][0] if policy == "oracle" else SQUARED
        marker = "v" if reading == "printed" else "s"
        regret.plot(
            last, value, color=color, marker=marker, markersize=7, linestyle="none", clip_on=False,
            markerfacecolor="none", label=f"bound for {name}, {reading}, at the end",
        )  # fmt: skip
    lower = theory.regret_lower(
        setting.delta, setting.cluster_dim, horizon=last, n_agents=setting.n_agents // setting.n_clusters
    )
    regret.plot(
        last, lower, color=RED, marker="^", markersize=7, linestyle="none", clip_on=False,
        markerfacecolor="none", label="ν/N, said to bound the oracle from below",
    )  # fmt: skip
    for reading, pulls, color, dashes in (
        ("T in rounds (printed)", 1, RED, (0, (1, 1))),
        ("T in pulls (derived)", setting.n_agents, "black", "-."),
    ):
        limit = theory.communication_bound(setting.n_agents, rounds * pulls)
        cost.plot(rounds, limit, color=color, linestyle=dashes, label=f"(N − 1)T, {reading}")
    wrong.set(xlabel="round t (basis vectors in turn)", ylabel="misassigned agents in a neighbourhood")
    regret.set(xlabel="round t", ylabel="regret of an agent", yscale="log")
    cost.set(xlabel="round t", ylabel="communication cost so far", yscale="log")
    for ax in (wrong, regret, cost):
        _thousands(ax, "xy")
        ax.grid(alpha=0.25)
    _legend_below(figure, (wrong, regret, cost))
    return figure


def _draw_times(
    ax: Axes, x: Vector, rows: Sequence[Sequence[int]], color: str, marker: str, label: str
) -> None:
    """Median and quartiles; pairs that never separated count as later than any that did."""
    times = np.array([[t if t > 0 else math.inf for t in row] for row in rows])
    low, median, high = np.quantile(times, [0.25, 0.5, 0.75], axis=1, method="nearest")
    ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(x, median, color=color, marker=marker, label=f"{label}:\nmedian and quartiles")


def _draw_band(ax: Axes, x: Vector, band: Band, runs: int, color: str, marker: str, label: str) -> None:
    """Mean over runs with its 95% interval."""
    mean, low, high = band_interval(band, runs)
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    ax.plot(
        x, mean, color=color, marker=marker, markevery=max(len(x) // 6, 1), label=label,
        markersize=8 if marker == "*" else 5,
    )  # fmt: skip


# Illustrations

ILLUSTRATED_PULLS = (7, 3)
"""How often each agent of the first illustration pulls e1 and e2: 10 pulls each."""


def sharing_illustration() -> Figure:
    """Two agents, 10 pulls each: what sharing does when their parameters agree, and when they do not."""
    figure = _blank(width=7.6, height=5.2)
    axes = figure.subplots(1, 2, sharex=True, sharey=True)
    figure.suptitle("Sharing halves the variance, and adds a bias when the agents differ", fontsize=11)
    for ax, gap, title in zip(axes, (0.0, 1.27), ("same parameter", "parameters 1.27 apart"), strict=True):
        theta = pair_at(gap)
        policy = BASS(2, 2, alpha=1.0, delta=0.1, radius="beta_squared")
        rng = np.random.default_rng(3)
        for arm, pulls in enumerate(ILLUSTRATED_PULLS):
            for _ in range(pulls):
                for agent in (0, 1):
                    policy.update(agent, np.eye(2)[arm], theta[agent][arm] + rng.standard_normal())
        plot_ellipsoids(policy, 0, 1, ax=ax)
        _mark_truth(ax, theta)
        ax.set_title(title, fontsize=10)
    for ax in axes:
        ax.label_outer()
    _legend_below(figure, axes)
    return figure


def separating_illustration() -> Figure:
    """The pair as it separates: ellipsoids of two agents early, later, and in the round of separation."""
    theta = pair_at(1.27)
    world = Environment(np.eye(2), theta_star=np.array(theta))

    def played(rounds: int) -> BASS:
        policy = BASS(2, 2, alpha=1.0, delta=0.1, radius="beta_squared", epsilon=1.0, seed=4)
        simulate(policy, world, horizon=rounds, seed=4, pulling="synchronous", points=1)
        return policy

    end = int(played(5000).separation_time[0, 1])
    figure = _blank(width=11.4, height=5.0)
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    figure.suptitle("The pair stops sharing in the round in which the two ellipsoids part", fontsize=11)
    for ax, rounds in zip(axes, (10, (10 + end) // 2, end), strict=True):
        policy = played(rounds)
        plot_ellipsoids(policy, 0, 1, ax=ax)
        _mark_truth(ax, theta)
        centers = np.array([policy.local_estimate(agent) for agent in (0, 1)])
        ax.plot(
            centers[:, 0],
            centers[:, 1],
            color=RED,
            linestyle="--",
            linewidth=1.2,
            label="their distance: the bias of sharing",
        )
        ax.set_title(
            f"after {rounds} rounds: {'separated' if rounds == end else 'still sharing'}", fontsize=10
        )
    for ax in axes:
        ax.label_outer()
    _legend_below(figure, axes)
    return figure


def _mark_truth(ax: Axes, theta: Sequence[Vector]) -> None:
    for agent, (value, color) in enumerate(zip(theta, (BLUE, ORANGE), strict=True)):
        # A large ring below a small disc: both stay visible where the two agree.
        ax.plot(
            value[0], value[1], marker="o", markersize=11 - 5 * agent, markeredgecolor=color,
            markerfacecolor="none" if agent == 0 else color, markeredgewidth=1.8, linestyle="none",
            label=f"true parameter of agent {agent}",
        )  # fmt: skip


# Plots for users


def plot_ellipsoids(
    policy: Any, i: int, j: int, *, dims: tuple[int, int] = (0, 1), ax: Axes | None = None
) -> Axes:
    """Draw the confidence ellipsoids of two agents, and what sharing makes of them.

    Solid: each agent's own samples, at the size that the test of BASS uses, `‖z − θ̂_i‖²_{A_i} ≤ γ²/4·c_i`.
    Dashed: the samples of its pool, at the same confidence. With two dimensions the pair is separated exactly
    when the solid ones part; with more, the plot shows their shadows, which may still overlap then.

    Parameters
    ----------
    policy : Policy
        Any policy of this package. For those without `delta`, `gamma`, `radius`, `noise_scale` and
        `param_norm`, the values 0.1, 2, "beta_squared", 1 and 1 are taken: ellipsoids that hold the true
        parameter with probability 0.9.
    i, j : int
        Two agents.
    dims : pair of int
        The two coordinates to show.
    ax : matplotlib Axes, optional
        Where to draw; a new figure when it is left out.

    Returns
    -------
    Axes
        Its figure is `ax.figure`; save it with `ax.figure.savefig(...)`.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.BASS(n_agents=2, dim=2, alpha=1.0, delta=0.1)
    >>> policy.update(0, [1.0, 0.0], 0.7)
    >>> ax = plot_ellipsoids(policy, 0, 1)
    """
    first, second = _checked_dims(dims, policy.dim)
    ax = _axes(ax)
    pools = [np.asarray(policy.neighbors(agent)) for agent in (i, j)]
    everything: list[Matrix] = []
    for agent, color in ((i, BLUE), (j, ORANGE)):
        center, shape = _ellipsoid(policy, np.array([agent]))
        everything.append(
            _draw_ellipse(ax, center, shape, (first, second), color, "-", "^", f"agent {agent}, own samples")
        )
    same_pool = np.array_equal(pools[0], pools[1])
    for agent, pool, color in zip((i, j), pools, (BLUE, ORANGE), strict=True):
        if len(pool) > 1 and not (same_pool and agent == j):
            center, shape = _ellipsoid(policy, pool)
            label = "shared samples" if same_pool else f"agent {agent}, shared samples"
            color = GREEN if same_pool else color
            everything.append(_draw_ellipse(ax, center, shape, (first, second), color, "--", "v", label))
    corners = np.concatenate(everything)
    ax.update_datalim(corners)
    ax.margins(0.08)
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlabel=f"coordinate {first}", ylabel=f"coordinate {second}")
    ax.grid(alpha=0.25)
    if ax.figure.axes == [ax]:
        # Four lines of text below the axes, whatever their height: clear of ticks and label.
        ax.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, 0.0),
            borderaxespad=4.0,
            ncols=2,
            frameon=False,
            fontsize=9,
        )
    return ax


def plot_graph(
    policy: Any, *, labels: Sequence[int] | Integers | None = None, ax: Axes | None = None
) -> Axes:
    """Draw who shares with whom, the agents of a group beside each other on a circle of circles.

    Parameters
    ----------
    policy : Policy
        Anything with a `graph`, shape (N, N).
    labels : sequence of int, optional
        Groups, one label per agent: the true clusters, say. By default the connected components of the graph.
    ax : matplotlib Axes, optional
        Where to draw; a new figure when it is left out.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import shoal
    >>> ax = plot_graph(shoal.BASS(n_agents=5, dim=2, alpha=1.0, delta=0.1))
    """
    graph = np.asarray(policy.graph, dtype=np.bool_)
    ids = np.asarray(getattr(policy, "agents", np.arange(len(graph))))
    groups = connected_components(graph)[1] if labels is None else np.asarray(labels)
    if groups.shape != (len(graph),):
        raise ValueError(
            f"labels must have one entry for each of the {len(graph)} agents, got shape {groups.shape}"
        )
    ax = _axes(ax)
    places = _circle_of_circles(groups[ids])
    position = np.full((len(graph), 2), np.nan)
    position[ids] = places
    pairs = np.argwhere(np.triu(graph, 1))
    within = groups[pairs[:, 0]] == groups[pairs[:, 1]]
    opacity = float(np.clip(12.0 / math.sqrt(max(len(pairs), 1)), 0.06, 0.7))
    for mask, color, name in ((within, GREY, "within a group"), (~within, RED, "across groups")):
        if mask.any():
            ends = position[pairs[mask]]
            ax.add_collection(
                LineCollection(list(ends), colors=color, alpha=opacity, linewidths=0.8, zorder=1)
            )
            ax.plot([], [], color=color, label=f"{mask.sum():,} edges {name}")
    wheel = [color for color, _ in (*FAMILIES.values(), *OTHERS)]
    for number, group in enumerate(np.unique(groups[ids])):
        here = ids[groups[ids] == group]
        x, y = position[here].T
        ax.scatter(x, y, s=36, color=wheel[number % len(wheel)], edgecolors="white", linewidths=0.6, zorder=2)
    if len(ids) <= 30:
        middle = places.mean(axis=0)
        for agent in ids:
            outwards = position[agent] - middle
            length = float(np.linalg.norm(outwards)) or 1.0
            ax.annotate(
                str(agent), position[agent], textcoords="offset points", xytext=tuple(9 * outwards / length),
                ha="center", va="center", fontsize=7,
            )  # fmt: skip
    ax.set_aspect("equal")
    ax.margins(0.12)
    ax.set_axis_off()
    kind = "components" if labels is None else "groups"
    ax.set_title(f"{len(ids)} agents in {len(np.unique(groups[ids]))} {kind}", fontsize=10)
    if len(pairs):
        ax.legend(loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, frameon=False, fontsize=9)
    return ax


def plot_regret(
    traces: Trace | Sequence[Trace], *, labels: str | Sequence[str] | None = None, ax: Axes | None = None
) -> Axes:
    """Draw cumulative regret over rounds. Traces with the same label become their mean with its 95% interval.

    Parameters
    ----------
    traces : Trace or sequence of Trace
        What `simulate` returned.
    labels : str or sequence of str, optional
        One per trace; "run 0", "run 1", … by default.
    ax : matplotlib Axes, optional
        Where to draw; a new figure when it is left out.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> policy = shoal.Independent(n_agents=4, dim=3, alpha=0.5)
    >>> ax = plot_regret(shoal.simulate(policy, world, horizon=100, seed=0), labels="Ind")
    """
    listed = [traces] if isinstance(traces, Trace) else list(traces)
    if not listed:
        raise ValueError("traces must not be empty")
    names = [labels] if isinstance(labels, str) else labels
    names = [f"run {index}" for index in range(len(listed))] if names is None else list(names)
    if len(names) != len(listed):
        raise ValueError(f"labels must have one entry for each of the {len(listed)} traces, got {len(names)}")
    known = {"ind": "independent", **{policy: policy for policy in FAMILIES}}
    keys = {name: (name.split() or [""])[0].lower() for name in unique(names)}
    styles = method_styles((name, known.get(key, name)) for name, key in keys.items())
    ax = _axes(ax)
    lines = []
    for name in unique(names):
        regrets = [trace.regret for trace, label in zip(listed, names, strict=True) if label == name]
        if len({len(regret) for regret in regrets}) > 1:
            raise ValueError(f"traces labelled {name!r} must have the same number of rounds to be averaged")
        shown = np.unique(
            np.linspace(0, len(regrets[0]) - 1, min(400, len(regrets[0]))).round().astype(np.int64)
        )
        lines.append(
            Line(
                name,
                styles[name],
                mean_curve((shown + 1).astype(np.float64), np.array(regrets, dtype=np.float64)[:, shown]),
            )
        )
    _draw(ax, lines)
    ax.set(xlabel="round t", ylabel="cumulative regret (reward units)")
    ax.set_ylim(bottom=0.0)
    _thousands(ax, "xy")
    ax.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), frameon=False, fontsize=9)
    return ax


def _checked_dims(dims: tuple[int, int], dim: int) -> tuple[int, int]:
    first, second = dims
    if first == second or not all(0 <= axis < dim for axis in dims):
        raise ValueError(f"dims must be two different coordinates in 0, …, {dim - 1}, got {dims}")
    return first, second


def _ellipsoid(policy: Policy, agents: Integers) -> tuple[Vector, Matrix]:
    """Centre and shape S of the ellipsoid `(z − centre)ᵀ S⁻¹ (z − centre) ≤ 1` of the agents' samples."""
    own = policy.parameters
    ridge, local = own["ridge"], policy.state.local
    identity = ridge * np.eye(policy.dim)
    A = identity + (local.A[agents] - identity).sum(axis=0)
    A_inv = np.linalg.inv(A)
    logdet_A = float(np.linalg.slogdet(A)[1]) - policy.dim * math.log(ridge)
    delta, noise_scale, norm = (
        own.get(key, default) for key, default in (("delta", 0.1), ("noise_scale", 1.0), ("param_norm", 1.0))
    )
    beta = float(theory.beta(delta, max(logdet_A, 0.0), noise_scale, param_norm=norm, ridge=ridge))
    c = beta if own.get("radius", "beta_squared") == "beta" else beta**2
    return A_inv @ local.b[agents].sum(axis=0), own.get("gamma", 2.0) ** 2 / 4.0 * c * A_inv


def _draw_ellipse(
    ax: Axes,
    center: Vector,
    shape: Matrix,
    dims: tuple[int, int],
    color: str,
    line: str,
    marker: str,
    label: str,
) -> Matrix:
    """Draw the shadow of an ellipsoid on two coordinates; return the corners of its bounding box."""
    chosen = list(dims)
    middle, shadow = center[chosen], shape[np.ix_(chosen, chosen)]
    values, vectors = np.linalg.eigh(shadow)
    width, height = 2.0 * np.sqrt(values)
    angle = math.degrees(math.atan2(vectors[1, 0], vectors[0, 0]))
    place = (float(middle[0]), float(middle[1]))
    if line == "-":
        ax.add_patch(
            Ellipse(place, width, height, angle=angle, facecolor=color, alpha=0.12, edgecolor="none")
        )
    outline = {"facecolor": "none", "edgecolor": color, "linestyle": line, "linewidth": 1.6, "label": label}
    ax.add_patch(Ellipse(place, width, height, angle=angle, **outline))
    ax.plot(*place, marker=marker, color=color, markersize=7, linestyle="none", label=f"estimate, {label}")
    half = np.sqrt(np.diag(shadow))
    return np.array([middle - half, middle + half])


def _circle_of_circles(groups: Integers) -> Matrix:
    """Places of agents: each group on a small circle, the small circles around a large one."""
    names = np.unique(groups)
    sizes = np.array([np.sum(groups == name) for name in names])
    radii = 0.12 * np.sqrt(sizes) + 0.02 * sizes * (sizes > 1)
    radii = np.where(sizes == 1, 0.05, radii)
    # Each small circle takes an arc of the large one in proportion to its size, with room between neighbours.
    arcs = 2.0 * radii + 0.25
    around = max(float(arcs.sum()) / (2.0 * math.pi), float(radii.max()) + 0.3) if len(names) > 1 else 0.0
    middles = 2.0 * math.pi * (np.cumsum(arcs) - arcs / 2.0) / arcs.sum()
    places = np.zeros((len(groups), 2))
    for name, radius, angle in zip(names, radii, middles, strict=True):
        members = np.flatnonzero(groups == name)
        turns = angle + 2.0 * math.pi * np.arange(len(members)) / len(members)
        own = radius if len(members) > 1 else 0.0
        places[members, 0] = around * math.cos(angle) + own * np.cos(turns)
        places[members, 1] = around * math.sin(angle) + own * np.sin(turns)
    return places


# Common parts


def _blank(*, width: float, height: float) -> Figure:
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _figure(title: str) -> tuple[Figure, Axes]:
    figure = _blank(width=8.6, height=4.6)
    ax = figure.subplots()
    ax.set_title(literal(title), fontsize=11)
    ax.grid(alpha=0.25)
    return figure, ax


def _axes(ax: Axes | None) -> Axes:
    return _blank(width=6.4, height=4.8).subplots() if ax is None else ax


def _draw(ax: Axes, lines: Sequence[Line], *, every_point: bool = False) -> None:
    for index, line in enumerate(lines):
        curve, style = line.curve, line.style
        spacing = max(len(curve.x) // 8, 1)
        ax.fill_between(curve.x, curve.low, curve.high, color=style.color, alpha=0.12, linewidth=0)
        ax.plot(
            curve.x, curve.mean, color=style.color, linewidth=style.width, label=literal(line.label),
            linestyle=(0, style.dash) if style.dash else "-", marker=style.marker,
            # Markers of different methods start at different points, so that they do not cover one another.
            markevery=None if every_point else (index * spacing // max(len(lines), 1), spacing),
            markersize=9 if style.marker == "*" else 5,
        )  # fmt: skip
    ax.grid(alpha=0.25)


def _thousands(ax: Axes, which: str) -> None:
    formatter = FuncFormatter(lambda value, _: f"{value:,.0f}" if value == round(value) else f"{value:g}")
    for axis in (ax.xaxis if name == "x" else ax.yaxis for name in which):
        axis.set_major_formatter(formatter)
    if "y" in which and ax.get_yscale() == "log":
        low, high = ax.get_ylim()
        few = high / low < 30
        ax.yaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:,.0f}" if few and str(value)[0] in "235" else "")
        )


def _legend(figure: Figure) -> None:
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, handlelength=3.2)


def _legend_below(figure: Figure, axes: Iterable[Axes]) -> None:
    """One legend for several panels, each label once."""
    entries: dict[str, Any] = {}
    for ax in axes:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    figure.legend(
        list(entries.values()), list(entries), loc="outside lower center", ncols=3, frameon=False, fontsize=9
    )
