"""Figures: files that are whole, text that does not overlap, and plots that show what the policy holds."""

import math
import time
from collections.abc import Callable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Ellipse
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from tests.experiments.test_validation import TINY

import shoal
from shoal import theory
from shoal.experiments import figures, validation
from shoal.experiments.figures import Line
from shoal.experiments.tables import Curve, GammaPoint, Summary
from shoal.experiments.validation import Measured

METHODS = [
    (method, policy)
    for policy, variants in {
        "independent": ["ind"],
        "oracle": ["oracle"],
        "dynucb": ["dynucb"],
        "club": ["club-g4", "club-g2"],
        "sclub": ["sclub-g4", "sclub-g2"],
        "bass": ["bass-d0.1", "bass-d0.9"],
        "cmlb": ["cmlb-g4", "cmlb-g2"],
        "cluster_mixture": ["mixture", "mixture-best"],
    }.items()
    for method in variants
]


def lines(high: float = 20_000.0, points: int = 40) -> list[Line]:
    """A line for each method of the tables, from 0 to between a fiftieth of `high` and `high`."""
    x = np.linspace(1.0, 50_000.0, points)
    styles = figures.method_styles(METHODS)
    shown = []
    for index, (method, _) in enumerate(METHODS):
        mean = high * (0.02 + 0.98 * index / 12.0) * np.sqrt(x / 50_000.0)
        shown.append(
            Line(f"{method} γ=Δ/4", styles[method], Curve(x, mean, mean * 0.9 - 0.01, mean * 1.1 + 0.01))
        )
    return shown


def text_boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Where the visible text of a figure is, in pixels."""
    figure.canvas.draw()
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    hidden = {id(text) for ax in figure.axes if not ax.get_visible() for text in ax.findobj(Text)}
    found = []
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            found.append((text.get_text(), text.get_window_extent(renderer)))
    # Axes keep tick labels outside their limits, which are not drawn.
    return [(text, box) for text, box in found if _is_drawn(figure, text, box)]


def _is_drawn(figure: Figure, text: str, box: Bbox) -> bool:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            labels = {id(tick.label1): tick for tick in ticks}
            for tick in labels.values():
                if (
                    tick.label1.get_text() == text
                    and tick.label1.get_window_extent(renderer).bounds == box.bounds
                ):
                    low, high = sorted(axis.get_view_interval())
                    return bool(low - 1e-9 <= tick.get_loc() <= high * (1 + 1e-9) + 1e-9)
    return True


def check_layout(figure: Figure) -> None:
    boxes = text_boxes(figure)
    assert boxes
    page = figure.bbox
    for text, box in boxes:
        assert box.x0 >= page.x0 - 1, f"{text!r} is cut off"
        assert box.y0 >= page.y0 - 1, f"{text!r} is cut off"
        assert box.x1 <= page.x1 + 1, f"{text!r} is cut off"
        assert box.y1 <= page.y1 + 1, f"{text!r} is cut off"
    for (one, first), (two, second) in combinations(boxes, 2):
        common = Bbox.intersection(first, second)
        assert common is None or common.width * common.height < 1.0, f"{one!r} overlaps {two!r}"
    for legend in figure.legends:
        for ax in figure.axes:
            common = Bbox.intersection(legend.get_window_extent(), ax.get_window_extent())
            assert common is None or not ax.get_visible() or common.width * common.height < 1.0, (
                "legend on data"
            )


def written(figure: Figure, directory: Path) -> tuple[bytes, bytes]:
    path = figures.save(figure, directory, "figure")
    return path.read_bytes(), path.with_suffix(".pdf").read_bytes()


def gamma_points() -> list[GammaPoint]:
    return [
        GammaPoint(
            environment,
            radius,
            gamma,
            0.1,
            0.3,
            Summary(1000.0 * gamma, 10.0, 950.0 * gamma, 1050.0 * gamma, 1.0, 5),
        )
        for environment in ("a", "b", "c")
        for radius in ("beta", "beta_squared")
        for gamma in (0.75, 1.0, 1.25, 2.0)
    ]


@cache
def measured() -> Measured:
    """A small validation of the theory."""
    return validation.measure(setting=TINY)


BUILDERS: dict[str, Callable[[], Figure]] = {
    "regret": lambda: figures.regret_figure(lines(), "M=3, Δ=0.20: regret over rounds"),
    "alpha": lambda: figures.alpha_figure(lines(points=10), "M=3, Δ=0.20: final regret against α"),
    "narrow alpha": lambda: figures.alpha_figure(lines(points=2), "final regret against α"),
    "f1": lambda: figures.f1_figure(lines(1.0), "M=3, Δ=0.20: F1 score over rounds"),
    "gamma": lambda: figures.gamma_figure(gamma_points(), {"a": "M=3, Δ=0.20"}, {"a": 1096.8}),
    "sharing": figures.sharing_illustration,
    "separating": figures.separating_illustration,
    "coverage": lambda: figures.coverage_figure(measured()),
    "separation": lambda: figures.separation_figure(measured()),
    "low noise": lambda: figures.low_noise_figure(measured()),
    "regret of two": lambda: figures.sharing_figure(measured()),
    "clusters": lambda: figures.clusters_figure(measured()),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_figure_is_written_whole_and_readable(name: str, tmp_path: Path) -> None:
    figure = BUILDERS[name]()
    image, vector = written(figure, tmp_path)
    assert image.startswith(b"\x89PNG")
    assert vector.startswith(b"%PDF")
    assert min(len(image), len(vector)) > 5_000
    check_layout(figure)
    for ax in figure.axes:
        if ax.get_visible():
            assert ax.get_xlabel() or len(figure.axes) > 1
            assert ax.get_ylabel() or len(figure.axes) > 1


def test_files_hold_no_dates_or_ids(tmp_path: Path) -> None:
    first = written(BUILDERS["alpha"](), tmp_path)
    time.sleep(1.1)  # dates in files count seconds
    assert written(BUILDERS["alpha"](), tmp_path) == first


def test_every_method_looks_different_and_variants_share_a_colour() -> None:
    styles = figures.method_styles([*METHODS, ("mine", "my-policy"), ("yours", "your-policy")])
    assert len({(style.color, style.dash) for style in styles.values()}) == len(styles)
    assert len({(style.marker, style.dash) for style in styles.values()}) == len(styles)
    assert styles["club-g4"].color == styles["club-g2"].color
    assert styles["club-g4"].dash == ()
    assert styles["club-g2"].dash != ()


def test_methods_have_the_colours_they_are_known_by() -> None:
    red, green, blue = 0, 1, 2

    def channels(policy: str) -> list[int]:
        color = figures.FAMILIES[policy][0]
        return [int(color[k : k + 2], 16) for k in (1, 3, 5)]

    assert channels("club")[blue] == max(channels("club"))
    assert channels("cmlb")[red] > 2 * max(channels("cmlb")[green:])
    assert channels("bass")[red] > channels("bass")[green] > channels("bass")[blue] == 0
    assert channels("dynucb")[red] > channels("dynucb")[blue] > channels("dynucb")[green]
    for grey in ("independent", "oracle"):
        assert len(set(channels(grey))) == 1
    assert channels("independent")[0] > 128 > channels("oracle")[0]


def test_our_own_method_cannot_be_taken_for_one_of_the_paper_s() -> None:
    styles = figures.method_styles(METHODS)
    ours, searched = (styles.pop(name) for name in ("mixture", "mixture-best"))
    assert ours.color == searched.color
    assert ours.dash != searched.dash
    for style in styles.values():
        assert ours.dash != style.dash
        assert searched.dash != style.dash
        assert ours.marker != style.marker
        for sight in SIGHTS.values():
            distance = np.linalg.norm(lab(sight, ours.color) - lab(sight, style.color))
            assert distance > 10.0, (ours.color, style.color)


SIGHTS = {
    "normal": np.eye(3),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "tritanopia": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}
"""What becomes of linear RGB in the eye (Machado, Oliveira and Fernandes 2009, severity 1)."""


def lab(sight: Any, color: str) -> Any:
    """CIELAB coordinates of a colour as it is seen; a distance of 2 can just be told."""
    parts = np.array([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])
    seen = np.clip(sight @ np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ seen / np.array([0.9505, 1.0, 1.089])
    x, y, z = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def played(**changes: Any) -> shoal.BASS:
    world = shoal.SyntheticClusters(n_agents=6, dim=3, n_clusters=2, angle=1.2, seed=0)
    policy = shoal.BASS(n_agents=6, dim=3, alpha=0.5, delta=0.1, **changes)
    shoal.simulate(policy, world, horizon=300, seed=1)
    return policy


@pytest.mark.parametrize("radius", ["beta", "beta_squared"])
def test_ellipsoids_are_those_of_the_test(radius: str) -> None:
    """In two dimensions every point of the outline is as far from the estimate as the test allows."""
    policy = shoal.BASS(
        n_agents=2, dim=2, alpha=1.0, delta=0.2, gamma=1.5, radius=radius, noise_scale=0.7, ridge=2.0
    )
    rng = np.random.default_rng(0)
    for _ in range(9):
        policy.update(0, rng.normal(size=2), 1.0)
        policy.update(1, rng.normal(size=2), -0.5)
    ax = figures.plot_ellipsoids(policy, 0, 1)
    for agent in (0, 1):
        (outline,) = (
            patch
            for patch in ax.patches
            if isinstance(patch, Ellipse) and patch.get_label() == f"agent {agent}, own samples"
        )
        edge = outline.get_patch_transform().transform(
            [[math.cos(t), math.sin(t)] for t in (0.1, 1.3, 2.9, 4.4)]
        )
        offset = edge - policy.local_estimate(agent)
        distance = np.einsum("ni,ij,nj->n", offset, policy.state.local.A[agent], offset)
        assert distance == pytest.approx(np.full(4, 1.5**2 / 4.0 * policy.state.radius[agent]), rel=1e-9)


def test_shared_ellipsoid_is_drawn_while_two_agents_share() -> None:
    policy = shoal.BASS(n_agents=2, dim=2, alpha=1.0, delta=0.1)
    for agent in (0, 1):
        policy.update(agent, [1.0, 0.0], 1.0)
    labels = [patch.get_label() for patch in figures.plot_ellipsoids(policy, 0, 1).patches]
    assert "shared samples" in labels
    center = policy.estimate(0)
    shown = [
        line
        for line in figures.plot_ellipsoids(policy, 0, 1).lines
        if line.get_label() == "estimate, shared samples"
    ]
    assert np.column_stack(shown[0].get_data()) == pytest.approx(center[None])
    apart = shoal.Independent(n_agents=2, dim=2, alpha=1.0)
    assert len(figures.plot_ellipsoids(apart, 0, 1).patches) == 4  # a filling and an outline each


def test_ellipsoids_of_any_policy_and_dimensions() -> None:
    policy = played()
    ax = figures.plot_ellipsoids(policy, 0, 5, dims=(2, 0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("coordinate 2", "coordinate 0")
    check_layout(ax.figure)  # type: ignore[arg-type]
    for dims in ((0, 0), (0, 3), (-1, 1)):
        with pytest.raises(ValueError, match="dims"):
            figures.plot_ellipsoids(policy, 0, 1, dims=dims)


def test_graph_shows_every_edge_once_and_no_removed_agent() -> None:
    policy = played()
    policy.remove_agent(2)
    labels = [0, 0, 0, 1, 1, 1]
    ax = figures.plot_graph(policy, labels=labels)
    drawn = sum(len(entry.get_segments()) for entry in ax.collections if isinstance(entry, LineCollection))
    assert drawn == np.triu(policy.graph, 1).sum() > 0
    places = sum(
        len(np.asarray(entry.get_offsets()))
        for entry in ax.collections
        if not isinstance(entry, LineCollection)
    )
    assert places == 5
    assert ax.get_title() == "5 agents in 2 groups"
    assert "2" not in {text.get_text() for text in ax.texts}
    check_layout(ax.figure)  # type: ignore[arg-type]


def test_graph_is_laid_out_by_component() -> None:
    policy = shoal.Oracle(n_agents=40, dim=2, alpha=1.0, labels=np.repeat([0, 1, 2, 3], [20, 10, 9, 1]))
    ax = figures.plot_graph(policy)
    assert ax.get_title() == "40 agents in 4 components"
    clusters = [
        np.asarray(entry.get_offsets()) for entry in ax.collections if not isinstance(entry, LineCollection)
    ]
    assert [len(cluster) for cluster in clusters] == [20, 10, 9, 1]
    for one, two in combinations(clusters, 2):
        middles = one.mean(axis=0), two.mean(axis=0)
        reach = sum(
            float(np.linalg.norm(points - middle, axis=1).max())
            for points, middle in zip((one, two), middles, strict=True)
        )
        assert np.linalg.norm(middles[0] - middles[1]) > reach
    with pytest.raises(ValueError, match="labels"):
        figures.plot_graph(policy, labels=[0, 1])


def test_regret_of_traces_with_one_label_is_averaged() -> None:
    world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    traces = [
        shoal.simulate(shoal.Independent(n_agents=4, dim=3, alpha=0.5), world, horizon=50, seed=seed)
        for seed in range(3)
    ]
    ax = figures.plot_regret(traces, labels=["Ind", "Ind", "mine"])
    by_label = {line.get_label(): line for line in ax.lines}
    assert set(by_label) == {"Ind", "mine"}
    x, y = by_label["Ind"].get_data()
    assert np.asarray(x).tolist() == list(range(1, 51))
    assert np.asarray(y) == pytest.approx((traces[0].regret + traces[1].regret) / 2.0)
    assert by_label["Ind"].get_color() == figures.FAMILIES["independent"][0]
    check_layout(ax.figure)  # type: ignore[arg-type]
    single = figures.plot_regret(traces[0])
    assert [line.get_label() for line in single.lines] == ["run 0"]
    with pytest.raises(ValueError, match="labels"):
        figures.plot_regret(traces, labels=["a"])
    with pytest.raises(ValueError, match="traces"):
        figures.plot_regret([])


def curve(figure: Figure, label: str, panel: int = 0) -> tuple[Any, Any]:
    """The points of a labelled line."""
    (line,) = (line for line in figure.axes[panel].lines if line.get_label() == label)
    x, y = line.get_data()
    return np.asarray(x), np.asarray(y)


def test_theory_figures_show_what_was_measured_and_the_bounds() -> None:
    found = measured()
    plain = figures.coverage_figure(found)
    for panel, shares in enumerate((found.coverage.plain, found.coverage.widened)):
        for scale, row in zip(TINY.coverage_scales, shares, strict=True):
            x, y = curve(plain, f"noise R = {scale:g}", panel)
            assert dict(zip(x, y, strict=True)) == {
                1.0 - delta: share for delta, share in zip(TINY.coverage_deltas, row, strict=True)
            }
    times = figures.separation_figure(found)
    x, y = curve(times, "measured, scaled by β² (proofs):\nmedian and quartiles")
    assert x.tolist() == list(TINY.gaps)
    assert y.tolist() == [sorted(row)[len(row) // 2] for row in found.separation["beta_squared"]]
    x, y = curve(times, "lower bound, corrected")
    assert y.tolist() == np.asarray(theory.separation_time_lower(0.1, x, reading="corrected")).tolist()
    clusters = figures.clusters_figure(found)
    _, y = curve(clusters, "bound, derived")
    assert y[0] == pytest.approx(3.0 + 2.0 * 0.1**2)  # of 6 agents in 2 clusters, before anything is known
    _, y = curve(clusters, "BASS, scaled by β² (proofs)")
    assert tuple(y) == found.exploring[0].misassigned.mean
    _, y = curve(figures.sharing_figure(found), "two agents that do not share", panel=1)
    assert tuple(y) == found.sharing[1].alone.mean


def test_pairs_that_never_separate_count_as_late() -> None:
    never = {radius: ((-1,) * 9 + (5,) * 3,) * 2 for radius in validation.RADII}
    figure = figures.separation_figure(msgspec.structs.replace(measured(), separation=never))
    _, y = curve(figure, "measured, scaled by β (default):\nmedian and quartiles")
    assert np.isinf(y).all()
