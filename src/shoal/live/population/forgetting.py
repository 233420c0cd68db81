"""Forgetting a person: from the state, the journal, snapshots and archives."""

from collections.abc import Callable

from shoal.live.journal.fold import Fold
from shoal.live.journal.forgetting import Trail, keyed_hash, merged_into, names_with
from shoal.live.journal.records import Forgotten
from shoal.live.journal.stores.base import Batch
from shoal.live.population import retention
from shoal.live.population.commands import Turn
from shoal.live.population.owner import Owner
from shoal.live.protocol.errors import ControllerError, UnavailableError

Remember = Callable[[int, list[bytes]], None]
"""Keeps hashes of who was forgotten beside the store, by the population's number."""


def forget(owner: Owner, agent: str, remember: Remember) -> None:
    """See `Population.forget`."""
    seconds, store, number = owner.writer().lease, owner.store, owner.number
    with owner.settled() as fold:
        found = Trail(store, number, fold, _same_person(owner, fold, agent))
        before = found.agents, fold.forgotten_at, owner.base.seq
    found.read_on()  # the long part, while others go on
    with owner.settled() as fold:
        agents = _same_person(owner, fold, agent)
        if before != (agents, fold.forgotten_at, owner.base.seq):
            found = Trail(store, number, fold, agents)
        found.read_on()
        left = found.traces(fold)
        hashes = [*left.hashes]
        hashes += [hashed for hashed, agent_ in owner.base.joined if agent_ in agents]
        hashes += [keyed_hash(fold, "agent", name) for name, i in fold.names.items() if i in agents]
        turn = Turn(fold, owner.now)
        turn.write(Forgotten(tuple(sorted(agents))))
        batch = Batch(owner.lease, turn.rows, [])
        try:
            left = left._replace(hashes=hashes, base=retention.base_without(owner, agents))
            store.forget(batch, left, seconds)
        except Exception as error:
            owner.lose(error if isinstance(error, ControllerError) else UnavailableError(str(error)))
            raise
        owner.lease = owner.lease._replace(last_seq=fold.seq)
        remember(number, hashes)
        owner.commands.forget(agents)
        if owner.snapshotter is not None:
            owner.snapshotter.stop()
        for epoch, seq in store.snapshots(number):
            store.delete_snapshot(number, epoch, seq)
        owner.snapshot_seq = 0
    store.scrub()
    rebuild_soon(owner)


def _same_person(owner: Owner, fold: Fold, agent: str) -> set[int]:
    """An agent, and those who turned out to be the same."""
    index = owner.commands.agent(fold, agent)
    return {index, *(other for other in fold.merged if merged_into(fold, other) == index)}


def forget_again(owner: Owner, hashes: set[bytes], remember: Remember) -> None:
    """Forget those who are back, by a restored backup, although they were forgotten."""
    for name in owner.read(lambda fold: names_with(owner.store, owner.number, fold, hashes)):
        forget(owner, name, remember)


def rebuild_soon(owner: Owner) -> None:
    """Clean the archives and fold the journal again, in the background."""
    owner.rebuild_soon(lambda: retention.clean(owner))
