"""Our own policies, which are not in the paper, against BASS, Ind and Oracle, scenario by scenario.

Ours are judged at their fixed default α, the others each at its best α: wins are not due to tuning, and
losses are reported. Where a spec has ours with settings for single scenarios (clicks, described users), these
are judged there, beside the defaults.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.parquet import pa
from shoal.core.policies.registry import policy_class
from shoal.lab.experiments.informed import ClickOracle
from shoal.lab.experiments.report import PAIRED_COLUMNS, Column, line, table_of
from shoal.lab.experiments.summaries import Paired, SummaryRow, pair_up, unique
from shoal.lab.paper.comparison import is_ours, reference_row
from shoal.reporting.sections import Section, Text
from shoal.reporting.words import EMPTY, counted

ORACLES = "oracle", f"{ClickOracle.__module__}:{ClickOracle.__name__}"
KEY, TITLE = "beyond", "Beyond the paper: our own policies"
NOTE = (
    "These policies are ours, not the paper's. Mean final regret with its 95% interval (Student t), then the "
    "differences run by run on the same seeds with theirs (paired t): negative favours ours. Ours run at "
    "their fixed default parameters; BASS, Ind and Oracle each at its best α on these same runs (in "
    "brackets), an advantage that only a column “best α” gives ours. “Below” says yes or no if the interval "
    "of the difference excludes 0, and “unclear” if chance could explain it. Oracle knows the clusters and "
    "is missing where there are none."
)
DEFAULTS_NOTE = (
    "Where rewards are clicks, all are told that they are 0 or 1; where users are described, ours is given "
    "their features. There “fixed” is ours with that setting, and “defaults” ours without it."
)


@dataclass(frozen=True)
class Contest:
    """One scenario: a policy of ours at its fixed α, and those of its rivals that were run."""

    title: str
    ours: SummaryRow
    best: SummaryRow | None
    """Ours at its best α."""
    defaults: SummaryRow | None
    """Ours at its default parameters, where `ours` has others that are for this scenario alone."""
    bass: SummaryRow | None
    independent: SummaryRow | None
    oracle: SummaryRow | None
    pairs: Sequence[Paired]
    """Ours minus BASS, Ind, Oracle and the defaults, in that order, those that were run."""

    def against(self, row: SummaryRow | None) -> Paired | None:
        """The paired comparison with another method."""
        return next((pair for pair in self.pairs if row is not None and pair.method == row.method), None)

    @property
    def ratio(self) -> float | None:
        """Our mean regret divided by Oracle's."""
        return None if self.oracle is None else self.ours.regret.mean / self.oracle.regret.mean


def contests(table: pa.Table, rows: Sequence[SummaryRow]) -> list[Contest]:
    """The scenarios in which each policy of ours was run, in the order of `rows`."""
    found = []
    own_policies = unique(row.policy for row in rows if is_ours(row))
    scenarios = unique(row.environment for row in rows)
    for policy, environment in itertools.product(own_policies, scenarios):
        here = [row for row in rows if row.environment == environment]
        ours = [row for row in here if row.policy == policy]
        if not ours:
            continue
        own, *further = [row for row in ours if row.fixed] or ours[:1]
        defaults = further[-1] if further else None  # settings for one scenario precede them
        bass, independent, oracle = reference_row(here), _first(here, "independent"), _first(here, *ORACLES)
        pairs = [pair_up(table, own, other) for other in (bass, independent, oracle, defaults)]
        found.append(
            Contest(
                title=own.title,
                ours=own,
                # Only the defaults are run at several α.
                best=None if defaults else next((row for row in ours if not row.fixed), None),
                defaults=defaults,
                bass=bass,
                independent=independent,
                oracle=oracle,
                pairs=[pair for pair in pairs if pair is not None],
            )
        )
    return found


def name(row: SummaryRow) -> str:
    """The name of a policy of ours."""
    return policy_class(row.policy).__name__


def verdict(pair: Paired | None) -> str:
    """Whether the reference's regret is lower: yes or no where the paired interval excludes 0."""
    if pair is None or not pair.low <= pair.high:
        return EMPTY
    return "yes" if pair.high < 0.0 else "no" if pair.low > 0.0 else "unclear"


def summary(found: Sequence[Contest]) -> str:
    """Where our policies win and where they lose, in words; empty if none was run."""
    texts = []
    for policy in unique(contest.ours.policy for contest in found):
        own = [contest for contest in found if contest.ours.policy == policy]
        alphas = " or ".join(unique(f"{contest.ours.alpha:g}" for contest in own))
        how = f"fixed α = {alphas}" if own[0].ours.fixed else "its best α"
        rivals = (
            _tally("BASS", [(contest, contest.against(contest.bass)) for contest in own]),
            _tally("Ind", [(contest, contest.against(contest.independent)) for contest in own]),
        )
        said = " ".join(text for text in rivals if text) or "There is nothing to compare it with."
        texts.append(f"{name(own[0].ours)} (ours, not in the paper) was run at {how}. {said}")
    return " ".join(texts)


def _tally(name: str, judged: Sequence[tuple[Contest, Paired | None]]) -> str:
    words = {contest.title: verdict(pair) for contest, pair in judged if pair is not None}
    if not words:
        return ""
    lost = [title for title, word in words.items() if word == "no"]
    won = sum(word == "yes" for word in words.values())
    text = f"Run by run it is below {name} in {won} of {counted(len(words), 'scenario')}"
    return f"{text} and loses to it in {len(lost)}" + (f": {'; '.join(lost)}." if lost else ".")


def _first(rows: Sequence[SummaryRow], *policies: str) -> SummaryRow | None:
    return next((row for row in rows if row.policy in policies), None)


def _mean(row: SummaryRow | None) -> str:
    if row is None:
        return EMPTY
    s = row.regret
    text = f"{s.mean:,.0f}" if s.runs == 1 else f"{s.mean:,.0f} ± {s.high - s.mean:,.0f}"
    return text if row.fixed else f"{text} (α={row.alpha:g})"


def _difference(pair: Paired | None) -> str:
    if pair is None:
        return EMPTY
    _, difference, interval, *_ = line(PAIRED_COLUMNS, pair)
    return f"{difference} ({interval})"


SCENARIO = Column("scenario", lambda contest: contest.title)
BEST = Column("best α", lambda contest: _mean(contest.best))
DEFAULTS = Column("defaults", lambda contest: _mean(contest.defaults))
MINUS_DEFAULTS = Column(
    "fixed minus defaults", lambda contest: _difference(contest.against(contest.defaults))
)
MEANS = (
    SCENARIO,
    Column("Oracle", lambda contest: _mean(contest.oracle)),
    Column("Ind", lambda contest: _mean(contest.independent)),
    Column("BASS", lambda contest: _mean(contest.bass)),
    Column("fixed α", lambda contest: _mean(contest.ours)),
    BEST,
    DEFAULTS,
    Column("fixed over Oracle", lambda contest: EMPTY if contest.ratio is None else f"{contest.ratio:.2f}"),
)
DIFFERENCES = (
    SCENARIO,
    Column("fixed minus BASS", lambda contest: _difference(contest.against(contest.bass))),
    Column("below BASS", lambda contest: verdict(contest.against(contest.bass))),
    Column("fixed minus Ind", lambda contest: _difference(contest.against(contest.independent))),
    Column("below Ind", lambda contest: verdict(contest.against(contest.independent))),
    MINUS_DEFAULTS,
)


def beyond_section(found: Sequence[Contest]) -> Section:
    """Our policies in every scenario, and run by run; no parts if none was run."""
    if not found:
        return Section(KEY, TITLE, [])
    tables = [
        table_of(
            f"{contest.title}: {contest.ours.label} minus each method, final regret",
            PAIRED_COLUMNS,
            contest.pairs,
        )
        for contest in found
        if contest.pairs
    ]
    whole = []
    for policy in unique(contest.ours.policy for contest in found):
        own = [contest for contest in found if contest.ours.policy == policy]
        empty = [] if any(contest.best for contest in own) else [BEST]
        empty += [] if any(contest.defaults for contest in own) else [DEFAULTS, MINUS_DEFAULTS]
        means, differences = ([one for one in table if one not in empty] for table in (MEANS, DIFFERENCES))
        title = f"{name(own[0].ours)} (ours) in every scenario"
        whole += [
            table_of(f"{title}: mean final regret with its 95% interval", means, own),
            table_of(f"{title}: differences run by run with their 95% intervals", differences, own),
        ]
    notes = [Text(NOTE), *([Text(DEFAULTS_NOTE)] if any(contest.defaults for contest in found) else [])]
    return Section(KEY, TITLE, [*notes, *whole, *tables])
