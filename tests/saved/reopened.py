"""Journals that were kept, opened again."""

import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import shoal


@contextmanager
def reopened(written: Path, directory: Path) -> Iterator[tuple[shoal.Controller, shoal.Population, Any]]:
    """A copy of a kept journal: the controller, its population, and what that said when it was kept."""
    copy = shutil.copytree(written, directory / "copy")
    expected = json.loads((copy / "said.json").read_text())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "population 'shop': .* cuts are recorded")  # on another machine
        with shoal.open(copy / "shop.db") as controller:
            shop = controller.population("shop")
            assert shop.sequence - expected.pop("sequence") in (0, 1)  # one more says who opened it
            yield controller, shop, expected
