"""WeightedBASS, which is ours and not in the paper, against BASS, Ind and Oracle, scenario by scenario.

It is judged at its fixed default α, the others at the α that suits each best: what it wins is not won by
tuning, and what it loses is said.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from shoal.experiments import tables
from shoal.experiments.tables import Paired, Row, Summary, unique

HEADER = (
    "scenario",
    "Oracle",
    "Ind",
    "BASS",
    "WeightedBASS, fixed α",
    "WeightedBASS, best α",
    "fixed minus BASS",
    "below BASS",
    "fixed minus Ind",
    "below Ind",
    "fixed over Oracle",
)
NOTE = (
    "WeightedBASS is ours, not the paper's. Mean final regret with its 95% interval (Student t), then the "
    "differences run by run on the same seeds with theirs (paired t): negative favours WeightedBASS. It is "
    "run at its fixed default parameters; BASS, Ind and Oracle each at the α that suits it best on these "
    "very runs (in brackets). The column “best α” gives it the same advantage. “Below” says yes or no where "
    "the interval of the difference leaves out 0, and “unclear” where chance could explain it. Oracle knows "
    "the clusters and is missing where there are none."
)


@dataclass(frozen=True)
class Contest:
    """One scenario: our method at its fixed α, and its rivals, as far as they were run."""

    title: str
    ours: Row
    best: Row | None
    """Ours at its best α."""
    bass: Row | None
    independent: Row | None
    oracle: Row | None
    pairs: Sequence[Paired]
    """Ours minus BASS, Ind and Oracle, in that order, without those that were not run."""

    def against(self, row: Row | None) -> Paired | None:
        """The paired comparison with another method."""
        return next((pair for pair in self.pairs if row is not None and pair.method == row.method), None)

    @property
    def ratio(self) -> float | None:
        """Our mean regret over Oracle's."""
        return None if self.oracle is None else self.ours.regret.mean / self.oracle.regret.mean


def contests(table: pa.Table, rows: Sequence[Row], policy: str = "weighted_bass") -> list[Contest]:
    """The scenarios in which our method was run, in the order of `rows`."""
    found = []
    for environment in unique(row.environment for row in rows):
        here = [row for row in rows if row.environment == environment]
        ours = [row for row in here if row.policy == policy]
        if not ours:
            continue
        own = next((row for row in ours if row.fixed), ours[0])
        others = tables.reference_row(here), _first(here, "independent"), _first(here, "oracle")
        pairs = [tables.pair_up(table, own, other) for other in others]
        found.append(
            Contest(
                own.title,
                own,
                next((row for row in ours if not row.fixed), None),
                *others,
                [pair for pair in pairs if pair is not None],
            )
        )
    return found


def verdict(pair: Paired | None) -> str:
    """Whether the reference's regret is lower: yes or no where the paired interval excludes 0."""
    if pair is None or not pair.low <= pair.high:
        return "–"
    return "yes" if pair.high < 0.0 else "no" if pair.low > 0.0 else "unclear"


def line(contest: Contest) -> list[str]:
    """A line of the table, as text; the columns are those of `HEADER`."""
    bass, independent = contest.against(contest.bass), contest.against(contest.independent)
    return [
        contest.title,
        _mean(contest.oracle),
        _mean(contest.independent),
        _mean(contest.bass),
        _mean(contest.ours),
        _mean(contest.best),
        _difference(bass),
        verdict(bass),
        _difference(independent),
        verdict(independent),
        "–" if contest.ratio is None else f"{contest.ratio:.2f}",
    ]


def markdown(found: Sequence[Contest]) -> str:
    """The table of all scenarios, as in docs/beyond.md."""
    return tables.markdown_table(HEADER, map(line, found))


def summary(found: Sequence[Contest]) -> str:
    """Where our method wins and where it loses, in words; empty if it was not run."""
    if not found:
        return ""
    alphas = " or ".join(unique(f"{contest.ours.alpha:g}" for contest in found))
    how = f"fixed α = {alphas}" if found[0].ours.fixed else "its best α"
    rivals = (
        _tally("BASS", [(contest, contest.against(contest.bass)) for contest in found]),
        _tally("Ind", [(contest, contest.against(contest.independent)) for contest in found]),
    )
    said = " ".join(text for text in rivals if text) or "There is nothing to compare it with."
    return f"WeightedBASS (ours, not in the paper) was run at {how}. {said}"


def _tally(name: str, judged: Sequence[tuple[Contest, Paired | None]]) -> str:
    words = {contest.title: verdict(pair) for contest, pair in judged if pair is not None}
    if not words:
        return ""
    lost = [title for title, word in words.items() if word == "no"]
    won = sum(word == "yes" for word in words.values())
    text = f"Run by run it is below {name} in {won} of {len(words)} scenario{'s' if len(words) > 1 else ''}"
    return f"{text} and loses to it in {len(lost)}" + (f": {'; '.join(lost)}." if lost else ".")


def _first(rows: Sequence[Row], policy: str) -> Row | None:
    return next((row for row in rows if row.policy == policy), None)


def _mean(row: Row | None) -> str:
    if row is None:
        return "–"
    s: Summary = row.regret
    text = f"{s.mean:,.0f}" if s.runs == 1 else f"{s.mean:,.0f} ± {s.high - s.mean:,.0f}"
    return text if row.fixed else f"{text} (α={row.alpha:g})"


def _difference(pair: Paired | None) -> str:
    if pair is None:
        return "–"
    _, difference, interval, *_ = tables.paired_line(pair)
    return f"{difference} ({interval})"
