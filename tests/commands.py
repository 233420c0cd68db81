"""`shoal` as a user calls it, but in this process: one of its own takes a second to load what it needs."""

import contextlib
import io
import os
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from shoal.cli import main


class Done(NamedTuple):
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str


def call(*arguments: str, cwd: Path | None = None, answer: str = "", **environment: str) -> Done:
    """Carry out a command, with these variables added to the environment; `answer` is what a user types.

    Not for what a process does alone: serving, compiling into another cache, dying.
    """
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        patch.object(sys, "argv", ["shoal", *arguments]),
        patch.object(sys, "stdin", io.StringIO(answer)),
        patch.dict(os.environ, {"COLUMNS": "160", "NO_COLOR": "1", **environment}),
        contextlib.chdir(cwd or Path.cwd()),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            main()
        except SystemExit as leaving:
            code = int(leaving.code or 0)
    return Done(code, out.getvalue(), errors.getvalue())
