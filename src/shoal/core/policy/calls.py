"""What online calls check before compiled code sees it, and what they say when that code refuses."""

import operator
import warnings
from typing import Any, NoReturn, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.policy.steps import BADLY_SCALED, NOT_BEGUN, REFUSED, SILENT
from shoal.core.types import Matrix, Vector

FLOAT64 = np.dtype(np.float64)


def checked_agent(agent: Any, n_agents: int) -> int:
    """The index that `agent` is, or an error that says which there are."""
    try:
        index = operator.index(agent)
    except TypeError:
        raise ValueError(f"agent must be an integer, got {validation.show(agent)}") from None
    if not 0 <= index < n_agents:
        known = f"in 0, …, {n_agents - 1}" if n_agents else "one that was added: there is none yet"
        raise ValueError(f"agent must be {known}, got {agent!r}")
    return index


def checked_arms(arms: ArrayLike, dim: int) -> Matrix:
    """`arms`, (K, d), as compiled code takes them; their entries are checked there."""
    if _is_plain(arms) and arms.ndim == 2 and arms.shape[1] == dim and arms.shape[0] > 0:
        return arms
    return validation.matrix("arms", arms, columns=dim).copy()


def checked_arm(x: ArrayLike, dim: int) -> Vector:
    """`x`, (d,), as compiled code takes it; its entries are checked there."""
    if _is_plain(x) and x.shape == (dim,):
        return x
    return validation.vector("x", x, dim).copy()


def _is_plain(array: Any) -> TypeGuard[Vector]:
    """Whether an array is of the one layout that the online calls are compiled for."""
    return type(array) is np.ndarray and array.dtype == FLOAT64 and array.flags.carray


def refuse_arms(owner: str, answer: int, arms: Matrix) -> None:
    """Say why a step of the policy class `owner` refused arms."""
    if answer == SILENT:
        raise TypeError(
            f"{owner} does not tell its scores: its step select must leave mean and bonus "
            "of each arm in state.common.scored"
        )
    validation.matrix("arms", arms, columns=arms.shape[1])


def check_answer(policy: Any, answer: int, agent: int, x: Vector) -> None:
    """Say why a step refused a pull of `x`, or warn if it is badly scaled."""
    if answer == REFUSED:
        check_scale(policy, "x", validation.vector("x", x, policy.dim))
    elif answer == BADLY_SCALED:
        check_scale(policy, "x", x)
    elif answer == NOT_BEGUN:
        raise ValueError(f"agent {agent} has no pull that has begun and awaits its reward, got x = {x}")


def check_scale(policy: Any, name: str, arms: Vector) -> None:
    """Refuse arms, (…, d), far too long beside the ridge; warn once if longer than they should be."""
    warning = validation.scale(name, policy.inner(arms), policy.state.common.ridge)
    if warning and policy.warns:
        policy.warns = False
        warnings.warn(warning, stacklevel=4)


def refuse_while_changing(change: str) -> NoReturn:
    """Raise for a call that a signal handler makes in the middle of a change."""
    raise RuntimeError(
        f"the policy is in the middle of {change}, which a signal handler has interrupted; "
        "save or change it when that has returned"
    )
