"""What is wrong with a population, or settled in it: alarms with the numbers behind them, and what to do.

They are computed from the last records and from each agent's sums in the state, so their cost depends neither
on the length of the journal nor, except for one pass over these sums, on the number of agents.

Alarms are looked at often. So intervals are confidence sequences (sequences.py), and their window does not
slide: it starts at a multiple of a block of records, and holds the last whole block and the present one. Each
sequence errs in a window with probability 5% at most, however often that window is looked at.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from shoal.core.types import AnyArray
from shoal.live.evaluation.sequences import BURN_IN, LEVEL, asymptotic, empirical_bernstein
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Decided, Missed, Observed, Rewarded, Row, Settings, decode
from shoal.live.journal.tally import Sums
from shoal.live.protocol.answers import Alarm
from shoal.live.protocol.errors import JournalError
from shoal.reporting.words import span

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

LARGEST_BLOCK = 8_192
"""Records in a block; in a short journal, the largest power of two that fits in it twice."""
ENOUGH = 100
"""Decisions without a reward that may mean something."""
ALIKE = 300
"""Equal rewards in a row that count as constant: with 95% confidence, fewer than 1% differ."""
PATIENCE = 3600.0
"""Seconds that the very first reward may take, if the population has no `reward_window`."""
LONGER = 2.0
"""An alarming gap between rewards is this many times the longest one before."""
GONE = 0.01
"""Share of choices other than the most frequent arm below which exploration is gone."""
EXPLAINED = 0.02
"""Share of the rewards' variance below which a policy explains next to nothing."""
SETTLED = 0.02
"""Share of changed preferences below which a population has converged."""
OFFERS = 64
"""Sets of arms whose names are looked up; in further ones, an arm is known by its position."""
NAMED = 3
"""Harmed agents that a sentence names."""
ALARMS = (
    "no rewards",
    "constant rewards",
    "no exploration",
    "not learning",
    "drift",
    "harm",
    "wrong arms",
    "converged",
)
"""All alarms. The last is good news."""


class AgentSums(NamedTuple):
    """What sharing paid each agent, arrays of shape (n,), and their names."""

    names: list[str | None]
    counts: AnyArray
    totals: AnyArray
    squares: AnyArray


def alarms(owner: "Owner") -> list[Alarm]:
    """See `Population.alarms`."""

    def question(fold: Fold) -> tuple[Settings, int, float, AgentSums]:
        tally = fold.tally
        sums = (np.array(each) for each in (tally.counts, tally.totals, tally.squares))
        settings = msgspec.structs.replace(fold.settings, explore=fold.explore)
        return settings, fold.seq, fold.complete_until, AgentSums(list(fold.called), *sums)

    settings, seq, until, agents = owner.read(question)
    block = min(LARGEST_BLOCK, 1 << max(seq // 2, 1).bit_length() - 1)
    split = seq // block * block
    window = Window(settings, split, _Arms(owner, settings.dim), until)
    window.take(owner.store.read(owner.number, max(split - block, 0), seq))
    return sounding(window, agents)


def sounding(window: "Window", agents: AgentSums) -> list[Alarm]:
    """The alarms raised by a window of records and the sums of all agents."""
    found = (
        _no_rewards(window),
        _constant_rewards(window),
        _no_exploration(window),
        _not_learning(window),
        _drift(window),
        _harm(agents),
        _converged(window),
    )
    return [one for one in found if one is not None]


class _Arms:
    """How many arms were on offer, 0 if unknown, and the chosen arm's name."""

    def __init__(self, owner: "Owner", dim: int) -> None:
        self._offers, self._dim = owner.commands.offers, dim
        self._known: dict[bytes, tuple[int, tuple[str, ...] | None]] = {}

    def __call__(self, digest: bytes, place: int) -> tuple[int, str | int]:
        known = self._known.get(digest)
        if known is None:
            known = (0, None)
            if len(self._known) < OFFERS:
                try:
                    offer = self._offers.offered_in(self._dim, digest)
                    known = len(offer), offer.names if offer.names is None else tuple(offer.names)
                except JournalError:  # deleted with the only agent who saw them
                    pass
                self._known[digest] = known
        size, names = known
        return size, place if names is None else names[place]


class Window:
    """What consecutive records say.

    Parameters
    ----------
    settings : Settings
    split : int
        The record after which the present block begins.
    arm : callable
        From digest and position: the number of arms on offer, and a name for that one.
    until : float
        The record from which on decisions do not count yet, as only their quick rewards are known.
    """

    def __init__(
        self,
        settings: Settings,
        split: int,
        arm: Callable[[bytes, int], tuple[int, str | int]],
        until: float = math.inf,
    ) -> None:
        self.settings, self._split, self._arm, self._until = settings, split, arm, until
        self.gap, self.longest_gap = 0, 0
        """Decisions since the last reward, and the most between two rewards."""
        self.began, self.last, self.longest = 0, 0, 0
        """When the present gap began, the time of the last record, and the longest gap; in microseconds."""
        self.n_arrived = 0
        """Rewards that were reported."""
        self.n_rewards = 0
        """Rewards that count, and defaults."""
        self.values: set[float] = set()
        """Up to two different rewards."""
        self.chosen: Counter[str | int] = Counter()
        """How often the policy chose each arm, where it had a choice."""
        self.most_arms = 0
        self.kept, self.changed = 0, 0
        """How often the policy's preference for an agent and an offer was the same as before, and was not."""
        self.errors: tuple[list[float], list[float]] = ([], [])
        """Squared errors of predictions, in the last whole block and in the present one."""
        self.seen: list[tuple[Decided, float, int]] = []
        """The policy's decisions that have a reward, in the order of rewards, with the reward and the number
        of arms on offer."""
        self._awaited: dict[str, tuple[int, Decided, int]] = {}
        self._complete: set[str] = set()
        """Decisions of which all rewards are known, where a missing one counts as a default."""
        self._preferred: dict[tuple[int, bytes], int] = {}

    def take(self, rows: Iterable[Row]) -> None:
        """Count records, in order."""
        for row in rows:
            record, self.last = decode(row.body), row.at
            if isinstance(record, Decided):
                self._decided(row, record)
            elif isinstance(record, Rewarded | Observed):
                self._arrived(row)
            if not isinstance(record, Rewarded | Observed | Missed) or record.reward is None:
                continue
            is_decided = not isinstance(record, Observed)
            if self.settings.default_reward is not None and is_decided and record.id not in self._complete:
                continue
            self.n_rewards += 1
            if len(self.values) < 2:
                self.values.add(record.reward)
            if isinstance(record, Observed) or record.place > 0:
                continue
            if (known := self._awaited.pop(record.id, None)) is not None:
                seq, decided, size = known
                self.seen.append((decided, record.reward, size))
                error = self.clipped(decided.pooled) - record.reward
                # Defaults come later than clicks: both belong to the block of their decision.
                by = row.seq if self.settings.default_reward is None else seq
                self.errors[by > self._split].append(error * error)

    def _decided(self, row: Row, record: Decided) -> None:
        self.gap += 1
        self.began = self.began or row.at
        if row.seq < self._until:
            self._complete.add(record.id)
        if record.mode or len(record.shown) > 1:  # not chosen by the policy, or not one arm
            return
        size, arm = self._arm(record.arms, record.shown[0])
        self._awaited[record.id] = row.seq, record, size
        if size != 1:
            self.chosen[arm] += 1
            self.most_arms = max(self.most_arms, size)
            before = self._preferred.get((record.agent, record.arms))
            self._preferred[record.agent, record.arms] = record.greedy
            if before is not None:
                self.kept += before == record.greedy
                self.changed += before != record.greedy

    def _arrived(self, row: Row) -> None:
        if self.n_arrived:  # before the first one, part of the gap may lie outside the window
            self.longest_gap = max(self.longest_gap, self.gap)
            self.longest = max(self.longest, row.at - self.began)
        self.gap, self.began = 0, row.at
        self.n_arrived += 1

    def clipped(self, prediction: float) -> float:
        """A prediction within the known range of rewards."""
        low, high = self.settings.reward_low, self.settings.reward_high
        return prediction if low is None or high is None else min(max(prediction, low), high)

    @property
    def others(self) -> int:
        """Choices of arms other than the one chosen most."""
        return self.chosen.total() - max(self.chosen.values(), default=0)


def _no_rewards(window: Window) -> Alarm | None:
    """Facts, not a test: how long rewards took is known, not how long they may take."""
    seconds = (window.last - window.began) / 1e6
    if window.gap < ENOUGH:
        return None
    if not window.n_arrived:
        if seconds < (window.settings.reward_window or PATIENCE):
            return None
        said = f"None of the last {window.gap:,} decisions, in {span(seconds)}, has led to a reward."
    else:
        before, usual = window.longest_gap, window.longest / 1e6
        if window.gap <= LONGER * before or seconds <= LONGER * usual:
            return None
        said = (
            f"No reward has come for {window.gap:,} decisions and {span(seconds)}; among the last "
            f"{window.n_arrived:,} rewards the longest such gaps were {before:,} decisions and {span(usual)}."
        )
    advice = (
        "Check that rewards are sent with the ids of their decisions, and which are refused. If they take "
        "longer by nature, nothing is wrong; a `reward_window` says how long."
    )
    return Alarm("no rewards", "fault", said, advice, float(window.gap), math.nan, math.nan)


def _constant_rewards(window: Window) -> Alarm | None:
    n = window.n_rewards
    if n < ALIKE or len(window.values) > 1:
        return None
    # Valid at all times: as long as none differs, the bound at n fails only if the first n happened to agree.
    most = 1.0 - (1.0 - LEVEL) ** (1.0 / n)
    said = f"All of the last {n:,} rewards are {min(window.values):g}: fewer than {most:.2%} differ (95%)."
    advice = (
        "Nothing can be learned from them. Check how rewards are computed, and that decisions which led to "
        "nothing get a reward, too, or one by `reward_window` and `default_reward`."
    )
    return Alarm("constant rewards", "fault", said, advice, 0.0, 0.0, most)


def _share(events: int, n: int, tries: int = 1) -> tuple[float, float]:
    """The confidence sequence of a share; `tries` is the number of events that this one was picked from."""
    return empirical_bernstein(Sums(n, events, events), 0.0, 1.0, 1.0 - (1.0 - LEVEL) / tries)


def _no_exploration(window: Window) -> Alarm | None:
    n = window.chosen.total()
    low, high = _share(window.others, n, max(len(window.chosen), window.most_arms, 1))
    if high >= GONE:
        return None
    shares = np.array(list(window.chosen.values())) / n
    effective = math.exp(-float(shares @ np.log(shares)))
    said = (
        f"One arm of up to {window.most_arms} was chosen in {1 - window.others / n:.2%} of {n:,} decisions; "
        f"by their entropy, as if there were {effective:.2f} arms. Others are chosen in {low:.2%} to "
        f"{high:.2%} of decisions (95%), and `explore` is {window.settings.explore:g}."
    )
    advice = (
        "If another arm becomes better, nobody will notice, and other policies cannot be evaluated. Raise "
        "`alpha` (`switch`), or make the population with a larger `explore`."
    )
    return Alarm("no exploration", "fault", said, advice, window.others / n, low, high)


def _not_learning(window: Window) -> Alarm | None:
    """Compares with the mean of earlier rewards where arms vary: drawn arms, or all if none is drawn.

    Where one arm is always chosen, the mean predicts it well, which is no fault.
    """
    drawn = [one for one in window.seen if one[0].shown[0] != one[0].greedy]
    if not window.settings.explore and window.others >= 0.1 * window.chosen.total():
        drawn = window.seen
    if len(drawn) < BURN_IN:
        return None
    rewards = np.array([reward for _, reward, _ in drawn])
    predicted = np.array([window.clipped(one.pooled) for one, _, _ in drawn])
    means = np.cumsum(rewards)[:-1] / np.arange(1, len(rewards))
    terms = (means - rewards[1:]) ** 2 - (predicted[1:] - rewards[1:]) ** 2
    variance = float(rewards.var())
    low, high = asymptotic(Sums.of(terms))
    if not variance or high >= EXPLAINED * variance or low > 0.0:
        return None
    value, low, high = float(terms.mean()) / variance, low / variance, high / variance
    said = (
        f"The policy predicts rewards no better than their mean: it explains {value:.1%} [{low:.1%}, "
        f"{high:.1%}] of their variance (95%, {len(terms):,} rewards)."
    )
    advice = (
        "Check that rewards belong to their decisions, that features tell arms apart, and their scale; an "
        "arm's features need a constant if rewards are far from 0. Rare or very noisy rewards are hard to "
        "predict; then nothing is wrong."
    )
    return Alarm("not learning", "fault", said, advice, value, low, high)


def _drift(window: Window) -> Alarm | None:
    level = 1.0 - (1.0 - LEVEL) / 2.0  # both intervals must hold
    before, now = (Sums.of(np.array(each)) for each in window.errors)
    (_, most), (least, high) = asymptotic(before, level), asymptotic(now, level)
    if not least > most:
        return None
    said = (
        f"The policy's predictions have become worse: their squared error is {now.mean:.3g} [{least:.3g}, "
        f"{high:.3g}] in the last {now.n:,} rewards, and was at most {most:.3g} in the {before.n:,} before "
        "(95%)."
    )
    advice = (
        "Rewards have changed, or the agents that ask, or the arms on offer. If rewards have, a policy that "
        "forgets can follow: try `cluster_mixture` with `evaluate` or a `contest`."
    )
    return Alarm("drift", "fault", said, advice, now.mean - before.mean, least - most, math.nan)


def _harm(agents: AgentSums) -> Alarm | None:
    """Agent i of 1, 2, … gets 5% / (i (i + 1)): in all, the error is at most 5%, however many join."""
    n, total, squares = agents.counts, agents.totals, agents.squares
    # Only agents more than three standard errors below 0: no sequence below is narrower than that.
    spread = np.sqrt(np.maximum(squares - total * total / np.maximum(n, 1), 0.0))
    harmed = []
    for agent in np.flatnonzero((n >= BURN_IN) & (total < -3.0 * spread)).tolist():
        sums = Sums(int(n[agent]), float(total[agent]), float(squares[agent]))
        low, high = asymptotic(sums, 1.0 - (1.0 - LEVEL) / ((agent + 1) * (agent + 2)))
        if high < 0.0 and agents.names[agent] is not None:
            harmed.append((high, low, sums.mean, agents.names[agent]))
    if not harmed:
        return None
    harmed.sort(key=lambda one: one[0])
    high, low, mean, _ = harmed[0]
    names = ", ".join(repr(one[3]) for one in harmed[:NAMED]) + (", …" if len(harmed) > NAMED else "")
    who = "agent is" if len(harmed) == 1 else "agents are"
    said = (
        f"{len(harmed):,} {who} harmed by sharing: {names}. For the first, others' samples change the "
        f"squared error saved per reward by {mean:.3g} [{low:.3g}, {high:.3g}] (95% over all agents)."
    )
    advice = 'Look at `explain(agent)`; if it goes on, `add(agent, sharing="none")` ends its borrowing.'
    return Alarm("harm", "fault", said, advice, mean, low, high)


def _converged(window: Window) -> Alarm | None:
    n = window.kept + window.changed
    low, high = _share(window.changed, n)
    if high >= SETTLED:
        return None
    said = (
        f"The policy has settled: in {n:,} decisions that repeat an agent and an offer it preferred an arm "
        f"other than before in {window.changed / n:.2%} [{low:.2%}, {high:.2%}]. "
    )
    advantage = _advantage(window)
    below, above = asymptotic(Sums.of(advantage))
    if not math.isfinite(below):
        said += "Too little was explored to say whether it prefers the best arms."
        advice = "With a larger `explore`, the journal could show it."
        return Alarm("converged", "note", said, advice, window.changed / n, low, high)
    value = float(advantage.mean())
    said += f"The arms it prefers earn {value:+.3g} [{below:+.3g}, {above:+.3g}] "
    said += "more than arms drawn at random (95%)."
    if above < 0.0:
        advice = "It has settled on the wrong arms. Evaluate other policies, or raise `alpha`."
        return Alarm("wrong arms", "fault", said, advice, value, below, above)
    advice = "Nothing has to be done. If tastes do not change, less exploration costs less."
    return Alarm("converged", "note", said, advice, value, below, above)


def _advantage(window: Window) -> AnyArray:
    """For each decision, an unbiased term for how much more the preferred arm earns than a random one."""
    terms, total = [], 0.0
    for n, (one, reward, size) in enumerate(window.seen):
        p, is_preferred = one.probability, one.shown[0] == one.greedy
        if p is not None and p < 1.0 and size:
            terms.append((is_preferred - 1.0 / size) / p * (reward - total / max(n, 1)))
        total += reward
    return np.array(terms)
