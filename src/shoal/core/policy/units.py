"""Arms and rewards in any units: what `noise_scale=None` means to Independent and BASS.

An agent's ridge is measured by the squared lengths of its own arms and by how much of its rewards is noise,
and widths are multiples of the noise, so that arms or rewards times a factor change no choice. All of this is
the agent's own, and leaves with it. docs/algorithms.md has the formulas.

States that learn units declare `noise_scale`, NaN for None, and

    squares: Annotated[Vector, kept(ESTIMATED, low=0.0)]
    lengths: Annotated[Vector, kept(ESTIMATED, low=0.0)]

which are Σ y² of each agent, and the squared length that its ridge is measured by, 0 until it has an arm.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from shoal.core.fields import Size
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import dot
from shoal.core.kernels.twofold import two_sum
from shoal.core.policy.living import LivePolicy
from shoal.core.policy.steps import own_units
from shoal.core.statistics import Statistics, add_sample, solve_row
from shoal.core.types import Vector
from shoal.core.validation import SMALLEST

ESTIMATED = Size("estimated")
"""Agents whose units are learned: all or none."""
LENGTH_STEP = 1.5
"""Least change of the squared length that is heeded: a row is computed anew then."""
ALL_NOISE = 3.0
"""Samples as which it counts that rewards are all noise."""
UNRESOLVED = 1e-8
"""Share of Σ y² that rounding may have taken from a sum of squared errors: θ̂ is off, in the norm of A, by up
to 1e-8 times the size of the rewards."""


class UnitPolicy(LivePolicy):
    """Base of live policies whose state learns units if the parameter `noise_scale` is None."""

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        super()._configure(dim, parameters)
        if self.clicks and self.parameters["noise_scale"] != 1.0:
            raise ValueError(f"clicks have no noise_scale, got {self.parameters['noise_scale']!r}")
        self.warns = not self._learns_units  # of arms beside which `ridge` is small: it is measured by them

    @property
    def _learns_units(self) -> bool:
        return self.parameters["noise_scale"] is None

    def _settings(self) -> dict[str, Any]:
        given = self.parameters["noise_scale"]
        return {**super()._settings(), "noise_scale": math.nan if given is None else given}

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "estimated": n_agents if self._learns_units else 0}

    def _problem(self, state: Any) -> str:
        return super()._problem(state) or units_problem(state, self._ridges(state))

    def _own_scale(self, agent: int) -> float:
        """What multiplies α for an agent that chooses by its own samples."""
        return own_units(self.pinned_state(), agent)[0]

    def _ridges(self, state: Any) -> Any:
        if not self._learns_units:
            return state.common.ridge
        return ridges_of(state.common.ridge, state.lengths)

    def _ridge_of(self, agent: int) -> float:
        return float(ridge_at(self.state.common.ridge, self.state.lengths, agent))

    def _common_ridge(self, agent: int, other: int) -> float:
        if self._learns_units:
            level(self.pinned_state(), agent, other)
        return self._ridge_of(agent)

    def _withdraw(self, agent: int) -> None:
        if self._learns_units:
            self.state.squares[agent] = self.state.lengths[agent] = 0.0

    def _lending_changed(self, agent: int) -> None:
        pass

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        if not self._learns_units:
            return
        squares = self.state.squares
        # Of a reward that was not what is said of it, more might be taken than there is.
        left = max(squares[agent] + change * (2.0 * old + change), 0.0)
        squares[agent] = left if self.state.local.pulls[agent] else 0.0
        measure(self.pinned_state(), agent)

    def _absorb(self, agent: int, other: int) -> None:
        if self._learns_units:
            self.state.squares[agent] += self.state.squares[other]
        super()._absorb(agent, other)


def ridges_of(ridge: float, lengths: Vector) -> Vector:
    """The ridges of agents' own statistics by their `lengths`."""
    return np.asarray(ridge * np.where(lengths > 0.0, lengths, 1.0))


@inlined
def ridge_at(ridge: float, lengths: Vector, agent: int) -> float:
    """The ridge of an agent's own statistics; `lengths` are empty where units are not learned."""
    if lengths.shape[0] > 0 and lengths[agent] > 0.0:
        return float(ridge * lengths[agent])
    return ridge


@inlined
def ridge_of(state: Any, agent: int) -> float:
    """`ridge_at`, of a state."""
    return ridge_at(state.common.ridge, state.lengths, agent)


@inlined
def take_sample(state: Any, agent: int, x: Vector, reward: float) -> float:
    """`add_sample` to an agent's own row; NaN if its ridge, too, is another one now."""
    if not math.isnan(state.noise_scale):
        return add_sample(state.local, agent, x, reward)
    return take_measured(state, agent, x, reward)


@compiled
def take_measured(state: Any, agent: int, x: Vector, reward: float) -> float:
    """`take_sample` where units are learned."""
    local, is_measured, size = state.local, state.lengths[agent] > 0.0, dot(x, x)
    if not is_measured and size > SMALLEST:
        set_length(state, agent, size / (local.pulls[agent] + 1))
    growth = add_sample(local, agent, x, reward)
    state.squares[agent] += reward * reward
    length, wanted = state.lengths[agent], wanted_length(state, agent)
    if length > 0.0 and (wanted > LENGTH_STEP * length or wanted * LENGTH_STEP < length):
        set_length(state, agent, wanted)
    return growth if state.lengths[agent] == length and is_measured else math.nan


@inlined
def errors_of(state: Any, agent: int) -> float:
    """`Σ y² − bᵀA⁻¹b`, which is n times the noise variance under which n samples are most probable."""
    square = state.squares[agent]
    errors = square - dot(state.local.b[agent], state.local.theta_hat[agent])
    return float(max(errors, 0.0) + UNRESOLVED * square)


@inlined
def length_of(state: Any, agent: int) -> float:
    """Σ ‖x‖² of an agent."""
    if state.lengths[agent] == 0.0:
        return 0.0
    return float(max(state.local.traces[agent, 0] - state.local.b.shape[1] * ridge_of(state, agent), 0.0))


@inlined
def wanted_length(state: Any, agent: int) -> float:
    """The squared length that an agent's ridge should be measured by."""
    n = state.local.pulls[agent]
    share = noise_share(errors_of(state, agent), state.squares[agent], n)
    return float(length_of(state, agent) / n * share)


@inlined
def noise_share(errors: float, squares: float, pulls: float) -> float:
    """How much of the mean square of rewards is noise: at this ridge `x·θ` is expected to be the rest."""
    if not squares > 0.0:
        return 1.0
    own = ALL_NOISE * squares / pulls
    return float((min(errors, squares) + own) / (squares + own))


@compiled
def set_length(state: Any, agent: int, length: float) -> None:
    """Let an agent's ridge be measured by another squared length; 0 if it has no arm."""
    before = ridge_of(state, agent)
    state.lengths[agent] = length
    change_ridge(state.local, agent, before, ridge_of(state, agent))


@compiled
def change_ridge(stats: Statistics, row: int, before: float, after: float) -> None:
    """Replace the ridge of a row."""
    position = -1
    for m in range(stats.b.shape[1]):
        position += m + 1
        if stats.A[row, m, m] == before:  # a power of two as a factor must stay one
            stats.A[row, m, m] = after
        else:
            stats.A[row, m, m], lost = two_sum(stats.A[row, m, m], after - before)
            stats.tail[row, position] += lost
    solve_row(stats, row)


@compiled
def measure(state: Any, agent: int) -> None:
    """Let an agent's ridge be that of the samples it has now."""
    size = length_of(state, agent)
    if state.local.pulls[agent] == 0:
        state.lengths[agent] = 0.0  # its row has been emptied
    elif size > 1e-9 * state.local.traces[agent, 0]:
        set_length(state, agent, wanted_length(state, agent))
    elif state.lengths[agent] > 0.0:  # rounding is left of arms that were taken back
        set_length(state, agent, 0.0)


@compiled
def level(state: Any, agent: int, other: int) -> None:
    """Give two agents the ridge of the samples of both."""
    size = length_of(state, agent) + length_of(state, other)
    pulls = state.local.pulls[agent] + state.local.pulls[other]
    if size > 0.0:
        set_length(state, agent, size / pulls)
        set_length(state, other, size / pulls)


@inlined
def scale_of(errors: float, pulls: float) -> float:
    """The noise; 1 where all rewards were 0, and any width chooses the same."""
    return math.sqrt(errors / pulls) if errors > 0.0 else 1.0


@inlined
def scale_of_own(state: Any, agent: int) -> float:
    """The noise by an agent's own samples."""
    return scale_of(errors_of(state, agent), state.local.pulls[agent])


@inlined
def units_of_own(state: Any, agent: int) -> tuple[float, float]:
    """`own_units` where these are learned: the ridge by what is pending as long as that is all."""
    weight = 1.0
    if state.lengths[agent] == 0.0 and state.common.pending.counts[agent] > 0:
        weight = 1.0 / pending_length(state, agent)
    return scale_of_own(state, agent), weight


@inlined
def pending_length(state: Any, agent: int) -> float:
    """Mean squared length of the arms whose rewards are due to an agent; 1 if they are 0."""
    pending, size, position = state.common.pending, 0.0, -1
    for m in range(state.local.b.shape[1]):
        position += m + 1
        size += pending.sums[agent, position]
    return float(size / pending.counts[agent]) if size > SMALLEST else 1.0


def units_problem(state: Any, ridges: Any) -> str:
    """What is wrong with the units of a loaded state, as a phrase; `ridges` are those of `local`."""
    pulls, d = state.local.pulls, state.local.b.shape[1]
    if not math.isnan(state.noise_scale):
        return ""
    for name in ("squares", "lengths"):
        if getattr(state, name)[pulls == 0].any():
            return f"{name} are not 0 where there are no samples"
    mean = (np.einsum("nii->n", state.local.A) - d * ridges) / np.maximum(pulls, 1)
    bound = (1.0 + 1e-6) * LENGTH_STEP
    off = (state.lengths > bound * mean) | (bound * state.lengths < mean * ALL_NOISE / (pulls + ALL_NOISE))
    if np.where(state.lengths > 0.0, off, mean > 1e-6 * ridges).any():
        return "lengths are not those of the arms that local holds"
    return ""
