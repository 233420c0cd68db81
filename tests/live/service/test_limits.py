"""Token buckets, with a clock of the tests' own."""

import pytest

from shoal.live.service.limits import REMEMBERED, Limits, whole_seconds


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_then_the_rate() -> None:
    clock = Clock()
    limits = Limits(8.0, 2.0, clock)
    assert [limits.take("a") for _ in range(16)] == [0.0] * 16
    assert limits.take("a") == 0.125
    assert limits.take("b") == 0.0
    clock.now += 0.125
    assert limits.take("a") == 0.0
    assert limits.take("a") == 0.125
    clock.now += 1000.0
    assert sum(limits.take("a") == 0.0 for _ in range(50)) == 16


def test_over_any_time_no_more_than_the_rate() -> None:
    clock = Clock()
    limits = Limits(5.0, 1.0, clock)
    had = 0
    for _ in range(10_000):
        clock.now += 0.01
        had += limits.take("a") == 0.0
    assert had in (5 + 500 - 1, 5 + 500)


def test_batches_are_paid_for_later() -> None:
    clock = Clock()
    limits = Limits(10.0, 2.0, clock)
    assert limits.take("a") == 0.0
    limits.charge("a", 99)
    assert limits.take("a") == pytest.approx(8.1)
    clock.now += 8.11
    assert limits.take("a") == 0.0


def test_none_and_one_s_own() -> None:
    limits = Limits(0.0)
    assert all(limits.take("a") == 0.0 for _ in range(1000))
    assert limits.take("a", 0.5) == 0.0
    assert limits.take("a", 0.5) > 0.0
    assert Limits(0.001).take("b", 0.0) == 0.0


def test_bounded() -> None:
    limits = Limits(1.0)
    for n in range(REMEMBERED + 100):
        limits.take(str(n))
    assert len(limits._buckets) == REMEMBERED


def test_seconds_to_wait_are_whole() -> None:
    assert [whole_seconds(wait) for wait in (0.01, 1.0, 1.2)] == ["1", "1", "2"]
