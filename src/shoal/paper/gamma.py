"""The scale of the ellipsoids: final regret of BASS for several γ and both radii."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from matplotlib.figure import Figure

from shoal.experiments.report import Findings
from shoal.experiments.summaries import (
    MAIN,
    Summary,
    best_cell,
    by_method,
    column,
    find_cells,
    summarize,
    unique,
)
from shoal.paper import published
from shoal.paper.comparison import REFERENCE, comparable_environments
from shoal.reporting.charts import GREY, ORANGE, blank, legend_below, literal, save, thousands
from shoal.reporting.sections import Heading, Part, Picture

GAMMA = "gamma"
"""The group of methods that vary γ and the radius."""

TITLE = "The scale of the ellipsoids: γ and the radius"
CAPTION = (
    "Final regret of BASS at its best α for each γ, with ellipsoids scaled by β (the default, and what the "
    "published figures use) and by β² (what the proofs use). Bars are 95% intervals of the mean. With larger "
    "γ, agents share longer."
)


@dataclass(frozen=True)
class GammaPoint:
    """Final regret of BASS for one γ, radius and environment, at its best α."""

    environment: str
    radius: str
    gamma: float
    delta: float
    alpha: float
    regret: Summary


def gamma_points(table: pa.Table) -> list[GammaPoint]:
    """Final regret of BASS for each γ and radius of the group "gamma", at its best α.

    The BASS of the tables is included where it has one of their δ, at the same values of α: it has γ = 2.
    """
    cells = [cell for cell in find_cells(table) if cell.policy == "bass"]
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
            gamma=float(own.get("gamma", 2.0)),
            delta=float(own["delta"]),
            alpha=cell.alpha,
            regret=summarize(column(table, "final_regret", cell)),
        )
        points[point.environment, point.radius, point.delta, point.gamma] = point
    return [points[key] for key in sorted(points)]


def gamma_parts(found: Findings, directory: Path) -> list[Part]:
    """The figure, drawn into `directory`; empty if γ was not varied."""
    points = gamma_points(found.table)
    if not points:
        return []
    printed = {
        environment: published.FINAL_REGRET[environment][REFERENCE].mean
        for environment, same in comparable_environments(found.table, found.rows).items()
        if same
    }
    figure = gamma_figure(points, {row.environment: row.title for row in found.rows}, printed)
    return [Heading(TITLE), Picture(TITLE, CAPTION, save(figure, directory, "gamma"))]


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
        The published mean for BASS (δ = 0.1), for comparable environments.
    """
    environments = unique(point.environment for point in points)
    columns = min(len(environments), 2)
    lines = math.ceil(len(environments) / columns)
    figure = blank(width=1.2 + 4.2 * columns, height=0.9 + 3.3 * lines)
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
        thousands(ax, "y")
        ax.grid(alpha=0.25)
    legend_below(figure, axes.flat[: len(environments)])
    return figure
