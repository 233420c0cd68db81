"""A journal played into another policy, or into the same one with other settings.

`what_if` compares the two, `switch` lets the other take over. The other policy sees the very same records, in
their order, from the first on. Forgotten people are in none of them.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from shoal.core.policies.registry import find_live_policy
from shoal.live.evaluation.dividends import paid, summed
from shoal.live.evaluation.logs import complete, outcomes
from shoal.live.journal import archives, snapshots
from shoal.live.journal.archives import base_of, pack_base
from shoal.live.journal.arms import checked_by
from shoal.live.journal.fold import Fold, Plan, check_default, current_stamp, policy_parameters
from shoal.live.journal.records import SWITCHES, Decided, Row, Settings, decode
from shoal.live.journal.tally import Sums
from shoal.live.journal.tally import dividend as dividend_of
from shoal.live.population.exporting import Exporter
from shoal.live.protocol.answers import Dividend, Switch, WhatIf
from shoal.live.protocol.errors import ConflictError
from shoal.reporting.words import counted

if TYPE_CHECKING:
    from shoal.live.population.commands import Turn
    from shoal.live.population.owner import Owner

NEVER = 2**62


class Opinion(NamedTuple):
    """What a policy would have thought of a decision."""

    own: float
    pooled: float
    """Its prediction for the arm that was shown."""
    greedy: int = -1
    """Position of the arm that it would have preferred."""
    expected: float = 0.0
    """Its prediction for that arm."""


def other_settings(
    settings: Settings, policy: str | None, parameters: dict[str, Any], by: str = ""
) -> Settings:
    """Checked settings with another policy, or other parameters of the same policy."""
    same = policy is None or policy == settings.policy
    known = dict(settings.parameters) if same else {"seed": settings.parameters["seed"]}
    policy = policy or settings.policy
    superseded = find_live_policy(policy).superseded(parameters)
    known = {key: value for key, value in known.items() if key not in superseded}
    made = policy_parameters(policy, settings.dim, {**known, **parameters})
    check_default(made, settings.default_reward)
    return settings_with(settings, policy, made, by)


def settings_with(settings: Settings, policy: str, parameters: dict[str, Any], by: str = "") -> Settings:
    """The same settings except for the policy and all of its parameters."""
    return msgspec.structs.replace(
        settings, policy=policy, parameters=parameters, stamp=current_stamp(), by=checked_by(by)
    )


def refold(owner: "Owner", settings: Settings, upto: int, watch: Any = None) -> Fold:
    """The state that the journal gives under other settings; needs its archives."""
    fold = Fold(Plan(settings, NEVER))

    def rows() -> Iterator[Row]:
        for row in archives.journal(owner.store, owner.number, upto):
            if watch is not None:
                watch(fold, row)
            yield row

    fold.apply_all(rows())
    return fold


def rehearse(
    owner: "Owner", settings: Settings, exporter: Exporter, upto: int, *, chooses: bool
) -> tuple[Fold, dict[str, Opinion]]:
    """The state under other settings, and their opinion of each decision at the time it was made."""
    opinions: dict[str, Opinion] = {}

    def watch(fold: Fold, row: Row) -> None:
        record = decode(row.body)
        if isinstance(record, Decided):
            # Asked before the record is applied, with what the policy would have known then.
            own, pooled = fold.predict(record)
            if not chooses:
                opinions[record.id] = Opinion(own, pooled)
                return
            choice = fold.policy.choose(record.agent, exporter.offer(record.arms).features)
            opinions[record.id] = Opinion(own, pooled, int(choice.arm), float(choice.pooled))

    return refold(owner, settings, upto, watch), opinions


def what_if(owner: "Owner", policy: str | None, parameters: dict[str, Any]) -> WhatIf:
    """See `Population.what_if`."""
    fold, exporter, found = outcomes(owner)
    settings = other_settings(fold.settings, policy, parameters)
    with owner.settled() as present:
        graph, names, upto = present.policy.graph, list(present.called), present.seq
    fold, opinions = rehearse(owner, settings, exporter, upto, chooses=False)
    then, other, better = [], [], []
    for one in complete(settings, found):
        recorded, opinion = paid(one, settings), opinions.get(one.decided.id)
        if recorded is None or opinion is None or one.reward is None:
            continue
        # On the same rewards, so that differences do not come from the sample.
        then.append(recorded)
        other.append(dividend_of(opinion.own, opinion.pooled, one.reward, settings))
        better.append(dividend_of(one.decided.pooled, opinion.pooled, one.reward, settings))
    gained, lost = _pairs(fold.policy.graph & ~graph, names), _pairs(graph & ~fold.policy.graph, names)
    before, after = (summed(Sums.of(terms), settings) for terms in (then, other))
    gain = summed(Sums.of(better), settings, subject="the change")
    text = (
        f"{counted(len(gained), 'edge')} gained, {len(lost):,} lost; dividend {after.mean:.3g} instead of "
        f"{before.mean:.3g}; squared error {_smaller(gain)} over {counted(gain.count, 'reward')}"
    )
    return WhatIf(
        settings.policy, settings.parameters, gained, len(gained), lost, len(lost), before, after, gain, text
    )


def _smaller(gain: Dividend) -> str:
    """By how much errors are smaller or larger, without a sign."""
    if gain.mean < 0.0:
        return f"larger by {-gain.mean:.3g} [{-gain.high:.3g}, {-gain.low:.3g}]"
    return f"smaller by {gain.mean:.3g} [{gain.low:.3g}, {gain.high:.3g}]"


def _pairs(edges: Any, names: list[str | None]) -> list[tuple[str, str]]:
    return [(names[i] or "", names[j] or "") for i, j in np.argwhere(np.triu(edges)).tolist()]


def switches(owner: "Owner") -> list[Switch]:
    """See `Population.switches`."""
    store, number = owner.store, owner.number
    found = []
    for seq, one in owner.read(lambda fold: list(fold.history)):
        rows = list(store.read(number, seq - 1, seq))
        found.append(Switch(seq, one.policy, one.parameters, one.by, rows[0].at / 1e6 if rows else None))
    return found


def switch(owner: "Owner", policy: str | None, parameters: dict[str, Any], by: str) -> int:
    """See `Population.switch`."""
    present = owner.read(lambda fold: fold.settings)
    return take_over(owner, other_settings(present, policy, parameters, by))


def switch_back(owner: "Owner", by: str) -> int:
    """See `Population.switch_back`."""
    history = owner.read(lambda fold: list(fold.history))
    if len(history) < 2:
        raise ConflictError(f"population {owner.name!r} has never been switched", None)
    present, past = history[-1][1], history[-2][1]
    return take_over(owner, settings_with(present, past.policy, past.parameters, by))


def take_over(owner: "Owner", settings: Settings, wanted: Callable[[Fold], bool] = lambda _: True) -> int:
    """Put other settings in force; returns the record that says so.

    `ConflictError` if they are no longer `wanted` once the journal has been played.
    """
    owner.writer()  # an error if the population is open for reading only
    while True:
        owner.wait_until_rebuilt()
        with owner.retaining:
            sequence = _try_to_take_over(owner, settings, wanted)
        if sequence is not None:
            return sequence


def _try_to_take_over(owner: "Owner", settings: Settings, wanted: Callable[[Fold], bool]) -> int | None:
    """The same; None if a person was forgotten meanwhile."""
    store, number = owner.store, owner.number
    # Nothing is locked while the journal is played; at the end, the state is checked against this.
    with owner.settled() as state:
        seq, forgotten_at, present = state.seq, state.forgotten_at, state.settings
        if (present.policy, present.parameters) == (settings.policy, settings.parameters):
            return state.history[-1][0]  # in force already, perhaps by an earlier attempt
    fold = refold(owner, settings, seq)  # the long part, while others go on
    base = base_of(store, number)
    at_base = refold(owner, settings, base.seq) if base.seq else None

    def command(turn: "Turn") -> int | None:
        with owner.settled() as state:
            if not wanted(state):
                raise ConflictError(f"population {owner.name!r} should no longer be switched", None)
            # A person forgotten meanwhile is still in what was played: it has to be played again.
            if state.forgotten_at != forgotten_at or owner.is_rebuilding:
                return None
            if not snapshots.catch_up(fold, store, number, state.seq):
                return None
            if at_base is not None:
                # Otherwise a restart would continue from the old policy's state.
                store.set_base(owner.lease, pack_base(base), snapshots.pack(at_base))
            fold.plan = Plan(settings, fold.seq + 1)
            owner.replace(fold)
            turn.fold = fold
            return turn.write(settings, decision=SWITCHES)

    return owner.perform(1, command)
