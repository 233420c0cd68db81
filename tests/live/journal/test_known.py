"""Known ids: none that was added is denied, few others are taken for known, and they cost two bytes each."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.live.journal.known import KnownIds

KEY = b"k" * 16


def filled(n: int) -> KnownIds:
    known = KnownIds()
    for i in range(n):
        known.add(f"id-{i}", KEY)
    return known


@pytest.mark.parametrize("n", [1, 4_096, 4_097, 60_000])
def test_no_added_id_is_denied_and_few_others_are_known(n: int) -> None:
    known = filled(n)
    assert all(known.may_hold(f"id-{i}", KEY) for i in range(n))
    wrong = sum(known.may_hold(f"other-{i}", KEY) for i in range(20_000))
    assert wrong < 200  # 1 in 100
    assert sum(map(len, known.layers)) <= 8_192 + 4 * n


def test_nothing_is_known_at_first() -> None:
    assert not KnownIds().may_hold("id", KEY)


def test_the_key_decides_which_ids_collide() -> None:
    known = filled(4_096)
    taken = [i for i in range(20_000) if known.may_hold(f"other-{i}", KEY)]
    assert sum(known.may_hold(f"other-{i}", b"another") for i in taken) <= 2


@given(st.lists(st.text(min_size=1), max_size=30))
def test_saved_and_read_back_it_is_the_same(ids: list[str]) -> None:
    known = KnownIds()
    for one in ids:
        known.add(one, KEY)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(known), type=KnownIds)
    assert again == known
    assert all(again.may_hold(one, KEY) for one in ids)
