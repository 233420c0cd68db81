"""Errors name the argument and show no more of a value than its beginning."""

from collections.abc import Callable

import numpy as np
import pytest

import shoal

LONG = list(range(20_000))
CALLS: dict[str, Callable[[], object]] = {
    "n_agents": lambda: shoal.GaussianClusters(LONG, 3),  # type: ignore[arg-type]
    "seed": lambda: shoal.GaussianClusters(9, 3, seed=LONG),  # type: ignore[arg-type]
    "noise": lambda: shoal.GaussianClusters(9, 3, noise=LONG),  # type: ignore[arg-type]
    "noise_scale": lambda: shoal.GaussianClusters(9, 3, noise_scale=["x"] * 3000),  # type: ignore[list-item]
    "angle": lambda: shoal.SyntheticClusters(9, 3, 2, LONG),  # type: ignore[arg-type]
    "arms": lambda: shoal.Environment([["x"] * 3000] * 50, theta_star=np.ones((2, 3000))),  # type: ignore[arg-type]
    "labels": lambda: shoal.Oracle(10, 3, alpha=0.3, labels=LONG),
    "agent": lambda: shoal.Independent(9, 2, alpha=1.0).update(LONG, [1.0, 1.0], 1.0),  # type: ignore[arg-type]
    "x": lambda: shoal.Independent(9, 2, alpha=1.0).update(0, ["a"] * 5000, 1.0),
    "form": lambda: shoal.LoggedRatings(__file__, features={"arm": [1], "x": [1]}, form=LONG),  # type: ignore[arg-type]
    "pulling": lambda: shoal.simulate(
        shoal.Independent(9, 2, alpha=1.0),
        shoal.GaussianClusters(9, 2, seed=0),
        horizon=1,
        seed=0,
        pulling=dict.fromkeys(LONG),  # type: ignore[arg-type]
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_errors_are_short(name: str) -> None:
    with pytest.raises(ValueError, match=f"^{name} must ") as caught:
        CALLS[name]()
    assert len(str(caught.value)) < 250
