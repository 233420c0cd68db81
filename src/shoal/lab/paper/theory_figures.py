"""Figures of the theory against simulation: measurements and bounds."""

import math
from collections.abc import Sequence
from itertools import cycle
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from shoal.core.policies.independent import Independent
from shoal.core.policies.oracle import Oracle
from shoal.core.types import Matrix, Vector
from shoal.lab import theory
from shoal.lab.paper.judging import band_interval, cluster_bound, misassigned_curve, upper_bound
from shoal.lab.paper.measuring import Band, Measured
from shoal.reporting.charts import BLUE, GREEN, GREY, ORANGE, RED, blank, legend, legend_below, thousands

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
    figure = blank(width=9.0, height=4.9)
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
        ax.set(xlabel="share promised, 1 − δ", ylabel="share of runs with θ inside", xlim=(0, 1), ylim=(0, 1))
        _finish(ax, title)
    legend_below(figure, axes)
    return figure


def separation_figure(measured: Measured) -> Figure:
    """Separation times against the gap, median and quartiles, with the theory's bounds."""
    setting = measured.setting
    gaps = np.array(setting.gaps)
    figure = blank(width=8.6, height=4.6)
    ax = figure.subplots()
    ax.set_title("Rounds until two agents stop sharing", fontsize=11)
    ax.grid(alpha=0.25)
    for radius, (color, marker, label) in RADIUS_LOOKS.items():
        _draw_times(ax, gaps, measured.separation[radius], color, marker, f"measured, {label}")
    dense = np.geomspace(gaps[0], gaps[-1], 60)
    lower = (("printed", (0, (1, 1)), RED), ("derived", "--", GREY), ("corrected", ":", GREY))
    for reading, dashes, color in lower:
        bound = theory.separation_time_lower(setting.delta, dense, reading=reading)  # type: ignore[arg-type]
        ax.plot(dense, bound, color=color, linestyle=dashes, label=f"lower bound, {reading}")
    upper = np.array([upper_bound(setting, gap, 1.0, "derived") for gap in dense], dtype=np.float64)
    ax.plot(dense, upper, color="black", linestyle="-.", label="upper bound, derived\n(for β²)")
    ax.set(
        xscale="log",
        yscale="log",
        xlabel=r"distance $\|\theta_i - \theta_j\|$ of the two parameters",
        ylabel="round of separation",
    )
    ax.set_xticks(gaps, [f"{gap:g}" for gap in gaps])
    ax.xaxis.set_minor_formatter(NullFormatter())
    thousands(ax, "y")
    legend(figure)
    return figure


def low_noise_figure(measured: Measured) -> Figure:
    """Separation times against noise so low that the printed upper bound applies; one panel per gap."""
    setting = measured.setting
    figure = blank(width=9.4, height=5.0)
    axes = figure.subplots(1, len(setting.low_noise_gaps), sharey=True, squeeze=False)[0]
    figure.suptitle("Rounds until two agents stop sharing, with little noise", fontsize=11)
    color, marker, label = RADIUS_LOOKS["beta_squared"]
    for ax, gap, rows in zip(axes, setting.low_noise_gaps, measured.low_noise, strict=True):
        scales = gap * np.array(setting.low_noise_ratios)
        _draw_times(ax, scales, rows, color, marker, f"measured, {label}")
        late = np.quantile(_times(rows), 1.0 - setting.delta, axis=1, method="inverted_cdf")
        share = f"round by which {1.0 - setting.delta:.0%} are separated"
        ax.plot(scales, late, color=color, linestyle=":", marker="v", label=share)
        dense = np.linspace(scales[0], scales[-1], 120)
        looks = (("printed", (0, (1, 1)), RED), ("derived", "-.", "black"), ("corrected", "--", GREY))
        for reading, dashes, shade in looks:
            bounds = [upper_bound(setting, gap, scale, reading) for scale in dense]
            shown = np.array([math.nan if bound is None else bound for bound in bounds], dtype=np.float64)
            ax.plot(dense, shown, color=shade, linestyle=dashes, label=f"upper bound, {reading}")
        ax.set(yscale="log", xlabel="noise scale R", ylabel="round of separation")
        ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        ax.yaxis.set_minor_formatter(NullFormatter())
        _finish(ax, f"parameters {gap:g} apart")
    legend_below(figure, axes)
    return figure


def sharing_figure(measured: Measured) -> Figure:
    """Regret of two agents that share and of two that do not, with the bounds; one panel per gap."""
    setting = measured.setting
    figure = blank(width=11.4, height=5.4)
    axes = figure.subplots(1, len(setting.sharing_gaps), sharey=True, squeeze=False)[0]
    figure.suptitle("Regret of two agents, and how much the theory allows", fontsize=11)
    for ax, gap in zip(axes, setting.sharing_gaps, strict=True):
        entries = {entry.radius: entry for entry in measured.sharing if entry.gap == gap}
        rounds = np.array(entries["beta"].rounds, dtype=np.float64)
        for radius, (color, marker, label) in RADIUS_LOOKS.items():
            entry = entries[radius]
            _draw_band(ax, rounds, entry.together, setting.sharing_runs, color, marker, f"BASS, {label}")
            middle = float(np.median(_times([entry.separated])))
            if math.isfinite(middle):
                ax.axvline(middle, color=color, linestyle=":", linewidth=1.0)
        color, marker = Independent.line_style[:2]
        alone = entries["beta"].alone
        _draw_band(ax, rounds, alone, setting.sharing_runs, color, marker, "two agents that do not share")
        common: dict[str, Any] = {"horizon": rounds, "param_norm": setting.param_norm}
        network = theory.regret_bound_network(
            setting.delta, setting.sharing_dim, bias=max(entries["beta"].biases[2], 0.0), **common
        )
        individual = theory.regret_bound_individual(
            setting.delta, setting.sharing_dim, gamma=setting.gamma, bias=entries["beta"].biases[0], **common
        )
        single = theory.nu(setting.delta, setting.sharing_dim, rounds, param_norm=setting.param_norm)
        ax.plot(rounds, single, color=GREY, linestyle=":", label="bound of a single agent, ν")
        ax.plot(rounds, network, color="black", linestyle="-.", label="bound of the mean of both (μ′)")
        ax.plot(rounds, individual, color="black", linestyle="--", label="bound of the first agent (μ)")
        ax.set(yscale="log", xlabel="round t", ylabel="mean regret of an agent")
        thousands(ax, "xy")
        _finish(ax, "same parameter" if gap == 0.0 else f"parameters {gap:g} apart")
    legend_below(figure, axes)
    return figure


def clusters_figure(measured: Measured) -> Figure:
    """Misassigned agents, regret and communication over rounds, under clusters, with their bounds."""
    setting = measured.setting
    figure = blank(width=11.4, height=5.6)
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
    looks = {**RADIUS_LOOKS, "oracle": (*Oracle.line_style[:2], "")}
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
        color = Oracle.line_style.color if policy == "oracle" else SQUARED
        marker = "v" if reading == "printed" else "s"
        regret.plot(
            last, value, color=color, marker=marker, markersize=7, linestyle="none", clip_on=False,
            markerfacecolor="none", label=f"bound for {name}, {reading}, at the end",
        )  # fmt: skip
    lower = theory.regret_lower(
        setting.delta,
        setting.cluster_dim,
        horizon=last,
        n_agents=setting.n_agents // setting.n_clusters,
        param_norm=setting.param_norm,
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
        thousands(ax, "xy")
        ax.grid(alpha=0.25)
    legend_below(figure, (wrong, regret, cost))
    return figure


def _draw_times(
    ax: Axes, x: Vector, rows: Sequence[Sequence[int]], color: str, marker: str, label: str
) -> None:
    """Median and quartiles of separation times."""
    low, median, high = np.quantile(_times(rows), [0.25, 0.5, 0.75], axis=1, method="nearest")
    ax.fill_between(x, low, high, color=color, alpha=0.2, linewidth=0)
    ax.plot(x, median, color=color, marker=marker, label=f"{label}:\nmedian and quartiles")


def _times(rows: Sequence[Sequence[int]]) -> Matrix:
    """Separation times; a pair that never separated counts as later than all that did."""
    return np.array([[t if t > 0 else math.inf for t in row] for row in rows])


def _finish(ax: Axes, title: str) -> None:
    """Title, grid and outer labels of a panel."""
    ax.set_title(title, fontsize=10)
    ax.grid(alpha=0.25)
    ax.label_outer()


def _draw_band(ax: Axes, x: Vector, band: Band, runs: int, color: str, marker: str, label: str) -> None:
    """Mean over runs with its 95% interval."""
    mean, low, high = band_interval(band, runs)
    ax.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
    ax.plot(
        x, mean, color=color, marker=marker, markevery=max(len(x) // 6, 1), label=label,
        markersize=8 if marker == "*" else 5,
    )  # fmt: skip
