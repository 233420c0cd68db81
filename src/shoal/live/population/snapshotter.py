"""Writes a population's next snapshot, in a process of its own, so that nobody waits for it.

    python -m shoal.live.population.snapshotter URL POPULATION

It loads the last snapshot, applies the rows that have come since and writes the next one, which checks them
on the way: the cuts that are recorded must be those computed, and the predictions of a sample of decisions
the recorded ones, bit for bit. With `-` for the URL, that is read from the standard input, as it may hold a
password. The controller starts one every `snapshot_every` rows. Killed at any moment it leaves nothing but
an unfinished file, which the next owner deletes.
"""

import contextlib
import logging
import os
import subprocess
import sys
import tempfile
import threading
from typing import IO, TYPE_CHECKING, NamedTuple

from shoal.live.journal import snapshots
from shoal.live.journal.fold import Fold, current_stamp
from shoal.live.journal.records import Decided, Forgotten, Row, decode
from shoal.live.journal.stores import open_store
from shoal.live.journal.stores.base import Snapshot, Store
from shoal.live.protocol.errors import ControllerError, UnknownError

if TYPE_CHECKING:
    from shoal.live.population.owner import Owner

EVERY = 50_000
"""Rows after which the next snapshot is written, by default."""
AT_CLOSE = 10
"""When a population is closed, this part of that number is enough."""
SAMPLED = 50
"""One decision in this many has its predictions checked."""
NICENESS = 10

log = logging.getLogger("shoal.controller")


class Report(NamedTuple):
    """What came of it."""

    seq: int
    """The snapshot's, or 0 if none was written."""
    checked: int
    """Decisions whose predictions were compared."""
    differences: list[str]


class Sample:
    """Compares predictions with those recorded, before the decisions among the rows are applied."""

    def __init__(self, one_in: int = SAMPLED) -> None:
        self._one_in, self._stamp = one_in, current_stamp()
        self._start = self._seen = 0
        self._found: list[tuple[int, str]] = []
        self.checked = 0

    def __call__(self, fold: Fold, row: Row) -> None:
        """Look at a row that is about to be applied."""
        if row.seq <= self._seen or not self._seen:  # the loading has begun again
            self._start, self._found, self.checked = fold.seq, [], 0
        self._seen = row.seq
        if row.seq * 2_654_435_761 % 2**32 >= 2**32 // self._one_in or fold.stamp != self._stamp:
            return
        if fold.plan is not None and row.seq < fold.plan.until:  # another policy's predictions
            return
        record = decode(row.body)
        if isinstance(record, Decided):
            self.checked += 1
            predicted = fold.predict(record)
            if predicted != (record.own, record.pooled):
                self._found.append(
                    (
                        row.seq,
                        f"record {row.seq} predicts {record.own!r} and {record.pooled!r}, and the "
                        f"journal {predicted[0]!r} and {predicted[1]!r}",
                    )
                )

    def differences(self, fold: Fold) -> list[str]:
        """What was found, as far as it means anything.

        Predictions made before a person was forgotten rest on their samples; so may, if rows were applied
        from before that time on, the first ones after it, until the state had been rebuilt.
        """
        return [text for _, text in self._found] if fold.forgotten_at <= self._start else []


def write_snapshot(store: Store, name: str) -> Report:
    """Write the next snapshot of a population, unless something is wrong."""
    number = store.populations().get(name)
    if number is None:
        raise UnknownError(f"{store.url} has no population {name!r}")
    epoch, sample = store.epoch(number), Sample()
    fold = snapshots.load(store, number, watch=sample, checks=True)
    wrong = sample.differences(fold)
    if not wrong:
        store.save_snapshot(number, Snapshot(epoch, fold.seq, snapshots.pack(fold)))
        # People forgotten after the rows were read must not be left in it. The owner records that first
        # and deletes snapshots then; so either it deletes this one, or we see the record.
        if any(isinstance(decode(row.body), Forgotten) for row in store.read(number, fold.seq)):
            store.delete_snapshot(number, epoch, fold.seq)
        snapshots.prune(store, number)
    return Report(0 if wrong else fold.seq, sample.checked, [*fold.differences, *wrong])


def main(arguments: list[str]) -> int:
    """Run as a program; the exit code, 3 if there are differences."""
    if len(arguments) != 2:
        print("usage: python -m shoal.live.population.snapshotter URL POPULATION", file=sys.stderr)
        return 2
    url, name = arguments
    if url == "-":
        url = sys.stdin.readline().rstrip("\n")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    try:
        with contextlib.closing(open_store(url, read_only="://" not in url)) as store:
            report = write_snapshot(store, name)
    except (ControllerError, OSError) as error:
        print(f"shoal: {error}", file=sys.stderr)
        return 1
    print(f"snapshot {report.seq}, {report.checked} predictions checked")
    for text in report.differences:
        print(f"shoal: {text}", file=sys.stderr)
    return 3 if report.differences else 0


class Process:
    """The process that writes a population's snapshots: at most one at a time.

    Parameters
    ----------
    url : str
        Of the store, with its password.
    every : int
        Rows after which the next snapshot is due.
    """

    def __init__(self, url: str, every: int) -> None:
        self._url, self._every = url, every
        self._running: subprocess.Popen[bytes] | None = None
        self._errors: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._last = -1
        """Sequence number at which the last one was started."""
        self._written = 0
        """The last sequence number that a snapshot is known to hold."""

    def tend(self, owner: "Owner") -> None:
        """Start one if it is due, and warn if the last one failed. Never raises."""
        try:
            with self._lock:
                if self._running is not None and self._running.poll() is not None:
                    self._finish(owner.name)
                if self._running is None and not self._closed and self._rows(owner) >= self._every:
                    self._start(owner)
        except Exception as error:
            log.warning("population %r: no snapshot could be started: %s", owner.name, error)
            self._last = owner.lease.last_seq

    def age(self, owner: "Owner") -> int:
        """Records that opening the population would have to apply."""
        return owner.lease.last_seq - max(self._written, owner.snapshot_seq)

    def due_at_close(self, owner: "Owner") -> bool:
        """Whether enough rows have come for a snapshot when the population is closed."""
        return self._rows(owner) >= max(1, self._every // AT_CLOSE)

    def stop(self) -> None:
        """Kill it, if it runs."""
        with self._lock:
            self._stop()

    def close(self) -> None:
        """Kill it, and start none any more."""
        with self._lock:
            self._closed = True
            self._stop()

    def _stop(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.wait()
            self._running = None
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _rows(self, owner: "Owner") -> int:
        """Rows that have come since the last snapshot."""
        if self._last < 0:
            found = owner.store.snapshots(owner.number)
            self._last = self._written = found[0][1] if found else owner.base.seq
        return owner.lease.last_seq - max(self._last, owner.snapshot_seq)

    def _start(self, owner: "Owner") -> None:
        if owner.is_rebuilding:
            return
        self._last = owner.lease.last_seq
        said = f"{self._url}\n".encode()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._running = subprocess.Popen(
            [sys.executable, "-m", __name__, "-", owner.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
            start_new_session=True,  # an interrupt from the keyboard is not for it
        )
        assert self._running.stdin is not None
        with self._running.stdin as given:
            given.write(said)

    def _finish(self, name: str) -> None:
        assert self._running is not None
        assert self._errors is not None
        if not self._running.returncode:
            self._written = self._last
        else:
            self._errors.seek(0)
            lines = self._errors.read().decode(errors="replace").splitlines()
            why = "; ".join(line.removeprefix("shoal: ") for line in lines[-3:])
            log.warning(
                "population %r: writing a snapshot ended with %d: %s", name, self._running.returncode, why
            )
        self._stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
