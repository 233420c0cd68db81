"""The recommendation as a page: which policy to use, the curves, the table, and what it cannot tell."""

import math
from pathlib import Path

from shoal.lab.plots import method_styles
from shoal.lab.recommendation.playing import ALONE, CHOSEN_ON, Played, Recommendation
from shoal.reporting import charts, render
from shoal.reporting.charts import Axis, ChartLine
from shoal.reporting.sections import Bullets, Document, Mark, Picture, Section, Table, Text
from shoal.reporting.words import EMPTY, number, plus_minus

AXIS = Axis(
    "round t", "cumulative regret (reward units)", "round t", "cumulative regret", reading="Round ",
    switch="logarithmic axis",
)  # fmt: skip


def write_recommendation(found: Recommendation, directory: Path) -> Path:
    """Write the page into a directory; returns its path."""
    return render.write(document(found), directory)


def document(found: Recommendation) -> Document:
    """The whole page."""
    world = found.world
    return Document(
        name="recommendation",
        title=f"Take {_named(found)}",
        subtitle=f"{world.n_agents:,} agents, {world.n_arms:,} arms with {world.dim} features, "
        f"{found.horizon:,} rounds, {found.runs} runs.",
        lead=found.reason,
        opening=_picture(found),
        remarks=[],
        notices=list(found.notes),
        sections=[
            Section("policies", "What was played", [_table(found), Text(_how(found))]),
            Section("use", "How to use it", [Text(found.call(), lead="In Python"), Text(_live(found))]),
            Section("limits", "What this cannot tell", [Bullets(limits(found))]),
        ],
    )


def limits(found: Recommendation) -> list[str]:
    """What readers must not conclude."""
    said = [
        "Worlds are simulated. If real rewards are noisier, less linear in the features, or change over "
        "time, differences between policies change too."
    ]
    if edge := [one.label for one in found.played if one.at_edge]:
        said.append(f"The best α of {' and '.join(edge)} is at the edge of what was tried.")
    said.append(
        f"Parameters were chosen on {CHOSEN_ON} runs; policies are compared on {found.runs} others. "
        "An interval covers the luck of these runs, not whether the simulation resembles what you have."
    )
    return said


def _named(found: Recommendation) -> str:
    label = found.chosen.label
    alpha = found.parameters.get("alpha")
    joined = "and" if found.described else "with"
    return label if alpha is None else f"{label} {joined} α = {alpha:g}"


def _table(found: Recommendation) -> Table:
    alone = next(one for one in found.played if one.label == ALONE)
    lines = []
    for one in found.played:
        difference, margin = one.against(alone)
        lines.append(
            [
                one.label,
                f"{one.parameters['alpha']:g}",
                plus_minus("{:,.0f}", one.mean, one.margin()),
                EMPTY if one is alone else f"{number('{:+,.0f}', difference)} ± {margin:,.0f}",
                EMPTY if math.isnan(one.late) else number("{:.0%}", one.late),
            ]
        )
    header = ["policy", "α", "final regret", f"minus {ALONE}'s", "last quarter"]
    marks = [_mark(found, one) for one in found.played]
    return Table(f"final regret after {found.horizon:,} rounds", header, lines, marks)


def _mark(found: Recommendation, one: Played) -> Mark:
    if one is found.chosen:
        return "reference"
    return "" if one.method.can_be_taken else "apart"


def _how(found: Recommendation) -> str:
    text = (
        f"Means of {found.runs} runs with 95% intervals (Student t); differences are taken run by run, and "
        "below zero favours the policy. The same seed gives every policy the same agents and noise."
    )
    if not math.isnan(found.rate):
        text += (
            " Last quarter: where the rewards of the last quarter of the rounds lie between those of an arm "
            f"drawn at random (0%, {found.rate:.3g} below the best in a round) and of the best arm (100%)."
        )
    return f"{text} {found.live_use()}"


def _live(found: Recommendation) -> str:
    chosen, parameters = found.chosen, found.parameters
    said = "With named agents and late rewards"
    if not chosen.method.is_live:
        # They are in the order of their regrets, so the first is the best.
        best = next(one for one in found.played if one.method.is_live)
        said += f" (populations do not accept {chosen.label}; {best.label} was the best that they accept)"
        chosen, parameters = best, best.parameters
    features = found.world.agent_features
    if chosen.method.described and features is not None:
        said += ", whose decide takes agent_features=[…]"
        parameters = {**parameters, "agent_dim": features.shape[1]}
    given = "".join(f", {name}={value!r}" for name, value in parameters.items())
    policy, dim = chosen.method.policy, found.world.dim
    return f'{said}: shoal.open("shop.db").population("shop", policy="{policy}", dim={dim}{given})'


def _picture(found: Recommendation) -> Picture:
    styles = method_styles((one.label, one.method.policy) for one in found.played)
    lines = [ChartLine(one.label, styles[one.label], one.curve) for one in found.played]
    title = "Regret over rounds"
    return Picture(
        title,
        f"Cumulative regret, mean of {found.runs} runs with 95% intervals, each policy at the α that was "
        "best on the runs for choosing.",
        "regret",
        lambda: charts.line_figure(lines, title, AXIS),
        charts.chart_data(lines, title, AXIS),
    )
