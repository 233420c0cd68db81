"""Ellipsoids of two agents: what sharing does to them, and how a pair separates."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shoal.core.policies.bass import BASS
from shoal.lab.environments.base import Environment
from shoal.lab.experiments.measurements import Measurement, load_outcome
from shoal.lab.paper.measuring import pair_at
from shoal.lab.plots import Ellipsoid, draw_ellipsoids, pair_ellipsoids
from shoal.lab.simulation import simulate
from shoal.reporting.charts import BLUE, ORANGE, RED, blank, legend_below
from shoal.reporting.sections import Heading, Part, Picture

PULLS = (7, 3)
"""How often each agent of the first illustration pulls e1 and e2: 10 pulls each."""
GAP = 1.27


class Panel(msgspec.Struct, frozen=True):
    """Two agents at one moment."""

    title: str
    gap: float
    """Distance of their true parameters, see `pair_at`."""
    ellipsoids: tuple[Ellipsoid, ...]


def measurements() -> list[Measurement]:
    """What is illustrated, as cells of a run."""
    return [
        Measurement("illustrations/sharing", {"pulls": PULLS, "gap": GAP}, play_sharing),
        Measurement("illustrations/separating", {"gap": GAP}, play_separating),
    ]


def illustration_parts(out: Path) -> list[Part]:
    """Figures of what the run in `out` measured; empty if it measured nothing."""
    parts: list[Part] = []
    for name, (heading, caption, draw) in _FIGURES.items():
        kept = load_outcome(out, f"illustrations/{name}", tuple[Panel, ...])
        if kept is not None:
            picture = Picture(heading, caption, f"ellipsoids-{name}", partial(draw, kept.outcome))
            parts += [Heading(heading), picture]
    return parts


def illustration(name: str) -> Picture:
    """The figure "sharing" or "separating", played now: it takes seconds."""
    heading, caption, draw = _FIGURES[name]
    played = {"sharing": play_sharing, "separating": play_separating}[name]()
    return Picture(heading, caption, f"ellipsoids-{name}", partial(draw, played))


def play_sharing() -> tuple[Panel, ...]:
    """Two agents with the same parameter and two with different ones, 10 pulls each."""
    panels = []
    for gap, title in ((0.0, "same parameter"), (GAP, f"parameters {GAP:g} apart")):
        theta = pair_at(gap)
        policy = BASS(2, 2, alpha=1.0, delta=0.1, radius="beta_squared")
        rng = np.random.default_rng(3)
        for arm, pulls in enumerate(PULLS):
            for _ in range(pulls):
                for agent in (0, 1):
                    policy.update(agent, np.eye(2)[arm], theta[agent][arm] + rng.standard_normal())
        panels.append(Panel(title, gap, tuple(pair_ellipsoids(policy, 0, 1))))
    return tuple(panels)


def play_separating() -> tuple[Panel, ...]:
    """A pair early on, later, and in the round of its separation."""
    world = Environment(np.eye(2), theta_star=np.array(pair_at(GAP)))

    def played(rounds: int) -> BASS:
        policy = BASS(2, 2, alpha=1.0, delta=0.1, radius="beta_squared", epsilon=1.0, seed=4)
        simulate(policy, world, horizon=rounds, seed=4, pulling="synchronous", points=1)
        return policy

    end = int(played(5000).separation_time[0, 1])
    return tuple(
        Panel(
            f"after {rounds} rounds: {'separated' if rounds == end else 'still sharing'}",
            GAP,
            tuple(pair_ellipsoids(played(rounds), 0, 1)),
        )
        for rounds in (10, (10 + end) // 2, end)
    )


def sharing_illustration(panels: Sequence[Panel]) -> Figure:
    """What sharing does when two agents have the same parameter, and when they do not."""
    figure = blank(width=7.6, height=5.2)
    figure.suptitle("Sharing halves the variance, and adds a bias when the agents differ", fontsize=11)
    _draw(figure, panels)
    return figure


def separating_illustration(panels: Sequence[Panel]) -> Figure:
    """The pair as it separates."""
    figure = blank(width=11.4, height=5.0)
    figure.suptitle("The pair stops sharing in the round in which the two ellipsoids part", fontsize=11)
    _draw(figure, panels, with_bias=True)
    return figure


def _draw(figure: Figure, panels: Sequence[Panel], *, with_bias: bool = False) -> None:
    axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, panel in zip(axes, panels, strict=True):
        draw_ellipsoids(ax, panel.ellipsoids)
        _mark_truth(ax, panel.gap)
        if with_bias:
            centers = np.array([each.center for each in panel.ellipsoids if not each.shared])
            ax.plot(
                *centers.T,
                color=RED,
                linestyle="--",
                linewidth=1.2,
                label="their distance: the bias of sharing",
            )
        ax.set_title(panel.title, fontsize=10)
    for ax in axes:
        ax.label_outer()
    legend_below(figure, axes)


def _mark_truth(ax: Axes, gap: float) -> None:
    for agent, (value, color) in enumerate(zip(pair_at(gap), (BLUE, ORANGE), strict=True)):
        # A large ring under a small disc: both stay visible where the two coincide.
        ax.plot(
            value[0], value[1], marker="o", markersize=11 - 5 * agent, markeredgecolor=color,
            markerfacecolor="none" if agent == 0 else color, markeredgewidth=1.8, linestyle="none",
            label=f"true parameter of agent {agent}",
        )  # fmt: skip


_FIGURES = {
    "sharing": (
        "When sharing helps",
        "Two agents, d = 2, arms e1 and e2, 10 pulls each (7 and 3): 90% confidence ellipsoids of their "
        "own and of their shared samples. Sharing shrinks the ellipsoid; when the parameters differ it "
        "also moves its centre away from both.",
        sharing_illustration,
    ),
    "separating": (
        "A pair as it separates",
        "The same two arms, drawn at random. The ellipsoids shrink with every round, and in the round in "
        "which they no longer overlap the agents stop sharing.",
        separating_illustration,
    ),
}
"""Heading, caption and drawing function, by name."""
