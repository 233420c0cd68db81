"""Theorem "Confidence Ellipsoid for Bandit Parameter Estimation", and what is optimistic in it."""

import numpy as np
from numpy.typing import ArrayLike

from shoal.lab.theory import checks
from shoal.lab.theory.checks import FloatArray, Values


def beta(
    delta: ArrayLike,
    logdet_A: ArrayLike,
    noise_scale: ArrayLike = 1.0,
    *,
    param_norm: ArrayLike = 1.0,
    ridge: ArrayLike = 1.0,
) -> Values:
    """Radius of the confidence ellipsoid, ``sqrt(ridge) S + R sqrt(2 ln(1/delta) + logdet_A)``.

    Parameters
    ----------
    delta : array_like
        Probability, in (0, 1), that the ellipsoid misses the true parameter in some round.
    logdet_A : array_like
        Log-determinant of the design matrix relative to the ridge: ``log det A - dim * log(ridge)``. With
        ridge 1 it is ``log det A``.
    noise_scale : array_like
        Sub-Gaussian scale R of the noise.
    param_norm : array_like
        S, a bound on the norm of the true parameter. 0 is the radius as the paper prints it.
    ridge : array_like
        Regularisation of the design matrix.

    Examples
    --------
    >>> round(beta(0.1, 0.0), 4)
    3.146
    >>> beta(0.1, [0.0, 1.0, 2.0], param_norm=0.0).round(3)
    array([2.146, 2.368, 2.57 ])

    Notes
    -----
    The self-normalised bound behind it controls ``||sum x noise||`` in the inverse-design norm, in all
    rounds at once. The ridge estimate has a second error, at most ``sqrt(ridge) ||theta||``, which the first
    term covers. The paper prints the radius without it; then, before any observation, the ellipsoid misses
    every theta longer than ``R sqrt(2 ln(1/delta))``.

    References
    ----------
    Theorem "Confidence Ellipsoid for Bandit Parameter Estimation"; Abbasi-Yadkori et al. (2011), Theorem 2.
    """
    delta = checks.delta(delta)
    logdet = checks.finite("logdet_A", logdet_A)
    scale = checks.positive("noise_scale", noise_scale)
    offset = np.sqrt(checks.positive("ridge", ridge)) * checks.nonnegative("param_norm", param_norm)
    radicand = logdet - 2.0 * np.log(delta)
    if np.any(radicand < 0):
        raise ValueError(
            f"logdet_A={checks.show_array(logdet)} makes 2 ln(1/delta) + logdet_A negative; it must be taken "
            "relative to the ridge (log det A - dim * log(ridge)), which is never below 0"
        )
    return checks.values(offset + scale * np.sqrt(radicand))


def optimistic_parameter(theta_hat: ArrayLike, A: ArrayLike, x: ArrayLike, beta: float) -> FloatArray:
    """Parameter in the ellipsoid that is best for arm x, ``theta_hat + beta A^-1 x / ||x||_{A^-1}``.

    Parameters
    ----------
    theta_hat : array_like, shape (d,)
        Centre of the ellipsoid.
    A : array_like, shape (d, d)
        Symmetric positive definite shape.
    x : array_like, shape (d,) or (K, d)
        One arm, or several; the result has the same shape.
    beta : float
        Radius, not squared, at least 0.

    Examples
    --------
    >>> optimistic_parameter([1.0, 0.0], [[4.0, 0.0], [0.0, 1.0]], [1.0, 0.0], 2.0)
    array([2., 0.])

    Notes
    -----
    The paper allows a semi-definite A; the formula needs a definite one (otherwise the reward may be
    unbounded) and an arm other than 0 (otherwise every parameter gives the same reward).

    References
    ----------
    Lemma "Characterization of the optimistic true bandit parameter".
    """
    centre = checks.finite("theta_hat", theta_hat)
    shape = checks.finite("A", A)
    arms = checks.finite("x", x)
    radius = float(checks.nonnegative("beta", beta))
    if centre.ndim != 1 or centre.size == 0:
        raise ValueError(f"theta_hat has shape {centre.shape}; it must be a vector (d,)")
    dim = centre.size
    if shape.shape != (dim, dim):
        raise ValueError(f"A has shape {shape.shape}; it must be {(dim, dim)} to go with theta_hat")
    if arms.ndim not in (1, 2) or arms.shape[-1] != dim:
        raise ValueError(f"x has shape {arms.shape}; it must be {(dim,)} or (K, {dim}) to go with theta_hat")
    if np.abs(shape - shape.T).max() > 1e-8 * np.abs(shape).max():
        raise ValueError(f"A={shape.tolist()} is not symmetric; a design matrix must be")
    try:
        np.linalg.cholesky(shape)
    except np.linalg.LinAlgError:
        raise ValueError(
            f"A={shape.tolist()} is not positive definite; a design matrix with a ridge is"
        ) from None
    direction = np.linalg.solve(shape, arms.T).T
    width = np.sqrt(np.sum(direction * arms, axis=-1, keepdims=True))
    if np.any(width == 0):
        raise ValueError("x contains a zero arm; every parameter promises it the same, so give a nonzero arm")
    optimistic: FloatArray = centre + radius * direction / width
    return optimistic
