"""CoDBand: a Dirichlet-process mixture of linear models, and agents that change (Li, Wu and Wang 2021b).

An agent's samples between two of its changes are a *period*, and periods share models. After each sample a
step of a Gibbs sampler draws the model of the agent's period; when predictions fail, the period ends; and
agents choose by a draw from their model.
"""

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import AGENTS, COUNT, DIM, PACKED, Size, kept, rows, scratch, setting
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import add_packed, add_row, back_substitute, dot
from shoal.core.kernels.random import draw_normals, gamma, uniform
from shoal.core.policies.mixture.kernels import factor_packed, normalise, predict
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import choose_by
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_own, add_sample, forget_row
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Tensor, Vector
from shoal.core.validation import LARGEST, SMALLEST

MODELS = 2 * AGENTS
LATEST = Size("latest", grows=False)
SHAPE, RATE = 7.5, 1.0
"""Prior of the concentration, as in the released experiments."""
WINDOW = 20
"""Number of predictions in which a change is looked for."""
MISSES, LEVEL = 0.01, 0.1
"""δ₁, the share of predictions that fail without a change, and δ₂, the level of the test."""
BOUND = 2.5758293035489004
"""η over the noise: it exceeds this with probability δ₁."""


class CoDBandState(NamedTuple):
    """State of CoDBand. Models are numbered without gaps, in the order in which they came."""

    common: Common
    noise_scale: Annotated[float, setting()]
    draws_weight: Annotated[bool, setting()]
    drift: Annotated[bool, setting()]
    local: Annotated[Statistics, rows(AGENTS)]  # of the agents' present periods
    labels: Annotated[Integers, kept(AGENTS, low=-1, below=MODELS, fill=-1)]  # −1: before its first sample
    sums: Annotated[Matrix, kept(MODELS, PACKED)]  # of all periods of a model, past ones too
    periods: Annotated[Integers, kept(MODELS, **COUNT)]
    n_models: Annotated[Integers, kept(1, low=0, below=MODELS + 1)]
    weight: Annotated[Vector, kept(1, low=0.0)]  # of a new model
    missed: Annotated[Booleans, kept(AGENTS, WINDOW)]  # predictions that failed, in turn
    latest: Annotated[Tensor, kept(AGENTS, LATEST, DIM + 1)]  # samples of the period, in turn
    logs: Annotated[Vector, scratch(MODELS + 1)]
    total: Annotated[Vector, scratch(PACKED)]
    L: Annotated[Matrix, scratch(DIM, DIM)]
    y: Annotated[Vector, scratch(DIM)]
    z: Annotated[Vector, scratch(DIM + 1)]


class CoDBandParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of CoDBand."""

    exploration: Annotated[
        Literal["sample", "ucb"], Meta(description="A draw from the model, or upper confidence bounds.")
    ] = "sample"
    noise_scale: Annotated[float, Meta(ge=SMALLEST, le=LARGEST, description="σ of the noise.")] = 1.0
    concentration: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(description="Weight of a new model; None: drawn from its posterior after each sample."),
    ] = None
    evidence: Annotated[
        Literal["joint", "as-released"],
        Meta(description="Joint density of a period's samples, or the product of those of the latest 70."),
    ] = "joint"
    drift: Annotated[bool, Meta(description="Whether a period ends when predictions fail.")] = True


class CoDBand(Policy):
    """Draws each period's model from `p(model) ∝ periods · evidence`, and plays by a draw from that model.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.UnitClusters(n_agents=6, dim=3, n_clusters=2, noise_scale=0.3, seed=5)
    >>> policy = shoal.make_policy("codband", 6, 3, noise_scale=0.3, seed=0)
    >>> trace = shoal.simulate(policy, world, horizon=2_000, seed=0)
    >>> policy.neighbors(0)
    array([0, 1, 2])

    Notes
    -----
    Departs from its source in when labels are drawn, and in how many models there are (docs/algorithms.md).
    """

    name = "codband"
    label = "CoDBand"
    line_style = LineStyle("#6a3fb5", "h")
    Parameters = CoDBandParameters
    State = CoDBandState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"noise_scale": world.noise_scale} if world.noise_scale > 0 else {}

    def _sizes(self, n_agents: int) -> dict[str, int]:
        latest = 70 if self._parameters.evidence == "as-released" else 0
        return {**super()._sizes(n_agents), "latest": latest}

    def _settings(self) -> dict[str, Any]:
        return {**super()._settings(), "draws_weight": self._parameters.concentration is None}

    def _join(self, state: CoDBandState, first: int) -> None:
        given = self._parameters.concentration
        state.weight[0] = 1.0 if given is None else given

    @property
    def labels(self) -> Integers:
        """Model of each agent's period, −1 before its first sample; shape (N,), a copy."""
        return np.array(self.state.labels)

    def _pool(self, agent: int) -> Booleans:
        label, pool = self.state.labels[agent], np.arange(self.n_agents) == agent
        return np.asarray(pool if label < 0 else self.state.labels == label)

    def _pooled_estimate(self, agent: int) -> Vector:
        believe(self.pinned_state(), self.state.labels[agent])
        return np.array(self.state.y)

    def _problem(self, state: CoDBandState) -> str:
        count = state.n_models[0]
        if (state.labels >= count).any() or (state.periods[:count] < 1).any():
            return "labels are not those of models with periods"
        return super()._problem(state)


@step("select", CoDBandState)
def select(state: CoDBandState, agent: int, arms: Matrix, t: int) -> int:
    label, d = state.labels[agent], arms.shape[1]
    if label < 0:  # a new period: a model in proportion to those that it has
        draw_normals(state.common.rng, t, agent, state.z)
        count = state.n_models[0]
        for k in range(count + 1):
            state.logs[k] = math.log(state.periods[k] if k < count else state.weight[0])
        normalise(state.logs, count + 1)
        label = pick(state.logs, count + 1, 0.5 * math.erfc(-state.z[d] / math.sqrt(2.0)))
    believe(state, label)
    return choose_by(state.common, state.y, state.L, arms, agent, t, state.z[:d], 1.0)


@step("observe", CoDBandState)
def observe(state: CoDBandState, agent: int, x: Vector, reward: float, t: int) -> None:
    local, label, d, ridge = state.local, state.labels[agent], x.shape[0], state.common.ridge
    n = local.pulls[agent]
    error = abs(reward - dot(local.theta_hat[agent], x))
    variance = add_sample(local, agent, x, reward) - 1.0
    beta = state.noise_scale * math.sqrt(d * math.log(1.0 + n / (d * ridge)) - 2.0 * math.log(MISSES))
    allowed = (beta + math.sqrt(ridge)) * math.sqrt(max(variance, 0.0)) + BOUND * state.noise_scale
    state.missed[agent, n % WINDOW] = error > allowed
    if state.latest.shape[1] > 0:
        for m in range(d):
            state.latest[agent, n % state.latest.shape[1], m] = x[m]
        state.latest[agent, n % state.latest.shape[1], d] = reward
    if label >= 0:
        add_packed(state.sums[label], x, reward)
        for j in range(state.labels.shape[0]):
            state.common.cost[0] += j != agent and state.labels[j] == label


@step("revise", CoDBandState)
def revise(state: CoDBandState, agent: int, t: int) -> None:
    if state.local.pulls[agent] == 0:  # its period has just ended
        return
    state.total[:] = 0.0
    add_own(state.local, agent, state.common.ridge, state.total)
    if state.labels[agent] >= 0:
        leave(state, agent)
    count = weigh(state, agent)
    label = pick(state.logs, count, uniform(state.common.rng))
    if label == state.n_models[0]:
        state.n_models[0] += 1
        state.sums[label] = 0.0
        state.periods[label] = 0
    state.labels[agent] = label
    state.periods[label] += 1
    state.total[:] = 0.0
    add_own(state.local, agent, state.common.ridge, state.total)
    add_row(1.0, state.total, state.sums[label])
    if state.draws_weight:
        draw_weight(state)
    if state.drift and has_changed(state, agent):
        # The period's samples stay in its model, as a past period.
        forget_row(state.local, agent, state.common.ridge)
        state.labels[agent] = -1


@inlined
def believe(state: CoDBandState, label: int) -> None:
    """Leave estimate and factor of a model in `y` and `L`; those of the prior for a new one."""
    state.total[:] = 0.0
    if 0 <= label < state.n_models[0]:
        add_row(1.0, state.sums[label], state.total)
    factor_packed(state.total, state.common.ridge, state.L, state.y)
    back_substitute(state.L, state.y, state.y)


@compiled
def leave(state: CoDBandState, agent: int) -> None:
    """Take an agent's period, whose sums are in `total`, out of its model; a model without periods goes."""
    label, last = state.labels[agent], state.n_models[0] - 1
    add_row(-1.0, state.total, state.sums[label])
    state.periods[label] -= 1
    state.labels[agent] = -1
    if state.periods[label] > 0:
        return
    for k in range(label, last):
        state.periods[k] = state.periods[k + 1]
        for m in range(state.total.shape[0]):
            state.sums[k, m] = state.sums[k + 1, m]
    state.n_models[0] = last
    for j in range(state.labels.shape[0]):
        state.labels[j] -= state.labels[j] > label


@compiled
def weigh(state: CoDBandState, agent: int) -> int:
    """Leave the probabilities of the models, and of a new one, in `logs`; count them."""
    count, own, L, y, logs = state.n_models[0], state.total, state.L, state.y, state.logs
    ridge, double = state.common.ridge, 2.0 * state.noise_scale**2
    for k in range(count):
        logs[k] = math.log(state.periods[k])
        if state.latest.shape[1] > 0:
            factor_packed(state.sums[k], ridge, L, y)
            logs[k] += predict_latest(state, agent)
        else:
            form, logdet = factor_packed(state.sums[k], ridge, L, y)
            add_row(1.0, state.sums[k], own)
            joint, joint_logdet = factor_packed(own, ridge, L, y)
            add_row(-1.0, state.sums[k], own)
            logs[k] += (joint - form) / double - 0.5 * (joint_logdet - logdet)
    if count == state.periods.shape[0]:  # no room for another: only where agents changed very often
        normalise(logs, count)
        return int(count)
    squares, n = 0.0, 0
    if state.latest.shape[1] > 0:
        own[:] = 0.0
        n = min(state.local.pulls[agent], state.latest.shape[1])
        for m in range(n):
            sample = state.latest[agent, m]
            add_packed(own, sample[: y.shape[0]], sample[y.shape[0]])
            squares += sample[y.shape[0]] ** 2
    form, logdet = factor_packed(own, ridge, L, y)
    logs[count] = math.log(state.weight[0]) + (form - squares) / double
    logs[count] -= 0.5 * (logdet - y.shape[0] * math.log(ridge) + n * math.log(math.pi * double))
    normalise(logs, count + 1)
    return int(count) + 1


@inlined
def predict_latest(state: CoDBandState, agent: int) -> float:
    """Sum of the log densities of an agent's latest samples by the model in `L` and `y`, each by itself."""
    found, d, var = 0.0, state.y.shape[0], state.noise_scale**2
    for m in range(min(state.local.pulls[agent], state.latest.shape[1])):
        sample = state.latest[agent, m]
        mean, variance = predict(state.L, state.y, sample[:d], state.z[:d])
        spread = 2.0 * var * (1.0 + variance)
        found -= 0.5 * math.log(math.pi * spread) + (sample[d] - mean) ** 2 / spread
    return found


@inlined
def pick(chances: Vector, count: int, u: float) -> int:
    """The index that a uniform number picks."""
    for k in range(count - 1):
        u -= chances[k]
        if u < 0.0:
            return k
    return count - 1


@compiled
def draw_weight(state: CoDBandState) -> None:
    """Draw the concentration, given the numbers of models and periods (Escobar and West 1995)."""
    models, total = state.n_models[0], 0
    for k in range(models):
        total += state.periods[k]
    one, other = gamma(state.common.rng, state.weight[0] + 1.0), gamma(state.common.rng, float(total))
    rate = RATE - math.log(one / (one + other))
    odds = (SHAPE + models - 1.0) / (total * rate)
    more = 0.0 if uniform(state.common.rng) < odds / (1.0 + odds) else 1.0
    state.weight[0] = gamma(state.common.rng, SHAPE + models - more) / rate


@inlined
def has_changed(state: CoDBandState, agent: int) -> bool:
    """Whether more of an agent's latest predictions failed than chance explains."""
    n, misses = min(state.local.pulls[agent], WINDOW), 0
    for m in range(n):
        misses += state.missed[agent, m]
    return bool(misses / n > MISSES + math.sqrt(-math.log(LEVEL) / (2.0 * n)))
