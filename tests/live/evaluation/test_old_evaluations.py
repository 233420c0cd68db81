"""Journals with holdouts, guarded agents and switches, as they were first written, say what they said."""

from pathlib import Path

import pytest
from tests.saved.evaluated import play, said
from tests.saved.reopened import reopened

WRITTEN = sorted((Path(__file__).parents[2] / "saved").glob("evaluated-*"))


@pytest.mark.parametrize("written", WRITTEN, ids=lambda path: path.name)
def test_an_old_journal_says_what_it_said(written: Path, tmp_path: Path) -> None:
    with reopened(written, tmp_path) as (controller, shop, expected):
        found = said(shop)
        assert [one[:1] for one in found["dividends"].values()] == [
            one[:1] for one in expected["dividends"].values()
        ]
        for name, (_, mean, guarded) in expected["dividends"].items():
            assert found["dividends"][name][1:] == [pytest.approx(mean), guarded]
        assert found["uplift"] == pytest.approx(expected["uplift"])
        assert (found["switches"], found["agents"]) == (expected["switches"], expected["agents"])
        play(shop, 1000, 12)
        shop.switch_back()
        assert controller.verify() == {"shop": []}


def test_there_is_one() -> None:
    assert WRITTEN
