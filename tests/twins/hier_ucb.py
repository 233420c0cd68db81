"""Naive twin of HierBayesUCB."""

from math import sqrt

import numpy as np
from tests import reference
from tests.twins.hier_ts import HierTS


class HierUCB(HierTS):
    """The posterior of HierTS, without draws."""

    exploration = "ucb"
    bonus = "own"

    def choose(
        self, theta_hat: reference.Floats, A: reference.Floats, arms: reference.Floats, agent: int, t: int
    ) -> int:
        if self.bonus == "ucb":
            return super().choose(theta_hat, A, arms, agent, t)
        return int(np.argmax([theta_hat @ x + self.alpha * sqrt(x @ np.linalg.solve(A, x)) for x in arms]))
