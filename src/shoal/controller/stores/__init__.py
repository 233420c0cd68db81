"""Where journals are kept. One small contract, three stores: memory, an SQLite file, a PostgreSQL server."""
