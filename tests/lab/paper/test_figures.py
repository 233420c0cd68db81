"""Figures of the paper's own sections: whole, readable, and of what was measured."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.figure import Figure
from tests.lab.paper.test_theory import TINY
from tests.layout import check_figure

from shoal.lab import theory
from shoal.lab.experiments.summaries import Summary
from shoal.lab.paper import illustrations, measuring, theory_figures
from shoal.lab.paper.gamma import GammaPoint, gamma_figure
from shoal.lab.paper.measuring import Measured


def gamma_points() -> list[GammaPoint]:
    return [
        GammaPoint(
            environment,
            radius,
            norm,
            gamma,
            0.1,
            0.3,
            Summary(1000.0 * gamma, 10.0, 950.0 * gamma, 1050.0 * gamma, 1.0, 5),
            Summary(0.7, 0.1, 0.6, 0.8, 0.7, 5),
        )
        for environment in ("a", "b")
        for radius in ("beta", "beta_squared")
        for norm in (0.0, 1.0)
        for gamma in (0.75, 1.0, 1.25, 2.0)
    ]


@cache
def measured() -> Measured:
    """A small validation of the theory."""
    return measuring.measure(TINY)


BUILDERS: dict[str, Callable[[], Figure]] = {
    "gamma": lambda: gamma_figure({"": gamma_points()}, {"a": "M=3, Δ=0.20"}, {"a": 1096.8}),
    "gamma in two readings": lambda: gamma_figure(
        {"as published": gamma_points(), "at its best": gamma_points()}, {"a": "M=3, Δ=0.20"}, {"a": 1096.8}
    ),
    "sharing": lambda: illustrations.sharing_illustration(illustrations.play_sharing()),
    "separating": lambda: illustrations.separating_illustration(illustrations.play_separating()),
    "coverage": lambda: theory_figures.coverage_figure(measured()),
    "separation": lambda: theory_figures.separation_figure(measured()),
    "low noise": lambda: theory_figures.low_noise_figure(measured()),
    "regret of two": lambda: theory_figures.sharing_figure(measured()),
    "clusters": lambda: theory_figures.clusters_figure(measured()),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_figure_is_written_whole_and_readable(name: str, tmp_path: Path) -> None:
    check_figure(BUILDERS[name](), tmp_path)


def curve(figure: Figure, label: str, panel: int = 0) -> tuple[Any, Any]:
    """The points of a labelled line."""
    (line,) = (line for line in figure.axes[panel].lines if line.get_label() == label)
    x, y = line.get_data()
    return np.asarray(x), np.asarray(y)


def test_theory_figures_show_what_was_measured_and_the_bounds() -> None:
    found = measured()
    plain = theory_figures.coverage_figure(found)
    for panel, shares in enumerate((found.coverage.plain, found.coverage.widened)):
        for scale, row in zip(TINY.coverage_scales, shares, strict=True):
            x, y = curve(plain, f"noise R = {scale:g}", panel)
            assert dict(zip(x, y, strict=True)) == {
                1.0 - delta: share for delta, share in zip(TINY.coverage_deltas, row, strict=True)
            }
    times = theory_figures.separation_figure(found)
    x, y = curve(times, "measured, scaled by β² (proofs):\nmedian and quartiles")
    assert x.tolist() == list(TINY.gaps)
    assert y.tolist() == [sorted(row)[len(row) // 2] for row in found.separation["beta_squared"]]
    x, y = curve(times, "lower bound, corrected")
    assert y.tolist() == np.asarray(theory.separation_time_lower(0.1, x, reading="corrected")).tolist()
    clusters = theory_figures.clusters_figure(found)
    _, y = curve(clusters, "bound, derived")
    assert y[0] == pytest.approx(3.0 + 2.0 * 0.1**2)  # of 6 agents in 2 clusters, before anything is known
    _, y = curve(clusters, "BASS, scaled by β² (proofs)")
    assert tuple(y) == found.exploring[0].misassigned.mean
    _, y = curve(theory_figures.sharing_figure(found), "two agents that do not share", panel=1)
    assert tuple(y) == found.sharing[1].alone.mean


def test_pairs_that_never_separate_count_as_late() -> None:
    never = {radius: ((-1,) * 9 + (5,) * 3,) * 2 for radius in measuring.RADII}
    figure = theory_figures.separation_figure(msgspec.structs.replace(measured(), separation=never))
    _, y = curve(figure, "measured, scaled by β (default):\nmedian and quartiles")
    assert np.isinf(y).all()
