"""WeightedBASS, which is ours and not in the paper, against BASS, Ind and Oracle, scenario by scenario.

It is judged at its fixed default α, the others at the α that suits each best: what it wins is not won by tuning,
and what it loses is said.
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
    "differences run by run on the same seeds with theirs (paired t): negative favours WeightedBASS. It is run "
    "at its fixed default parameters, BASS, Ind and Oracle each at the α that suits it best (in brackets) on "
    "these very runs; the column “best α” gives it the same advantage. “Below” says yes or no where the interval "
    "of the difference leaves out 0, and “unclear” where chance could explain it. Oracle knows the clusters and "
    "is missing where there are none."
)


@dataclass(frozen=True)
class Contest:
    """One scenario: our method at its fixed α, and those it has to be compared with, as far as they were run."""

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


def contests(table: pa.Table, rows: Sequence[Row]) -> list[Contest]:
    """The scenarios in which our method was run, in the order of `rows`."""
    found = []
    for environment in unique(row.environment for row in rows):
        here = [row for row in rows if row.environment == environment]
        ours = [row for row in here if row.is_ours]
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
    """Where our method wins and where it loses, in a few sentences; empty if it was not run."""
    if not found:
        return ""
    alphas = unique(f"{contest.ours.alpha:g}" for contest in found)
    parts = [f"WeightedBASS (ours, not in the paper) at {'fixed ' if found[0].ours.fixed else ''}α = {', '.join(alphas)}"]
    parts += [
        text
        for name, rivals in (
            ("BASS", [contest.bass for contest in found]),
            ("Ind", [contest.independent for contest in found]),
        )
        if (text := _against(name, [c.against(rival) for c, rival in zip(found, rivals, strict=True)], found))
    ]
    return ": ".join([parts[0], " ".join(parts[1:])]) if len(parts) > 1 else f"{parts[0]}: nothing to compare."


def _against(name: str, pairs: Sequence[Paired | None], found: Sequence[Contest]) -> str:
    judged = [(verdict(pair), contest.title) for pair, contest in zip(pairs, found, strict=True) if pair]
    if not judged:
        return ""
    words = [word for word, _ in judged]
    lost = [title for word, title in judged if word == "no"]
    scenarios = f"{len(judged)} scenario{'s' if len(judged) > 1 else ''}"
    text = f"below {name} in {words.count('yes')} of {scenarios}, unclear in {len(words) - words.count('yes') - len(lost)}, "
    return text + (f"and it loses to {name} in {len(lost)} ({'; '.join(lost)})." if lost else "and it loses in none.")


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
