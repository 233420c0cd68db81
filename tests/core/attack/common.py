"""What the attacks share."""

import os
import subprocess
import sys

SCALE = int(os.environ.get("SHOAL_CHAOS", "1"))
"""How many times as many attacks to make; `make chaos` sets it."""


def run(*arguments: str, timeout: float = 900.0) -> subprocess.CompletedProcess[str]:
    """Run a Python process that may crash or hang, where a crash or hang does not end the tests."""
    return subprocess.run(
        [sys.executable, "-W", "error", *arguments], capture_output=True, text=True, timeout=timeout * SCALE
    )
