"""Plots of a user's own policies; those of traces and results are in `shoal.lab.experiments.figures`.

Uses matplotlib's objects, never pyplot, so nothing depends on a display or on global state.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Ellipse
from scipy.sparse.csgraph import connected_components

from shoal.core.policies.bass import BASS
from shoal.core.policies.independent import Independent
from shoal.core.policies.registry import find_policy, policy_class, policy_names
from shoal.core.policy.base import Policy
from shoal.core.policy.explanations import Name, numbered
from shoal.core.policy.units import ridges_of
from shoal.core.styles import OTHERS, LineStyle, Style
from shoal.core.types import Integers, Matrix
from shoal.core.validation import SMALLEST
from shoal.lab import theory
from shoal.reporting.charts import BLUE, GREEN, GREY, ORANGE, RED, blank

MOST_BARS = 8
"""Lenders that get a line of their own, and agents that one stopped sharing with."""


def plot_ellipsoids(
    policy: Any, i: int, j: int, *, dims: tuple[int, int] = (0, 1), ax: Axes | None = None
) -> Axes:
    """Draw the confidence ellipsoids of two agents, and how sharing changes them.

    Solid: each agent's own samples, at the size that the test of BASS uses, `‖z − θ̂_i‖²_{A_i} ≤ γ²/4·c_i`.
    Dashed: the samples of its pool, at the same confidence. In two dimensions the pair is separated exactly
    when the solid ellipses are disjoint; in more, the plot shows projections, which may still overlap.

    Parameters
    ----------
    policy : Policy
        Any policy of this package. Those without `delta`, `gamma`, `radius`, `noise_scale` and `param_norm`
        get 0.1, 2, "beta_squared", 1 and 1: ellipsoids that contain the true parameter with probability 0.9.
    i, j : int
        Two agents.
    dims : pair of int
        The two coordinates to show.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure.

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
    _check_dims(dims, policy.dim)
    return draw_ellipsoids(_axes(ax), pair_ellipsoids(policy, i, j), dims)


def plot_graph(
    policy: Any, *, labels: Sequence[int] | Integers | None = None, ax: Axes | None = None
) -> Axes:
    """Draw who shares with whom: each group of agents on a small circle, the circles around a large one.

    Parameters
    ----------
    policy : Policy
        Anything with a `graph`, shape (N, N).
    labels : sequence of int, optional
        Groups, one label per agent, e.g. the true clusters; by default the connected components of the graph.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure.

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
    own = [style for name in policy_names() if (style := _own_style(name))]
    # Greys would look like edges.
    wheel = [style.color for style in (*own, *OTHERS) if len({*re.findall("..", style.color[1:])}) > 1]
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


def plot_explanation(explanation: Any, *, name: Name = numbered, ax: Axes | None = None) -> Axes:
    """Draw whose samples an agent uses, and with whom it stopped sharing and why.

    A bar for the agent's own samples and one for each lender, the most first; below, those with whom it
    stopped sharing, the latest first.

    Parameters
    ----------
    explanation
        What `policy.explain(agent)` or `population.explain(agent)` returned.
    name : function
        Names agents that are numbers; those of a population have names already.
    ax : matplotlib Axes, optional
        Where to draw; by default on a new figure.

    Returns
    -------
    Axes

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.BASS(n_agents=3, dim=2)
    >>> policy.update(1, [1.0, 0.0], 0.7)
    >>> ax = plot_explanation(policy.explain(0))
    """
    if not hasattr(explanation, "lenders"):
        raise ValueError(
            "explanation must be of one agent, what explain(agent) returned, "
            f"got {type(explanation).__name__}"
        )

    def shown_name(agent: int | str) -> str:
        return agent if isinstance(agent, str) else name(agent)

    lenders, stopped = explanation.lenders[:MOST_BARS], explanation.stopped[:MOST_BARS]
    bars = [(shown_name(explanation.agent), explanation.samples, BLUE)]
    bars += [(shown_name(one.agent), one.samples, GREEN) for one in lenders]
    rest = explanation.lenders[MOST_BARS:]
    if rest:
        bars.append((f"{len(rest):,} more", sum(one.samples for one in rest), GREEN))
    rows = len(bars) + len(stopped)
    ax = blank(width=6.4, height=1.2 + 0.28 * rows).subplots() if ax is None else ax
    drawn = ax.barh(range(len(bars)), [bar[1] for bar in bars], color=[bar[2] for bar in bars])
    ax.bar_label(
        drawn, [f" {bar[1]:,.3g}" if bar[1] < 1000 else f" {bar[1]:,.0f}" for bar in bars], fontsize=8
    )
    for row, one in enumerate(stopped, start=len(bars)):
        said = f"✕ {one.distance:.2g} apart"
        if one.allowed is not None and not math.isnan(one.allowed):
            said += f", the test allows {one.allowed:.2g}"
        round_ = getattr(one, "round", None)
        said += "" if round_ is None else f"; stopped in round {round_:,}"
        ax.annotate(
            said, (0.0, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=8, color=RED
        )
    ax.set_yticks(
        range(rows), [*(bar[0] for bar in bars), *(shown_name(one.agent) for one in stopped)], fontsize=8
    )
    ax.set_ylim(rows - 0.4, -0.6)
    ax.margins(x=0.12)
    ax.set_xlim(left=0.0)
    ax.set_xlabel("samples that it uses")
    hidden = len(explanation.stopped) - len(stopped)
    title = f"Whose samples {shown_name(explanation.agent)} uses"
    ax.set_title(title + (f" ({hidden:,} more stopped sharing)" if hidden else ""), fontsize=10)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    return ax


def method_styles(methods: Iterable[tuple[str, str]]) -> dict[str, Style]:
    """Styles of methods given as (id, policy); variants of a policy share its colour and differ in dashes."""
    others = cycle(OTHERS)
    families: dict[str, LineStyle] = {}
    seen: dict[str, int] = {}
    styles: dict[str, Style] = {}
    for method, policy in methods:
        if method not in styles:
            if policy not in families:
                families[policy] = _own_style(policy) or next(others)
            styles[method] = families[policy].variant(seen.get(policy, 0))
            seen[policy] = seen.get(policy, 0) + 1
    return styles


def policy_named(label: str) -> str:
    """The policy whose name or label a label starts with; the label itself if there is none."""
    word = (label.split() or [""])[0].lower()
    for name in policy_names():
        own = getattr(policy_class(name), "label", name).split()[0].lower()
        if word in (name, own):
            return name
    return label


class Ellipsoid(NamedTuple):
    """`(z − center)ᵀ shape⁻¹ (z − center) ≤ 1`, and how it is drawn."""

    label: str
    color: str
    shared: bool
    """Whether it is made from shared samples rather than an agent's own."""
    center: tuple[float, ...]
    """(d,)"""
    shape: tuple[tuple[float, ...], ...]
    """(d, d)"""


def pair_ellipsoids(policy: Policy, i: int, j: int) -> list[Ellipsoid]:
    """The ellipsoids of two agents that `plot_ellipsoids` draws."""
    found = [
        _ellipsoid(policy, np.array([agent]), f"agent {agent}, own samples", color, shared=False)
        for agent, color in ((i, BLUE), (j, ORANGE))
    ]
    pools = [np.asarray(policy.neighbors(agent)) for agent in (i, j)]
    if np.array_equal(pools[0], pools[1]):
        if len(pools[0]) > 1:
            found.append(_ellipsoid(policy, pools[0], "shared samples", GREEN, shared=True))
        return found
    for agent, pool, color in zip((i, j), pools, (BLUE, ORANGE), strict=True):
        if len(pool) > 1:
            found.append(_ellipsoid(policy, pool, f"agent {agent}, shared samples", color, shared=True))
    return found


def draw_ellipsoids(ax: Axes, ellipsoids: Sequence[Ellipsoid], dims: tuple[int, int] = (0, 1)) -> Axes:
    """Draw the projections of ellipsoids onto two coordinates."""
    first, second = dims
    ax.update_datalim(np.concatenate([_draw_ellipse(ax, ellipsoid, dims) for ellipsoid in ellipsoids]))
    ax.margins(0.08)
    ax.autoscale_view()
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlabel=f"coordinate {first}", ylabel=f"coordinate {second}")
    ax.grid(alpha=0.25)
    if ax.figure.axes == [ax]:
        # Below the axis label at any panel height: the distance is in font sizes.
        below: dict[str, Any] = {"bbox_to_anchor": (0.5, 0.0), "borderaxespad": 4.5}
        ax.legend(loc="upper center", **below, ncols=2, frameon=False, fontsize=9)
    return ax


def _own_style(policy: str) -> LineStyle | None:
    """The `line_style` of a policy, given by name or as `module:Class`; None if it has none."""
    try:
        return getattr(find_policy(policy), "line_style", None)
    except (ValueError, ImportError):  # a label, or a policy that is no longer installed
        return None


def _check_dims(dims: tuple[int, int], dim: int) -> None:
    first, second = dims
    if first == second or not all(0 <= axis < dim for axis in dims):
        raise ValueError(f"dims must be two different coordinates in 0, …, {dim - 1}, got {dims}")


def _ellipsoid(policy: Policy, agents: Integers, label: str, color: str, *, shared: bool) -> Ellipsoid:
    """The ellipsoid of the agents' samples together."""
    own = policy.parameters
    local, identity = policy.state.local, np.eye(policy.dim)
    lengths = getattr(policy.state, "lengths", np.empty(0))  # of who learns units
    ridges = ridges_of(own["ridge"], lengths[agents]) if len(lengths) else own["ridge"]
    ridge = float(np.mean(ridges))  # counts once in a pool
    samples = local.A[agents].sum(axis=0) - np.sum(np.broadcast_to(ridges, len(agents))) * identity
    A = ridge * identity + samples
    A_inv = np.linalg.inv(A)
    logdet_A = float(np.linalg.slogdet(A)[1]) - policy.dim * math.log(ridge)
    delta, noise_scale, norm = (
        own.get(key, default) for key, default in (("delta", 0.1), ("noise_scale", 1.0), ("param_norm", 1.0))
    )
    if noise_scale is None:  # it is estimated: the largest of a pool holds for all of it
        noise_scale = _estimated_noise(policy, agents)
    if len(lengths):
        squares = policy.state.squares[agents].sum()
        norm *= math.sqrt(squares / max(np.trace(samples), SMALLEST))
    beta = float(theory.beta(delta, max(logdet_A, 0.0), noise_scale, param_norm=norm, ridge=ridge))
    c = beta**2 if getattr(policy.state, "squared", True) else beta
    if len(lengths) and not getattr(policy.state, "squared", True):
        c *= noise_scale
    center, shape = A_inv @ local.b[agents].sum(axis=0), getattr(policy, "gamma", 2.0) ** 2 / 4.0 * c * A_inv
    return Ellipsoid(label, color, shared, tuple(center.tolist()), tuple(map(tuple, shape.tolist())))


def _estimated_noise(policy: Policy, agents: Integers) -> float:
    if not isinstance(policy, BASS | Independent):
        return math.sqrt(getattr(policy, "noise_variance", 1.0))
    known = policy.noise_scales[agents]
    if not np.isfinite(known).any():
        raise ValueError(
            f"agent {agents[0]} has too few samples for an ellipsoid: its noise is not known yet"
        )
    return float(known[np.isfinite(known)].max())


def _draw_ellipse(ax: Axes, ellipsoid: Ellipsoid, dims: tuple[int, int]) -> Matrix:
    """Draw the projection of an ellipsoid onto two coordinates; return the corners of its bounding box."""
    chosen, color, label = list(dims), ellipsoid.color, ellipsoid.label
    line, marker = ("--", "v") if ellipsoid.shared else ("-", "^")
    middle = np.array(ellipsoid.center)[chosen]
    # The shape matrix of a projection is the matching block of the whole one.
    shadow = np.array(ellipsoid.shape)[np.ix_(chosen, chosen)]
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
    """Positions of agents: each group on a small circle, the small circles around a large one."""
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


def _axes(ax: Axes | None) -> Axes:
    return blank(width=6.4, height=4.8).subplots() if ax is None else ax
