"""Journals of every schema ever written are read, and say what they said."""

from pathlib import Path

import pytest
from tests.saved.journal import play, said
from tests.saved.reopened import reopened

import shoal

WRITTEN = sorted((Path(__file__).parents[2] / "saved").glob("journal-*"))


def test_there_is_a_journal_of_each_schema() -> None:
    from shoal.live.journal.stores.base import SCHEMA

    assert [path.name for path in WRITTEN] == [f"journal-{number}" for number in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.name)
def test_an_old_journal_says_what_it_said(written: Path, tmp_path: Path) -> None:
    with reopened(written, tmp_path) as (_, shop, expected):
        assert said(shop) == expected
        with pytest.raises(shoal.GoneError):
            shop.reward("visit 11", 1.0)
        shop.reward("visit 7", 3.0)  # the corrected reward, once more
        play(shop, 1000, 12)
