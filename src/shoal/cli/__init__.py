"""The command line. Each command parses, calls the library and prints."""

import os
import sys


def main() -> None:
    """Run the command line. Errors that a user can fix become one line each on stderr, and exit code 2."""
    from shoal.live.protocol.errors import ControllerError

    try:
        from shoal.cli.app import app  # here, so that an interrupt while it loads is caught too

        app()
    except KeyboardInterrupt:
        print("shoal: stopped", file=sys.stderr)
        _leave_at_once()
    except (ValueError, OSError, RuntimeError, MemoryError, ControllerError) as error:
        if isinstance(error, RuntimeError) and type(error) is not RuntimeError:
            raise  # such as RecursionError: a bug, not a user's mistake
        for line in getattr(error, "problems", (_one_line(error),)):
            print(f"shoal: {' '.join(line.split())}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        if error.name is not None:  # raised by an import, not by us with advice: a bug
            raise
        print(f"shoal: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as leaving:
        if leaving.code == 130:
            _leave_at_once()
        raise


def _leave_at_once() -> None:
    """Exit after an interrupt, without waiting for threads: one that compiles cannot be stopped."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(130)


def _one_line(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__
