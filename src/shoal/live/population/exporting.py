"""A population's journal as Parquet, JSON lines or a data frame: one row for each arm shown or observed."""

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from shoal.core.atomic import whole_file
from shoal.core.frames import Library, as_frame
from shoal.live.journal import archives
from shoal.live.journal.arms import ArmSet, restored
from shoal.live.journal.fold import Fold
from shoal.live.journal.forgetting import merged_into
from shoal.live.journal.records import (
    Cancelled,
    Corrected,
    Decided,
    Missed,
    Observed,
    Rewarded,
    Row,
    decode,
    vector,
)
from shoal.live.protocol.errors import JournalError

if TYPE_CHECKING:
    from shoal.core.parquet import pa
    from shoal.live.population.owner import Owner

AT_ONCE = 10_000
"""Rows in one row group of a file."""
OFFERS = 1_000
"""Sets of arms that are remembered meanwhile."""


class ExportedLine(msgspec.Struct, frozen=True):
    """An arm that was shown, or observed elsewhere, with what came of it."""

    sequence: int
    """Number of the decision or observation in the journal."""
    kind: str
    """"decision" or "observation"."""
    at: datetime
    agent: str
    id: str | None
    status: str
    """Of the reward: "rewarded", "pending", "missed" or "cancelled"."""
    reward: float | None
    """The reward in force: after corrections; the default, if the reward was missed and there is one."""
    rewarded_at: datetime | None
    """When that reward was recorded."""
    arm: str | None
    """Name of the arm, or its position among those on offer if they have no names."""
    place: int | None
    """In a ranking, from 0 on."""
    arms: str | None
    """Digest of the arms on offer."""
    n_arms: int | None
    probability: float | None
    """With which the arm was chosen; None in rankings."""
    greedy: str | None
    """The arm that the policy preferred."""
    own: float | None
    """Reward of the first arm that the agent's own samples predicted."""
    pooled: float | None
    """Reward of the first arm that the policy predicted."""
    x: list[float]
    """Features of the arm."""
    mode: str | None
    """Who chose: "" for the policy, "holdout" or "apprentice"."""
    baseline: str | None
    """The arm that the product's own rule preferred, if it was told."""


def export(owner: "Owner", path: str | os.PathLike[str], archived: bool) -> int:
    """See `Population.export`."""
    path = Path(path)
    writers = {".parquet": _write_parquet, ".jsonl": _write_json_lines}
    if path.suffix not in writers:
        raise ValueError(f"path must end in .parquet or .jsonl, got {str(path)!r}")
    return writers[path.suffix](path, _lines(owner, archived))


def frame(owner: "Owner", library: Library, archived: bool) -> Any:
    """See `Population.frame`."""
    from shoal.core.parquet import pa

    return as_frame(pa.Table.from_batches(_batches(_lines(owner, archived)), _schema()), library)


def _lines(owner: "Owner", archived: bool) -> Iterator[ExportedLine]:
    owner.wait_until_rebuilt()
    with owner.settled() as fold:
        seq = fold.seq
    return Exporter(owner, fold, seq, archived).lines()


class Exporter:
    """Reads a journal, archived parts too, and finds what its rows refer to."""

    def __init__(self, owner: "Owner", fold: Fold, seq: int, archived: bool) -> None:
        self._store, self._number, self._name = owner.store, owner.number, owner.name
        self._fold, self._seq, self._archived = fold, seq, archived
        self._outcomes: dict[tuple[str, int], tuple[str, float | None, int]] = {}
        self._sets: dict[bytes, ArmSet] = {}
        self._more_arms: dict[bytes, bytes] = {}
        if archived:
            self._more_arms = archives.arms_in(archives.base_of(self._store, self._number).archives)

    def _rows(self) -> Iterator[Row]:
        if self._archived:
            return archives.journal(self._store, self._number, self._seq)
        return self._store.read(self._number, 0, self._seq)

    def lines(self) -> Iterator[ExportedLine]:
        """A line for each arm shown or observed."""
        for row in self._rows():  # first what came of each decision, then the decisions
            record = decode(row.body)
            match record:
                case Rewarded():
                    self._outcomes[record.id, record.place] = ("rewarded", record.reward, row.at)
                case Missed():
                    self._outcomes[record.id, record.place] = ("missed", record.reward, row.at)
                case Corrected():
                    self._outcomes[record.id, record.place] = ("rewarded", record.new, row.at)
                case Cancelled():
                    self._outcomes[record.id, -1] = ("cancelled", None, row.at)
        for row in self._rows():
            record = decode(row.body)
            match record:
                case Decided():
                    yield from self._of_decision(row, record)
                case Observed():
                    yield ExportedLine(
                        row.seq, "observation", _time(row.at), self._agent(record.agent), record.id,
                        "rewarded", record.reward, _time(row.at), record.arm, None, None, None, None, None,
                        None, None, vector(record.x).tolist(), None, None,
                    )  # fmt: skip

    def _of_decision(self, row: Row, record: Decided) -> Iterator[ExportedLine]:
        offer = self.offer(record.arms)
        features = vector(record.x).reshape(len(record.shown), -1)
        cancelled = self._outcomes.get((record.id, -1))
        for place, position in enumerate(record.shown):
            status, reward, at = cancelled or self._outcomes.get((record.id, place), ("pending", None, 0))
            yield ExportedLine(
                row.seq, "decision", _time(row.at), self._agent(record.agent), record.id, status, reward,
                _time(at) if reward is not None else None, str(offer.name(position)), place,
                record.arms.hex(), len(offer), record.probability, str(offer.name(record.greedy)),
                record.own, record.pooled, features[place].tolist(), record.mode,
                str(offer.name(record.baseline[place])) if place < len(record.baseline) else None,
            )  # fmt: skip

    def owner(self, agent: int) -> int:
        """The agent that another one turned out to be; itself, usually."""
        return merged_into(self._fold, agent)

    def _agent(self, agent: int) -> str:
        return self._fold.called[self.owner(agent)] or ""

    def offer(self, digest: bytes) -> ArmSet:
        """A set of arms that was on offer."""
        if digest not in self._sets:
            if len(self._sets) >= OFFERS:
                self._sets.clear()
            self._sets[digest] = restored(self._find(digest), self._fold.settings.dim, self._find)
        return self._sets[digest]

    def _find(self, digest: bytes) -> bytes:
        data = self._more_arms.get(digest) or self._store.arms(self._number, digest)
        if data is None:
            raise JournalError(f"population {self._name!r} lacks the arms {digest.hex()}")
        return data


def _time(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1e6, UTC)


def _write_json_lines(path: Path, lines: Iterator[ExportedLine]) -> int:
    encoder, count = msgspec.json.Encoder(), 0
    with whole_file(path) as file:
        while group := list(islice(lines, AT_ONCE)):
            file.write(encoder.encode_lines(group))
            count += len(group)
    return count


def _schema() -> "pa.Schema":
    from shoal.core.parquet import pa

    text, real, time = pa.string(), pa.float64(), pa.timestamp("us", tz="UTC")
    types = {
        "sequence": pa.int64(), "kind": text, "at": time, "agent": text, "id": text, "status": text,
        "reward": real, "rewarded_at": time, "arm": text, "place": pa.int32(), "arms": text,
        "n_arms": pa.int32(), "probability": real, "greedy": text, "own": real, "pooled": real,
        "x": pa.list_(real), "mode": text, "baseline": text,
    }  # fmt: skip
    return pa.schema(list(types.items()))


def _batches(lines: Iterator[ExportedLine]) -> "Iterator[pa.RecordBatch]":
    from shoal.core.parquet import pa

    schema = _schema()
    while group := list(islice(lines, AT_ONCE)):
        yield pa.record_batch(
            [[getattr(line, name) for line in group] for name in schema.names], schema=schema
        )


def _write_parquet(path: Path, lines: Iterator[ExportedLine]) -> int:
    from shoal.core.parquet import pq

    count = 0
    with whole_file(path) as file, pq.ParquetWriter(file, _schema(), compression="zstd") as writer:
        for batch in _batches(lines):
            writer.write_batch(batch)
            count += batch.num_rows
    return count
