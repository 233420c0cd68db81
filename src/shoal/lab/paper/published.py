"""Final regret and F1 scores as the paper prints them (Cherkaoui, Barlier and Colin 2025).

Two synthetic scenarios and two datasets have printed figures. The other experiments (M = 6, Gaussian) are
shown only as curves, so there are no digits to compare.
"""

from typing import NamedTuple


class Published(NamedTuple):
    """A printed mean and standard deviation over runs."""

    mean: float
    std: float


class PublishedSetting(NamedTuple):
    """What must agree before a difference from the printed figures means anything."""

    horizon: int
    n_agents: int
    dim: int
    n_arms: int
    gap: float | None = None
    """Smallest distance between two true parameters, to two digits; None for real data."""
    data: str = ""
    """The data set, for real data. Whether a user's file is the same cannot be known."""


RUNS = 50
"""Runs behind every printed figure."""

CPU_HOURS = 50 * 7 * 24
"""What the authors report for all their experiments: a week on 50 CPUs."""

ALPHAS = (0.1, 0.825, 1.55, 2.275, 3.0)
"""Five evenly spaced values of α in the paper's range [0.1, 3.0], of which 0.825 is the best for nearly every
method. The paper gives only the range. That its line search had these values is an inference: with them, 20
of the 22 figures of its main table come out as printed."""

INFERENCE = (
    "that the paper searched these five values is an inference from its figures; it gives only the range"
)
"""What has to be said wherever `ALPHAS` is used."""

VARIANTS = {
    "cmlb-g4-e3000": "cmlb-g4",
    "cmlb-g2-e3000": "cmlb-g2",
    "cmlb-0.1-e3000": "cmlb-0.1",
    "cmlb-1.0-e3000": "cmlb-1.0",
    "bass-d0.1-s5": "bass-d0.1",
    "bass-d0.9-s5": "bass-d0.9",
}
"""Methods with another value of a parameter that the paper does not give, and the published one of each."""

SETTINGS: dict[str, PublishedSetting] = {
    "synthetic-m3-w1": PublishedSetting(horizon=50_000, n_agents=100, dim=10, n_arms=15, gap=0.2),
    "synthetic-m3-w7": PublishedSetting(horizon=50_000, n_agents=100, dim=10, n_arms=15, gap=1.27),
    "movielens-rated": PublishedSetting(
        horizon=50_000, n_agents=100, dim=10, n_arms=30, data="MovieLens 25M"
    ),
    "yahoo-ltr": PublishedSetting(horizon=50_000, n_agents=100, dim=10, n_arms=30, data="Yahoo! C14"),
}

FINAL_REGRET: dict[str, dict[str, Published]] = {
    "synthetic-m3-w1": {
        "ind": Published(6100.7, 468.4),
        "oracle": Published(318.5, 684.0),
        "dynucb": Published(5765.5, 10439.5),
        "club-g4": Published(5772.5, 532.4),
        "club-g2": Published(5739.4, 521.5),
        "sclub-g4": Published(6038.5, 744.8),
        "sclub-g2": Published(6165.6, 366.0),
        "bass-d0.1": Published(1096.8, 411.9),
        "bass-d0.9": Published(1140.5, 641.4),
        "cmlb-g4": Published(5895.3, 382.5),
        "cmlb-g2": Published(5918.1, 431.3),
    },
    "synthetic-m3-w7": {
        "ind": Published(5465.0, 352.7),
        "oracle": Published(292.9, 914.3),
        "dynucb": Published(15081.6, 15299.7),
        "club-g4": Published(5822.7, 430.6),
        "club-g2": Published(6138.1, 659.8),
        "sclub-g4": Published(5949.3, 501.0),
        "sclub-g2": Published(5775.3, 416.8),
        "bass-d0.1": Published(1617.5, 689.8),
        "bass-d0.9": Published(1563.2, 750.7),
        "cmlb-g4": Published(5372.1, 7575.0),
        "cmlb-g2": Published(20948.5, 5355.5),
    },
    "movielens-rated": {
        "ind": Published(11825.2, 594.1),
        "dynucb-m5": Published(16835.0, 5429.9),
        "dynucb-m20": Published(17256.0, 2314.2),
        "club-0.1": Published(11504.2, 509.3),
        "club-1.0": Published(11804.8, 562.4),
        "sclub-0.1": Published(11425.2, 764.0),
        "sclub-1.0": Published(11085.5, 701.3),
        "bass-d0.1": Published(10273.2, 686.3),
        "bass-d0.9": Published(10840.2, 831.7),
        "cmlb-0.1": Published(14944.2, 341.6),
        "cmlb-1.0": Published(12010.8, 669.4),
    },
    "yahoo-ltr": {
        "ind": Published(14800.5, 876.0),
        "dynucb-m5": Published(14689.5, 1912.7),
        "dynucb-m20": Published(16860.5, 1625.3),
        "club-0.1": Published(13321.5, 4228.8),
        "club-1.0": Published(13536.5, 6548.2),
        "sclub-0.1": Published(13663.0, 1444.0),
        "sclub-1.0": Published(13751.5, 820.1),
        "bass-d0.1": Published(12456.0, 2096.1),
        "bass-d0.9": Published(12533.5, 1959.5),
        "cmlb-0.1": Published(16812.5, 405.1),
        "cmlb-1.0": Published(16757.5, 607.2),
    },
}

F1_DIGIT = 0.1
"""F1 scores are printed to one digit: a smaller difference cannot be told from rounding."""

F1: dict[str, dict[str, Published]] = {
    "synthetic-m3-w1": {
        "ind": Published(0.0, 0.0),
        "oracle": Published(1.0, 0.0),
        "dynucb": Published(0.7, 0.1),
        "club-g4": Published(0.0, 0.0),
        "club-g2": Published(0.0, 0.0),
        "sclub-g4": Published(0.0, 0.0),
        "sclub-g2": Published(0.0, 0.0),
        "bass-d0.1": Published(0.7, 0.0),
        "bass-d0.9": Published(0.7, 0.0),
        "cmlb-g4": Published(0.0, 0.0),
        "cmlb-g2": Published(0.0, 0.0),
    },
    "synthetic-m3-w7": {
        "ind": Published(0.0, 0.0),
        "oracle": Published(1.0, 0.0),
        "dynucb": Published(0.9, 0.2),
        "club-g4": Published(0.0, 0.0),
        "club-g2": Published(0.0, 0.0),
        "sclub-g4": Published(0.0, 0.0),
        "sclub-g2": Published(0.0, 0.0),
        "bass-d0.1": Published(0.9, 0.0),
        "bass-d0.9": Published(0.8, 0.0),
        "cmlb-g4": Published(0.0, 0.2),
        "cmlb-g2": Published(0.6, 0.1),
    },
}
