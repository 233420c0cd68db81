"""Writing files so that a reader sees a whole one or none."""

import contextlib
import os
import sys
import uuid
from pathlib import Path
from typing import Any


def write_whole(path: Path, content: Any) -> None:
    """Write a file so that a crash at any moment leaves the old one, or none, or the new one.

    Parameters
    ----------
    path : Path
    content : bytes-like
        Written under a temporary name, flushed to the disk and renamed. A killed writer leaves a file
        `.*.tmp`.

    Raises
    ------
    OSError
        With the path and the reason, if it cannot be written; the old file is then as it was.
    """
    # A name of the writer's own: two threads may write the same file. And short, however long the path's is.
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with temporary.open("xb") as handle:
            handle.write(content)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise OSError(error.errno, f"could not be written: {reason}", str(path)) from None
    finally:  # it is there only if something went wrong, an interrupt included
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    if sys.platform != "win32":  # a rename is on the disk once its directory is
        handle_of_directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle_of_directory)
        finally:
            os.close(handle_of_directory)
