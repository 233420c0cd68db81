"""Where journals are kept: in memory, in SQLite or on a PostgreSQL server, all by one contract."""

from shoal.live.journal.stores.base import LEASE, Store
from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.journal.stores.sqlite import SQLiteStore


def open_store(url: str, *, sync: str = "full", read_only: bool = False, lease: float = LEASE) -> Store:
    """The store at a URL: `:memory:`, `postgresql://…`, or the path of an SQLite file."""
    if url == ":memory:":
        return MemoryStore()
    if "://" not in url:
        return SQLiteStore(url, sync=sync, read_only=read_only)
    from shoal.live.journal.stores.postgres import PostgresStore

    return PostgresStore(url, sync=sync, read_only=read_only, lease=lease)
