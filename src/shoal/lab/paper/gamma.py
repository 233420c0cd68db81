"""The scale of the ellipsoids: final regret of BASS for several γ, with and without S, and both radii."""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shoal.core.parquet import pa
from shoal.lab.experiments.report import Column, table_of
from shoal.lab.experiments.spec import MAIN
from shoal.lab.experiments.stored import Results
from shoal.lab.experiments.summaries import (
    REGRET,
    SCORE,
    Summary,
    best_cell,
    by_method,
    column,
    find_cells,
    summarize,
    unique,
)
from shoal.lab.paper import published
from shoal.lab.paper.comparison import REFERENCE, has_published_sizes
from shoal.reporting.charts import GREY, ORANGE, PURPLE, blank, legend_below, literal, thousands
from shoal.reporting.sections import Heading, Part, Picture, Table
from shoal.reporting.words import EMPTY, plus_minus

GAMMA = "gamma"
"""The group of methods that vary γ, S and the radius."""

TITLE = "The scale of the ellipsoids: γ, S and the form of the radius"
CAPTION = (
    "Final regret of BASS (δ = 0.1) for each γ: with ellipsoids scaled by β (the default, and what the "
    "published figures agree with) or by β² (what the proofs use), and with the radius's term √λ·S (S = 1, "
    "the default) or without it, as the paper prints the radius (S = 0). Bars are 95% intervals of the mean. "
    "With larger γ or S and with β², agents share longer."
)
READINGS_CAPTION = (
    f" Above: as published, at α = {{first}} ({published.INFERENCE}). Below: at the best of α = {{alphas}}."
)


@dataclass(frozen=True)
class GammaPoint:
    """Final regret of BASS for one γ, S, radius and environment, at its best α."""

    environment: str
    radius: str
    param_norm: float
    gamma: float
    delta: float
    alpha: float
    regret: Summary
    f1: Summary


def gamma_points(table: pa.Table, alphas: Collection[float] | None = None) -> list[GammaPoint]:
    """Final regret of BASS for each γ, S and radius of the group "gamma", at its best α (among `alphas`).

    The BASS of the tables is included where it has one of their δ, at the same values of α: it has γ = 2.
    """
    cells = [
        cell
        for cell in find_cells(table)
        if cell.policy == "bass" and (alphas is None or cell.alpha in alphas)
    ]
    parameters = {
        (cell.environment, cell.method): json.loads(table["policy_parameters"][int(cell.rows[0])].as_py())
        for cell in cells
    }
    varied = [cell for cell in cells if cell.group == GAMMA]
    grid = {
        (cell.environment, cell.alpha, parameters[cell.environment, cell.method]["delta"]) for cell in varied
    }
    joining = [
        cell
        for cell in cells
        if cell.group == MAIN
        and (cell.environment, cell.alpha, parameters[cell.environment, cell.method]["delta"]) in grid
    ]
    points = {}
    for (environment, method), tried in by_method(joining + varied).items():
        cell = best_cell(table, tried)
        own = parameters[environment, method]
        point = GammaPoint(
            environment=environment,
            radius=str(own.get("radius", "beta")),
            param_norm=float(own.get("param_norm", 1.0)),
            gamma=float(own.get("gamma", 2.0)),
            delta=float(own["delta"]),
            alpha=cell.alpha,
            regret=summarize(column(table, "final_regret", cell), REGRET),
            f1=summarize(column(table, "final_f1", cell), SCORE),
        )
        points[point.environment, _key(point)] = point
    return [points[key] for key in sorted(points)]


def gamma_parts(found: Results) -> list[Part]:
    """The figure; empty if γ was not varied."""
    best = gamma_points(found.table)
    if not best:
        return []
    tried = sorted({cell.alpha for cell in find_cells(found.table) if cell.group == GAMMA})
    shared = [alpha for alpha in tried if alpha in published.ALPHAS]
    readings = {"as published": gamma_points(found.table, shared)} if shared and shared != tried else {}
    readings["at its best" if readings else ""] = best
    printed = {
        environment: published.FINAL_REGRET[environment][REFERENCE].value
        for environment in found.environments
        if has_published_sizes(found.table, environment)
    }
    titles = {row.environment: row.title for row in found.rows}
    caption = CAPTION
    if len(readings) > 1:
        first, alphas = (" and ".join(f"{alpha:g}" for alpha in some) for some in (shared, tried))
        caption += READINGS_CAPTION.format(first=first, alphas=alphas)
    picture = Picture(TITLE, caption, "gamma", partial(gamma_figure, readings, titles, printed))
    tables = [
        gamma_table(
            f"γ, S and the radius{f', {reading}' if reading else ''}: final regret and F1", points, titles
        )
        for reading, points in readings.items()
    ]
    return [Heading(TITLE), picture, *tables]


def gamma_table(caption: str, points: Sequence[GammaPoint], titles: Mapping[str, str]) -> Table:
    """Mean final regret and F1 for each form of the radius, S and γ, by environment."""
    found = {(point.environment, _key(point)): point for point in points}

    def column_of(environment: str) -> Column:
        def text(key: tuple[str, float, float, float]) -> str:
            point = found.get((environment, key))
            if point is None:
                return EMPTY
            score = "" if math.isnan(point.f1.mean) else f", F1 {point.f1.mean:.2f}"
            return f"{plus_minus('{:,.0f}', point.regret.mean, point.regret.std)}{score} at α={point.alpha:g}"

        return Column(titles.get(environment, environment), text)

    columns = [
        Column("radius", lambda key: {"beta": "β", "beta_squared": "β²"}[key[0]]),
        Column("S", lambda key: f"{key[1]:g}"),
        Column("γ", lambda key: f"{key[3]:g}"),
        *map(column_of, unique(point.environment for point in points)),
    ]
    return table_of(caption, columns, sorted({_key(point) for point in points}))


def _key(point: GammaPoint) -> tuple[str, float, float, float]:
    return point.radius, point.param_norm, point.delta, point.gamma


LOOKS = {
    ("beta", True): (ORANGE, "*", "-", "β, S = {norm:g}"),
    ("beta", False): (ORANGE, "D", "--", "β, S = 0 (as printed)"),
    ("beta_squared", True): (PURPLE, "o", "-", "β² (as in the proofs), S = {norm:g}"),
    ("beta_squared", False): (PURPLE, "s", "--", "β², S = 0"),
}
"""Colour, marker, line and label, by the form of the radius and whether it has S."""


def gamma_figure(
    readings: Mapping[str, Sequence[GammaPoint]], titles: Mapping[str, str], printed: Mapping[str, float]
) -> Figure:
    """Final regret of BASS against γ for each form of the radius: a row per reading, a panel per environment.

    Parameters
    ----------
    readings : mapping
        Points, by the name of the reading.
    titles : mapping
        Titles of environments.
    printed : mapping
        The published mean for BASS (δ = 0.1), for comparable environments; drawn in the first row.
    """
    environments = unique(point.environment for points in readings.values() for point in points)
    figure = blank(width=1.2 + 4.2 * len(environments), height=0.9 + 3.3 * len(readings))
    axes = figure.subplots(len(readings), len(environments), squeeze=False)
    for line, (reading, points) in enumerate(readings.items()):
        for ax, environment in zip(axes[line], environments, strict=True):
            here = [point for point in points if point.environment == environment]
            _draw_points(ax, here)
            if environment in printed and line == 0:
                ax.axhline(printed[environment], color=GREY, linestyle=":", label="published, γ = 2, δ = 0.1")
            title = titles.get(environment, environment)
            ax.set_title(literal(f"{title}, {reading}" if reading else title), fontsize=10)
            ax.set(xlabel="scale γ of the ellipsoids", ylabel="final regret $R_T$ (reward units)")
            ax.set_ylim(bottom=0.0)
            thousands(ax, "y")
            ax.grid(alpha=0.25)
    legend_below(figure, axes.flat)
    return figure


def _draw_points(ax: Axes, points: Sequence[GammaPoint]) -> None:
    for (radius, has_norm), (color, marker, style, label) in LOOKS.items():
        chosen = [point for point in points if (point.radius, point.param_norm > 0.0) == (radius, has_norm)]
        for norm, delta in sorted({(point.param_norm, point.delta) for point in chosen}):
            drawn = [point for point in chosen if (point.param_norm, point.delta) == (norm, delta)]
            mean = np.array([point.regret.mean for point in drawn])
            ends = np.array([[point.regret.low for point in drawn], [point.regret.high for point in drawn]])
            ax.errorbar(
                [point.gamma for point in drawn], mean, yerr=np.nan_to_num(np.abs(ends - mean)), color=color,
                marker=marker, capsize=3, linestyle=style, markersize=8 if marker == "*" else 5,
                label=label.format(norm=norm),
            )  # fmt: skip
