"""Journals of every schema ever written are read, and say what they said."""

import json
import shutil
import warnings
from pathlib import Path

import pytest
from tests.saved.journal import play, said

import shoal

WRITTEN = sorted((Path(__file__).parents[1] / "saved").glob("journal-*"))


def test_there_is_a_journal_of_each_schema() -> None:
    from shoal.controller.stores.base import SCHEMA

    assert [path.name for path in WRITTEN] == [f"journal-{number}" for number in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.name)
def test_an_old_journal_says_what_it_said(written: Path, tmp_path: Path) -> None:
    directory = shutil.copytree(written, tmp_path / "copy")
    expected = json.loads((directory / "said.json").read_text())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "population 'shop': .* cuts are recorded")  # on another machine
        with shoal.open(directory / "shop.db") as controller:
            shop = controller.population("shop")
            assert shop.sequence - expected.pop("sequence") in (0, 1)  # one more says who opened it
            assert said(shop) == expected
            with pytest.raises(shoal.GoneError):
                shop.reward("visit 11", 1.0)
            shop.reward("visit 7", 3.0)  # the corrected reward, once more
            play(shop, 1000, 12)
