"""What SQLite and PostgreSQL have in common: how journals are read, and why the fence refuses."""

from abc import abstractmethod
from typing import Any, ClassVar

from shoal.live.journal.records import Row
from shoal.live.journal.stores.base import Batch, Store
from shoal.live.protocol.errors import NotOwnerError, UnavailableError

COLUMNS = "seq, at, agent, decision, body"
"""Of a journal's table, in the order of `Row`."""


class SQLStore(Store):
    """A store with tables. What differs is how their names begin and how values stand in a query."""

    prefix: ClassVar[str]
    mark: ClassVar[str]
    by_decision: ClassVar[str] = "journal"
    """The journal as it stands in a query that looks a decision up."""

    @abstractmethod
    def _query(self, sql: str, *values: Any) -> list[Any]:
        """All rows that a query finds."""

    def _select(self, columns: str, table: str, *where: Any, order: str = "") -> list[Any]:
        """Rows of a table; `where` has columns and the values that they must have, in turn."""
        conditions = " AND ".join(f"{column} = {self.mark}" for column in where[::2])
        sql = f"SELECT {columns} FROM {self.prefix}{table}"
        sql += f" WHERE {conditions}" if conditions else ""
        return self._query(f"{sql} {order}", *where[1::2])

    def _number(self, column: str, population: int) -> int:
        found = self._select(column, "population", "id", population)
        return int(found[0][0]) if found else 0

    def _content(self, column: str, table: str, *where: Any) -> bytes | None:
        found = self._select(column, table, *where)
        return bytes(found[0][0]) if found else None

    def populations(self) -> dict[str, int]:
        return dict(self._select("name, id", "population", order="ORDER BY name"))

    def last_seq(self, population: int) -> int:
        return self._number("last_seq", population)

    def epoch(self, population: int) -> int:
        return self._number("epoch", population)

    def find(self, population: int, decision: str) -> list[Row]:
        where = "population", population, "decision", decision
        return list(map(Row._make, self._select(COLUMNS, self.by_decision, *where, order="ORDER BY seq")))

    def arms(self, population: int, digest: bytes) -> bytes | None:
        return self._content("body", "arms", "population", population, "digest", digest)

    def gone(self, population: int) -> list[bytes]:
        return [bytes(one) for (one,) in self._select("hash", "gone", "population", population)]

    def base(self, population: int) -> bytes | None:
        return self._content("body", "base", "population", population)

    def base_state(self, population: int) -> bytes | None:
        return self._content("state", "base", "population", population)

    def _moved_on(self, db: Any, batch: Batch) -> Exception | None:
        """Why the fence refused a batch: it is there already, another server took over, or we are behind."""
        (population, epoch, last_seq, appender), rows, _ = batch
        found = db.execute(
            f"SELECT epoch, last_seq, owner, name FROM {self.prefix}population WHERE id = {self.mark}",
            (population,),
        ).fetchone()
        if found is None:
            return NotOwnerError(f"{self.url} no longer has population number {population}")
        now, seq, owner, name = found
        if (now, owner) != (epoch, appender):
            return NotOwnerError(
                f"population {name!r} in {self.url} was taken over by {owner or 'another process'} "
                f"(epoch {now})"
            )
        if seq == last_seq + len(rows):  # ours, or what an earlier append did that nobody waits for any more
            there = db.execute(
                f"SELECT {COLUMNS} FROM {self.prefix}journal "
                f"WHERE population = {self.mark} AND seq > {self.mark} ORDER BY seq",
                (population, last_seq),
            ).fetchall()
            if there == [tuple(row) for row in rows]:
                return None
        return UnavailableError(f"the journal of population {name!r} is at record {seq}, not {last_seq}")
