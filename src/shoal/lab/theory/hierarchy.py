"""Regret of Thompson sampling for agents that scatter around one unknown mean.

Reference: J. Hong, B. Kveton, M. Zaheer, M. Ghavamzadeh, "Hierarchical Bayesian Bandits", AISTATS 2022, on
tasks that are served one at a time. What the rounds tell of the mean and of the agents is kept as a
log-determinant here, so the constants differ from theirs.
"""

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import Values


def regret_bound_hierarchy(
    dim: ArrayLike,
    *,
    horizon: ArrayLike,
    n_agents: ArrayLike,
    n_arms: ArrayLike,
    scatter: ArrayLike,
    ridge: ArrayLike = 1.0,
    noise_scale: ArrayLike = 1.0,
    arm_norm: ArrayLike = 1.0,
    delta: ArrayLike | None = None,
) -> Values:
    """Bayes regret of all agents, ``R sqrt(2 ln(1/delta) T v/ln(1 + v) I) + K T R sqrt(v) delta/sqrt(2 pi)``.

    Here ``v = L^2 (kappa + 1/lambda)`` bounds an arm's prior variance, and ``g = L^2 T/(N dim)``. Twice what
    T rounds tell is ``I = N dim ln(1 + kappa g) + dim ln(1 + N g/(lambda (1 + kappa g)))``: of the N agents
    given their mean, and of the mean.

    Parameters
    ----------
    dim : array_like
        Dimension.
    horizon, n_agents, n_arms : array_like
        T rounds in all, one agent in each; N agents; K arms a round.
    scatter, ridge, noise_scale : array_like
        kappa, lambda and R: ``theta_i ~ N(mu, kappa R^2)`` and ``mu ~ N(0, R^2/lambda)``.
    arm_norm : array_like
        L, a bound on the norm of every arm.
    delta : array_like, optional
        Probability that an arm is above its bound; ``1/T`` by default. The bound holds for every value.

    Examples
    --------
    >>> round(regret_bound_hierarchy(10, horizon=10_000, n_agents=100, n_arms=15, scatter=0.1))
    14369
    >>> round(regret_bound_hierarchy(10, horizon=10_000, n_agents=100, n_arms=15, scatter=0.0))
    4291

    Notes
    -----
    A mean over parameters drawn from the prior, which HierTS has to be told, with ``alpha=1``; the order in
    which agents come and the arms may be any that do not depend on the parameters. Without scatter it is the
    bound of a single model that everybody shares.

    References
    ----------
    Hong et al. (2022), theorem on sequential tasks; Russo and Van Roy (2014) for the step from a width to
    regret.
    """
    dim, n = checks.count("dim", dim), checks.count("n_agents", n_agents)
    T, K = checks.count("horizon", horizon), checks.count("n_arms", n_arms)
    kappa, lambda_ = checks.nonnegative("scatter", scatter), checks.positive("ridge", ridge)
    R, L = checks.positive("noise_scale", noise_scale), checks.positive("arm_norm", arm_norm)
    risk = 1.0 / np.maximum(T, 2.0) if delta is None else checks.delta(delta)
    variance = L**2 * (kappa + 1.0 / lambda_)
    pulls = L**2 * T / (n * dim)
    told = n * dim * np.log1p(kappa * pulls) + dim * np.log1p(n * pulls / (lambda_ * (1.0 + kappa * pulls)))
    widths = np.sqrt(T * variance / np.log1p(variance) * told)
    above = K * T * np.sqrt(variance) * risk / np.sqrt(2.0 * np.pi)
    return checks.values(R * (np.sqrt(-2.0 * np.log(risk)) * widths + above))
