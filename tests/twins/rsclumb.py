"""Naive twin of RSCLUMB."""

from tests.reference import SCLUB
from tests.twins.rclumb import InDoubt


class RSCLUMB(InDoubt, SCLUB):
    """SCLUB's splits and merges, with α₂ε* added to the radius."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        gamma: float = 1.0,
        tolerance: float = 1.5,
        misspecification: float = 0.2,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, gamma=gamma)
        self.misspecification = misspecification
        self.slack = tolerance * misspecification
