"""Checks of a population: its journal is whole, and its state is the fold of it, bit for bit."""

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from shoal.live.journal import snapshots
from shoal.live.journal.archives import Base, base_of, check, is_there
from shoal.live.journal.fold import Fold, current_stamp
from shoal.live.journal.records import Cancelled, Decided, Missed, Rewarded, decode
from shoal.live.protocol.errors import JournalError

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner


def verify(owner: "Owner") -> list[str]:
    """What is wrong with a population, as sentences; nothing if all is well.

    Reads the whole journal. Sequence numbers must be gapless, every decision settled at most once, and the
    state in memory the one that the journal gives when it is applied again from the start. Where a part has
    been archived, the base is the start; if all archives are there, it must be what they give.
    """
    owner.wait_until_rebuilt()
    content, seq = owner.packed()
    base = base_of(owner.store, owner.number)
    problems = _problems_of_journal(owner, base.seq, seq)
    fold, found = _fold_again(owner, base)
    problems += found
    try:
        snapshots.catch_up(fold, owner.store, owner.number, seq, is_base=True)
    except (JournalError, ValueError) as error:
        return [*problems, f"the journal cannot be applied: {error}"]
    problems += fold.differences
    if fold.stamp == current_stamp() and not fold.differences and snapshots.pack(fold) != content:
        problems.append(f"the state in memory is not what the journal gives up to record {seq}")
    return problems


def _fold_again(owner: "Owner", base: Base) -> tuple[Fold, list[str]]:
    """The state up to the base, and what is wrong with archives that are there."""
    store, number = owner.store, owner.number
    problems = []
    for archive in base.archives:
        if is_there(archive):
            try:
                check(archive)
            except JournalError as error:
                problems.append(str(error))
    plan = snapshots.plan_of(store, number)
    fold = snapshots.from_base(store, number, base, plan, checks=True)
    if base.seq and not problems and all(is_there(one) and not one.wipe for one in base.archives):
        again = snapshots.from_archives(base.archives, base.seq, fold.plan, checks=True)
        problems += again.differences
        if again.stamp == current_stamp() and snapshots.pack(again) != snapshots.pack(fold):
            problems.append(f"the base at record {base.seq} is not what the archives give")
    return fold, problems


def _problems_of_journal(owner: "Owner", after: int, last: int) -> list[str]:
    problems: list[str] = []
    expected = after + 1
    counted: Counter[tuple[str, int]] = Counter()
    decided: set[str] = set()
    for row in owner.store.read(owner.number, after, last):
        if row.seq != expected:
            problems.append(f"record {expected} is missing")
        expected = row.seq + 1
        try:
            record = decode(row.body)
        except msgspec.MsgspecError as error:
            problems.append(f"record {row.seq} cannot be read: {error}")
            continue
        if isinstance(record, Decided):
            if record.id in decided:
                problems.append(f"record {row.seq} is a second decision {record.id!r}")
            decided.add(record.id)
        elif isinstance(record, Rewarded) or (isinstance(record, Missed) and record.reward is not None):
            counted[record.id, record.place] += 1
        elif isinstance(record, Cancelled):
            counted[record.id, 0] += 1
    problems += [
        f"decision {decision!r} was settled {count} times"
        for (decision, _), count in counted.items()
        if count > 1
    ]
    if expected != last + 1:
        problems.append(f"the journal ends at record {expected - 1}, not {last}")
    return problems
