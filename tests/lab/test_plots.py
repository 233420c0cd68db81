"""What users draw with: plots that show what the policy holds, and styles that tell methods apart."""

import math
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.patches import Ellipse
from tests.layout import check_layout

import shoal
from shoal.core.policies.registry import policy_class, policy_names
from shoal.core.styles import OTHERS
from shoal.lab import plots

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


def test_every_method_looks_different_and_variants_share_a_colour() -> None:
    styles = plots.method_styles([*METHODS, ("mine", "my-policy"), ("yours", "your-policy")])
    assert len({(style.color, style.dash) for style in styles.values()}) == len(styles)
    assert len({(style.marker, style.dash) for style in styles.values()}) == len(styles)
    assert styles["club-g4"].color == styles["club-g2"].color
    assert styles["club-g4"].dash == ()
    assert styles["club-g2"].dash != ()


def test_methods_have_the_colours_they_are_known_by() -> None:
    red, green, blue = 0, 1, 2

    def channels(policy: str) -> list[int]:
        color = policy_class(policy).line_style.color  # type: ignore[attr-defined]
        return [int(color[k : k + 2], 16) for k in (1, 3, 5)]

    assert channels("club")[blue] == max(channels("club"))
    assert channels("cmlb")[red] > 2 * max(channels("cmlb")[green:])
    assert channels("bass")[red] > channels("bass")[green] > channels("bass")[blue] == 0
    assert channels("dynucb")[red] > channels("dynucb")[blue] > channels("dynucb")[green]
    for grey in ("independent", "oracle"):
        assert len(set(channels(grey))) == 1
    assert channels("independent")[0] > 128 > channels("oracle")[0]


def test_our_own_method_cannot_be_taken_for_one_of_the_paper_s() -> None:
    styles = plots.method_styles(METHODS)
    ours, searched = (styles.pop(name) for name in ("mixture", "mixture-best"))
    for sight in SIGHTS.values():  # the two can be told apart, too
        assert np.linalg.norm(lab(sight, ours.color) - lab(sight, searched.color)) > 10.0
    assert ours.dash != searched.dash
    for style in styles.values():
        assert ours.dash != style.dash
        assert searched.dash != style.dash
        assert ours.marker != style.marker
        for sight in SIGHTS.values():
            for own in (ours, searched):
                distance = np.linalg.norm(lab(sight, own.color) - lab(sight, style.color))
                assert distance > 10.0, (own.color, style.color)


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
    ax = plots.plot_ellipsoids(policy, 0, 1)
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
    labels = [patch.get_label() for patch in plots.plot_ellipsoids(policy, 0, 1).patches]
    assert "shared samples" in labels
    center = policy.estimate(0)
    shown = [
        line
        for line in plots.plot_ellipsoids(policy, 0, 1).lines
        if line.get_label() == "estimate, shared samples"
    ]
    assert np.column_stack(shown[0].get_data()) == pytest.approx(center[None])
    apart = shoal.Independent(n_agents=2, dim=2, alpha=1.0)
    assert len(plots.plot_ellipsoids(apart, 0, 1).patches) == 4  # a filling and an outline each


def test_ellipsoids_where_the_noise_is_estimated() -> None:
    policy, rng = shoal.BASS(3, 2, noise_scale=None), np.random.default_rng(0)
    for t in range(60):
        x = rng.normal(size=2)
        policy.update(t % 2, x, x[0] + 0.1 * rng.normal())
    found = plots._ellipsoid(policy, np.array([0]), "", "k", shared=False)
    c = policy.gamma**2 / 4.0 * policy.state.radius[0]
    np.testing.assert_allclose(found.shape, c * np.linalg.inv(policy.state.local.A[0]), rtol=1e-6)
    assert found.center == pytest.approx(policy.local_estimate(0))
    alone = shoal.Independent(3, 2, noise_scale=None)
    alone.update(0, [1.0, 0.0], 1.0)
    assert np.isfinite(plots._ellipsoid(alone, np.array([0]), "", "k", shared=False).shape).all()
    pool = plots._ellipsoid(policy, np.array([0, 1, 2]), "", "k", shared=True)
    assert np.isfinite(pool.shape).all()
    with pytest.raises(ValueError, match="agent 2 has too few samples for an ellipsoid"):
        plots.plot_ellipsoids(policy, 0, 2)
    plots.plot_ellipsoids(shoal.ClusterMixture(3, 2), 0, 1)


def test_ellipsoids_of_any_policy_and_dimensions() -> None:
    policy = played()
    ax = plots.plot_ellipsoids(policy, 0, 5, dims=(2, 0))
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("coordinate 2", "coordinate 0")
    check_layout(ax.figure)  # type: ignore[arg-type]
    for dims in ((0, 0), (0, 3), (-1, 1)):
        with pytest.raises(ValueError, match="dims"):
            plots.plot_ellipsoids(policy, 0, 1, dims=dims)


def test_graph_shows_every_edge_once_and_no_removed_agent() -> None:
    policy = played()
    policy.remove_agent(2)
    labels = [0, 0, 0, 1, 1, 1]
    ax = plots.plot_graph(policy, labels=labels)
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
    ax = plots.plot_graph(policy)
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
        plots.plot_graph(policy, labels=[0, 1])


def test_regret_of_traces_with_one_label_is_averaged() -> None:
    world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    traces = [
        shoal.simulate(shoal.Independent(n_agents=4, dim=3, alpha=0.5), world, horizon=50, seed=seed)
        for seed in range(3)
    ]
    ax = shoal.plot_regret(traces, labels=["Ind", "Ind", "mine"])
    by_label = {line.get_label(): line for line in ax.lines}
    assert set(by_label) == {"Ind", "mine"}
    x, y = by_label["Ind"].get_data()
    assert np.asarray(x).tolist() == list(range(1, 51))
    assert np.asarray(y) == pytest.approx((traces[0].regret + traces[1].regret) / 2.0)
    assert by_label["Ind"].get_color() == shoal.Independent.line_style.color
    check_layout(ax.figure)  # type: ignore[arg-type]
    single = shoal.plot_regret(traces[0])
    assert [line.get_label() for line in single.lines] == ["run 0"]
    with pytest.raises(ValueError, match="labels"):
        shoal.plot_regret(traces, labels=["a"])
    with pytest.raises(ValueError, match="traces"):
        shoal.plot_regret([])


def test_lines_can_be_seen_on_white() -> None:
    """Contrast of every method's colour with the charts' background is at least 3 (WCAG, graphics)."""

    def brightness(color: str) -> float:
        parts = [int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)]
        linear = [v / 12.92 if v <= 0.03928 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    built_in = [policy_class(name).line_style for name in policy_names()]  # type: ignore[attr-defined]
    for color in (style.color for style in (*built_in, *OTHERS)):
        assert 1.05 / (brightness(color) + 0.05) >= 3.0, color


def test_traces_may_come_with_their_labels() -> None:
    world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    policies = {"BASS": shoal.BASS(4, 3, alpha=0.5, delta=0.1), "mine": shoal.Independent(4, 3, alpha=0.5)}
    traces = {label: shoal.simulate(policy, world, horizon=50, seed=1) for label, policy in policies.items()}
    for given in (traces, {label: [trace] for label, trace in traces.items()}):
        lines = {line.get_label(): line for line in shoal.plot_regret(given).lines}
        assert list(lines) == ["BASS", "mine"]
        assert np.asarray(lines["mine"].get_ydata()) == pytest.approx(traces["mine"].regret)
        assert lines["BASS"].get_color() == shoal.BASS.line_style.color
    with pytest.raises(ValueError, match="labels must be left out"):
        shoal.plot_regret(traces, labels=["a", "b"])
    with pytest.raises(ValueError, match="traces must be what simulate returned, got ndarray"):
        shoal.plot_regret({"BASS": traces["BASS"].regret[None]})  # type: ignore[dict-item]
    with pytest.raises(ValueError, match="source must be what load_results or simulate returned, got str"):
        shoal.plot_regret("BASS")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="traces must not be empty"):
        shoal.plot_regret({})


def test_plots_are_among_the_public_names() -> None:
    assert {"plot_regret", "plot_graph", "plot_ellipsoids"} <= set(dir(shoal))
    assert set(shoal.__all__) <= set(dir(shoal))


def dozen() -> shoal.BASS:
    world = shoal.SyntheticClusters(n_agents=12, dim=3, n_clusters=3, angle=1.2, noise_scale=0.3, seed=0)
    policy = shoal.BASS(n_agents=12, dim=3)
    shoal.simulate(policy, world, horizon=3_000, seed=0)
    return policy


def test_an_explanation_is_drawn_as_it_is_said() -> None:
    policy = dozen()
    found = policy.explain(0)
    assert found.lenders
    assert found.stopped
    ax = plots.plot_explanation(found, name=lambda agent: f"user {agent}")
    lengths = [bar.get_width() for bar in ax.containers[0]]
    shown = found.lenders[: plots.MOST_BARS]
    assert lengths == [found.samples, *(lender.samples for lender in shown)]
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    stopped = found.stopped[: plots.MOST_BARS]
    assert labels == [
        f"user {agent}" for agent in (0, *(one.agent for one in shown), *(one.agent for one in stopped))
    ]
    said = [text.get_text() for text in ax.texts if text.get_text().startswith("✕")]
    assert len(said) == len(stopped)
    assert f"stopped in round {stopped[0].round:,}" in said[0]
    check_layout(ax.figure)  # type: ignore[arg-type]


def test_many_lenders_are_summed_up() -> None:
    policy = shoal.BASS(n_agents=30, dim=2)
    for agent in range(30):
        policy.update(agent, [1.0, 0.0], 0.5)
    ax = plots.plot_explanation(policy.explain(0))
    assert [tick.get_text() for tick in ax.get_yticklabels()][-1] == "21 more"
    assert sum(bar.get_width() for bar in ax.containers[0]) == 30
    check_layout(ax.figure)  # type: ignore[arg-type]


def test_an_explanation_of_a_population_is_drawn_with_its_names() -> None:
    with shoal.open(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2)
        for agent in ("ada", "ben"):
            shop.observe(agent, [1.0, 0.0], 0.5)
        ax = plots.plot_explanation(shop.explain("ada"))
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["ada", "ben"]


def test_an_explanation_of_a_pair_is_not_drawn() -> None:
    with pytest.raises(ValueError, match=r"explanation must be of one agent.*got CutExplanation"):
        plots.plot_explanation(dozen().explain(0, 11))
