"""Stores of every released format are read, with and without their snapshots, and say what they said."""

import json
import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.saved.make import play, said

import shoal
from shoal.core.policy.files import FORMAT
from shoal.live.journal import snapshots
from shoal.live.journal.stores.base import SCHEMA
from shoal.live.protocol.errors import JournalError

SAVED = Path(__file__).parents[2] / "saved"
FORMATS = [SAVED / f"format-{number}" for number in range(1, FORMAT + 1)]


def approximate(value: Any) -> Any:
    """To compare with: on another machine the last digits may be others."""
    if isinstance(value, dict):
        return {key: approximate(one) for key, one in value.items()}
    if isinstance(value, list):
        return [approximate(one) for one in value]
    return pytest.approx(value, nan_ok=True) if isinstance(value, float) else value


@pytest.mark.parametrize("written", FORMATS, ids=lambda path: path.name)
@pytest.mark.parametrize("has_snapshot", [True, False])
def test_a_store_says_what_it_said(written: Path, has_snapshot: bool, tmp_path: Path) -> None:
    copy = shutil.copytree(written, tmp_path / "copy")
    expected = json.loads((copy / "store.json").read_text())
    assert list((copy / "shop.db-snapshots").iterdir())
    if not has_snapshot:
        shutil.rmtree(copy / "shop.db-snapshots")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "population '.*': .* cuts are recorded")  # on another machine
        with shoal.open(copy / "shop.db") as controller:
            shop, shelf = controller.population("shop"), controller.population("shelf")
            assert shop.sequence - expected.pop("sequence") in (0, 1)  # one more says who opened it
            first, second = expected.pop("ranking")
            assert said(shop) == approximate(expected)
            assert shelf.graph().edges.sum() == 2
            with pytest.raises(shoal.GoneError):
                shop.reward("more 5 15", 1.0)
            shop.reward("honest 9", 0.5)  # the corrected reward, once more
            shelf.reward("ranking", 1.0, arm=second)
            shelf.reward("ranking", 2.0, arm=first)
            play(shop, 1000, 12)
            shop.switch_back()
            assert controller.verify() == {"shelf": [], "shop": []}


def test_a_store_of_a_newer_schema_is_refused(tmp_path: Path) -> None:
    shoal.open(tmp_path / "shop.db").close()
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        db.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    said = rf"shop.db has schema {SCHEMA + 1}, and this is shoal [\w.]+, which reads schema {SCHEMA}$"
    with pytest.raises(JournalError, match=said):
        shoal.open(tmp_path / "shop.db")


def test_a_snapshot_of_a_newer_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with shoal.open(":memory:") as controller:
        shop = controller.population("shop", policy="independent", dim=2)
        shop.observe("ada", [1.0, 0.0], 1.0)
        monkeypatch.setattr(snapshots, "FORMAT", 2)
        content, _ = shop.owner.packed()
    monkeypatch.undo()
    with pytest.raises(snapshots.SnapshotError, match="a has format 2; this version of shoal reads up to 1"):
        snapshots.unpack(content, "a")
