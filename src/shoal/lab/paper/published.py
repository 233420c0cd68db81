"""Final regret and F1 scores as the paper prints them (Cherkaoui, Barlier and Colin 2025).

Two synthetic scenarios and two datasets have printed figures. The other experiments (M = 6, Gaussian) are
shown only as curves, so there are no digits to compare.
"""

import tomllib
from importlib import resources
from typing import NamedTuple


class Published(NamedTuple):
    """A printed figure and what follows its ±. What they are the paper does not say, see `STATISTICS`."""

    value: float
    spread: float


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
    statistic: str = "undecided"
    """What the printed regrets are, as far as their digits tell: see `STATISTICS`."""


STATISTICS = {
    "undecided": (
        "The paper calls its figures averaged. Their digits do not tell whether those of the synthetic "
        "scenarios are means or medians over runs."
    ),
    "median": (
        "The printed regrets on real data are medians by their last digits (an inference): all 11 of "
        "MovieLens end in .0, .2, .5 or .8 and all 11 of Yahoo! in .0 or .5. Rewards there are multiples of "
        "½ and of 1, so medians over an even number of runs end like this; means of 50 would with a chance "
        "of about 1e-12."
    ),
}
"""What is known or inferred about the printed figures."""

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

EXPLORATION = (3000, 5000, 10000)
"""Values of CMLB's T_e beside its default, 1,000. The paper gives none. T/10 and T/5 were found by looking at
the printed figures: that the paper used them is an inference."""

VARIANTS = {
    **{
        f"cmlb-{gamma}-e{rounds}": f"cmlb-{gamma}"
        for gamma in ("g4", "g2", "0.1", "1.0")
        for rounds in EXPLORATION
    },
    "bass-d0.1-s5": "bass-d0.1",
    "bass-d0.9-s5": "bass-d0.9",
    "dynucb-5": "dynucb",
    "dynucb-20": "dynucb",
}
"""Methods with another value of a parameter that the paper does not give, and the published one of each."""

_PRINTED = tomllib.loads((resources.files(__package__) / "published.toml").read_text(encoding="utf-8"))


def _figures(name: str) -> dict[str, dict[str, Published]]:
    """A table of means and standard deviations, by environment and method."""
    return {
        environment: {method: Published(*figures) for method, figures in methods.items()}
        for environment, methods in _PRINTED[name].items()
    }


SETTINGS = {key: PublishedSetting(**setting) for key, setting in _PRINTED["settings"].items()}

FINAL_REGRET = _figures("final_regret")

for _reading, _environment in _PRINTED["readings"].items():
    SETTINGS[_reading], FINAL_REGRET[_reading] = SETTINGS[_environment], FINAL_REGRET[_environment]

F1_DIGIT = 0.1
"""F1 scores are printed to one digit: a smaller difference cannot be told from rounding."""

F1 = _figures("f1")
