"""What is recorded, and what follows from it: records, their fold, stores, snapshots, archives."""

try:
    import fcntl as fcntl
except ImportError as error:
    raise ImportError(
        "populations need Linux or macOS: their files are locked by fcntl, which Windows does not have"
    ) from error
