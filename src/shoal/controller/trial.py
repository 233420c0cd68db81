"""A population that nobody uses, to have a policy compiled before somebody waits for it."""

import contextlib

from shoal.controller import snapshots
from shoal.controller.controller import open as open_controller


def compile_policy(policy: str) -> None:
    """Do with a policy what populations do, and read it back, unless it has parameters that must be given."""
    with contextlib.suppress(ValueError), open_controller(":memory:") as controller:
        trial = controller.population("trial", policy=policy, dim=2, seed=0)
        for agent in ("a", "b"):
            made = trial.decide(agent, {"x": [1.0, 0.0], "y": [0.0, 1.0]}, scores=True)
            trial.reward(made.id, 0.5)
        trial.explain("a")
        trial.explain("a", "b")
        snapshots.load(trial._store, trial._number)
