"""The flow chart of BASS: one round, from the pool of an agent's neighbours to the edges that are cut."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, Polygon

from shoal.reporting.charts import BLUE, GREY, ORANGE, RED, TEXT, blank
from shoal.reporting.sections import Picture

TITLE = "One round of BASS"
CAPTION = (
    "The algorithm as a flow chart. Boxes name the step of the policy that does it: select, observe, revise. "
    "A pair that was cut never shares again."
)
STEPS = (
    ("Start: everyone shares with everyone", "the complete graph; $A_i = I$, $b_i = 0$", GREY),
    ("Agent $i$ is served; pool its neighbours", r"$A = I + \sum_j (A_j - I)$,  $b = \sum_j b_j$", BLUE),
    (
        "select: the arm of the largest upper bound",
        r"$\hat\theta \cdot x + \alpha\sqrt{x^\top A^{-1} x\,\log(t+1)}$,  $\hat\theta = A^{-1} b$",
        BLUE,
    ),
    (
        "observe: add the sample to agent $i$'s own",
        r"$A_i \leftarrow A_i + x x^\top$,  $b_i \leftarrow b_i + y x$",
        BLUE,
    ),
)
_WIDTH, _HEIGHT, _GAP = 3.3, 0.62, 0.3


def flow_chart() -> Figure:
    """Draw one round of BASS as a flow chart."""
    figure = blank(width=4.6, height=6.1)
    ax = figure.subplots()
    ax.set(xlim=(-2.3, 2.3), ylim=(-6.0, 0.1))
    ax.set_axis_off()
    ax.set_aspect("equal")
    top = 0.0
    for title, formula, color in STEPS:
        _box(ax, top, title, formula, color)
        _arrow(ax, (0.0, top - _HEIGHT), (0.0, top - _HEIGHT - _GAP))
        top -= _HEIGHT + _GAP
    middle = top - 0.55
    corners = [(0.0, top), (1.75, middle), (0.0, top - 1.1), (-1.75, middle)]
    ax.add_patch(Polygon(corners, facecolor="#fdf1e3", edgecolor=ORANGE, linewidth=1.2))
    ax.text(
        0.0, middle, "revise: for each neighbour $j$,\ndo the two confidence\nellipsoids still overlap?",
        ha="center", va="center", fontsize=TEXT,
    )  # fmt: skip
    low = top - 1.1 - _GAP
    _arrow(ax, (0.0, top - 1.1), (0.0, low))
    ax.text(0.08, top - 1.1 - _GAP / 2, "no", va="center", fontsize=TEXT)
    _box(ax, low, "Cut the edge between $i$ and $j$", "they never share again", RED)
    # Both ways lead back to the next round.
    back, first = 2.15, -_HEIGHT - _GAP - _HEIGHT / 2
    ax.plot([1.75, back], [middle, middle], color=GREY, linewidth=1.2)
    ax.text(1.9, middle + 0.09, "yes", ha="center", fontsize=TEXT)
    ax.plot(
        [_WIDTH / 2, back, back], [low - _HEIGHT / 2, low - _HEIGHT / 2, first], color=GREY, linewidth=1.2
    )
    _arrow(ax, (back, first), (_WIDTH / 2, first))
    ax.text(back - 0.14, -2.4, "next round", rotation=90, ha="center", va="center", fontsize=TEXT)
    return figure


def flow_picture() -> Picture:
    """The flow chart as a part of a page."""
    return Picture(TITLE, CAPTION, "flow-chart", flow_chart)


def _box(ax: Axes, top: float, title: str, formula: str, color: str) -> None:
    corner = (-_WIDTH / 2, top - _HEIGHT)
    shape = FancyBboxPatch(
        corner, _WIDTH, _HEIGHT, boxstyle="round,pad=0,rounding_size=0.08", facecolor="white",
        edgecolor=color, linewidth=1.2,
    )  # fmt: skip
    ax.add_patch(shape)
    ax.text(0.0, top - 0.19, title, ha="center", va="center", fontsize=TEXT, fontweight="bold")
    ax.text(0.0, top - 0.43, formula, ha="center", va="center", fontsize=TEXT)


def _arrow(ax: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    ax.annotate(
        "",
        end,
        start,
        arrowprops={"arrowstyle": "-|>", "color": GREY, "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0},
    )
