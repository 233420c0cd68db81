"""Writing files so that readers see either the complete file or none."""

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any


def write_whole(path: Path, content: Any) -> None:
    """Write a file atomically: a crash at any moment leaves the old file (or none) or the new one.

    Parameters
    ----------
    path : Path
    content : bytes-like

    Raises
    ------
    OSError
        With the path and the reason, if it cannot be written; the old file is then unchanged.
    """
    with whole_file(path) as handle:
        handle.write(content)


@contextlib.contextmanager
def whole_file(path: Path, temporary: Path | None = None) -> Iterator[IO[bytes]]:
    """A file to write to, which replaces `path` at the end of the block, atomically; not if that fails.

    It is written under a temporary name, flushed to disk and renamed. A killed writer leaves that file, which
    is called `.*.tmp` unless `temporary` is given.
    """
    if temporary is None:
        # Unique: two threads may write the same file. Short: the path's name may be at the limit.
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as handle:
            yield handle
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"could not be written: {reason}", str(path)) from None
    finally:  # still there only if something went wrong, such as an interrupt
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    if sys.platform != "win32":  # a rename is durable only once its directory is synced
        handle_of_directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle_of_directory)
        finally:
            os.close(handle_of_directory)
