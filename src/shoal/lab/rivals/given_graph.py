"""What GOB.Lin and CoLin share: all agents' parameters at once, correlated along a graph that is given.

Both are ridge regression in N·d dimensions. In terms of an agent's own parameter θ_i they differ only in the
prior, `cov(θ_i, θ_j) = K_ij I/λ`, and K follows from the graph. A sample (x, y) of agent i changes the
covariance Σ of all parameters by a rank-one matrix,

    u = Σ_{·i} x,   Σ ← Σ − u uᵀ/(1 + x·u_i),   θ̂ ← θ̂ + u (y − x·θ̂_i)/(1 + x·u_i),

and agents in different components of the graph never meet. So one triangle of Σ is kept for each component. A
choice needs one block of it, a sample the columns of one agent; the updates themselves are applied to the
triangle many at a time, when it costs about a fifth of as many single ones.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from scipy.sparse.csgraph import connected_components

from shoal.core import validation
from shoal.core.fields import AGENTS, DIM, Size, derived, kept, rows, scratch
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.kernels.linalg import cholesky, inverse_from_cholesky
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import choose_by
from shoal.core.policy.parameters import Exploring
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, add_sample
from shoal.core.types import Booleans, Integers, Matrix, Vector

PENDING = 32
"""Updates that are applied to a component's triangle together; a multiple of 8."""
COORDINATES = Size("coordinates", grows=False)
"""N·d."""
ENTRIES = Size("entries", grows=False)
"""Of the triangles of all components together."""


class GraphState(NamedTuple):
    """State of GOB.Lin and CoLin. Coordinates are in the order of `place`, by component."""

    common: Common
    local: Annotated[Statistics, rows(AGENTS)]
    theta: Annotated[Vector, kept(COORDINATES)]
    covariance: Annotated[Vector, kept(ENTRIES)]  # lower triangles, row by row
    updates: Annotated[Matrix, kept(PENDING, COORDINATES)]  # u/√(1 + x·u_i), still to be subtracted
    pending: Annotated[Integers, kept(AGENTS, low=0, below=PENDING)]  # how many, at a component's first place
    place: Annotated[Integers, derived(AGENTS)]
    first: Annotated[Integers, derived(AGENTS)]  # the first place of the agent's component
    size: Annotated[Integers, derived(AGENTS)]  # its members
    start: Annotated[Integers, derived(AGENTS)]  # where its triangle starts
    column: Annotated[Vector, scratch(COORDINATES)]
    block: Annotated[Matrix, scratch(4 * DIM + 1, DIM)]


class GraphParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of GOB.Lin and CoLin."""

    graph: Annotated[
        Any, Meta(description="Who is joined to whom, shape (N, N), symmetric; the diagonal does not count.")
    ]


class GraphRival(Policy):
    """Base of policies that are given a graph."""

    State = GraphState
    Parameters = GraphParameters

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        """The environment's graph, or the complete graph on each cluster; without either, no edges."""
        graph, labels = getattr(world, "graph", None), world.labels
        if graph is None:
            labels = np.arange(world.n_agents) if labels is None else labels
            graph = np.equal.outer(labels, labels)
        return {"graph": graph}

    def __init__(self, n_agents: int, dim: int, **parameters: Any) -> None:
        if "graph" in parameters:
            checked_graph(parameters["graph"], validation.natural("n_agents", n_agents))
        super().__init__(n_agents, dim, **parameters)

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        if "graph" in parameters:
            graph = checked_graph(parameters["graph"], len(parameters["graph"]))
            parameters = {**parameters, "graph": graph}
        super()._configure(dim, parameters)
        _, labels = connected_components(self._parameters.graph, directed=False)
        self._components = [np.flatnonzero(labels == label) for label in np.unique(labels)]

    @abstractmethod
    def _prior(self, graph: Booleans) -> Matrix:
        """K on a connected component, whose edges are given, for λ = 1."""

    def _sizes(self, n_agents: int) -> dict[str, int]:
        sides = [len(members) * self.dim for members in self._components]
        more = {"coordinates": sum(sides), "entries": sum(side * (side + 1) // 2 for side in sides)}
        return {**super()._sizes(n_agents), **more}

    def _join(self, state: GraphState, first: int) -> None:
        self._derive(state)
        at, d = 0, self.dim
        for members in self._components:
            K = self._prior(self._parameters.graph[np.ix_(members, members)]) / state.common.ridge
            for row in range(len(members) * d):  # of cov(θ_i, θ_j) = K_ij I/λ, what is left of the diagonal
                state.covariance[at + row % d : at + row + 1 : d] = K[row // d, : row // d + 1]
                at += row + 1

    def _derive(self, state: GraphState) -> None:
        place = start = 0
        for members in self._components:
            side = len(members) * self.dim
            state.place[members] = np.arange(place, place + len(members))
            state.first[members], state.size[members], state.start[members] = place, len(members), start
            place, start = place + len(members), start + side * (side + 1) // 2

    def _problem(self, state: GraphState) -> str:
        if len(self._parameters.graph) != len(state.place):
            return f"the graph has {len(self._parameters.graph)} agents, not {len(state.place)}"
        # θ̂ = K(b − Sθ̂)/λ, and as much of Σ = K(I − SΣ)/λ as one vector tells.
        self._derive(state)
        local, n, d = state.local, len(state.place), self.dim
        vector, order = np.random.default_rng(0).standard_normal((n, d)), np.argsort(state.place)
        S = local.A - state.common.ridge * np.eye(d)
        theta, image, K = state.theta.reshape(n, d), np.zeros((n, d)), np.zeros((n, n))
        for members in self._components:
            here = state.place[members]
            side, start = len(members) * d, int(state.start[members[0]])
            triangle = np.zeros((side, side))
            triangle[np.tril_indices(side)] = state.covariance[start : start + side * (side + 1) // 2]
            waiting = state.updates[: state.pending[here[0]], here[0] * d : here[0] * d + side]
            flat = vector[here].ravel()
            whole = triangle @ flat + triangle.T @ flat - triangle.diagonal() * flat
            image[here] = (whole - waiting.T @ (waiting @ flat)).reshape(-1, d)
            K[np.ix_(here, here)] = self._prior(self._parameters.graph[np.ix_(members, members)])
        for name, found, given in (("theta", theta, local.b[order]), ("covariance", image, vector)):
            wanted = K @ (given - np.einsum("nij,nj->ni", S[order], found)) / state.common.ridge
            size = 1.0 + np.abs(found).max(initial=0.0) * (1.0 + np.abs(S).max(initial=0.0)) * np.abs(K).sum()
            if not (np.abs(found - wanted) <= 1e-8 * size).all():
                return f"{name} does not follow from the samples"
        return super()._problem(state)

    def _edges(self) -> Booleans:
        return np.array(self._parameters.graph)

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self.state.first == self.state.first[agent])

    def _pooled_estimate(self, agent: int) -> Vector:
        return np.asarray(self.state.theta.reshape(-1, self.dim)[self.state.place[agent]])


def checked_graph(graph: Any, n_agents: int) -> Booleans:
    """A graph as booleans without loops, or an error that says what is wrong with it."""
    array = np.asarray(graph)
    if array.shape != (n_agents, n_agents) or not np.isin(array, (0, 1)).all():
        shown = f"shape {array.shape}" if array.shape != (n_agents, n_agents) else "other entries"
        raise ValueError(f"graph must be {n_agents} × {n_agents} booleans, got {shown}")
    edges = array.astype(np.bool_)
    if not np.array_equal(edges, edges.T):
        i, j = np.argwhere(edges != edges.T)[0]
        raise ValueError(f"graph must be symmetric, got {edges[i, j]} at ({i}, {j}) only")
    edges[np.diag_indices(n_agents)] = False
    return edges


@step("select", GraphState)
def select(state: GraphState, agent: int, arms: Matrix, t: int) -> int:
    """Choose by the agent's block of the estimate and of the covariance."""
    d = arms.shape[1]
    L, A, work = state.block[:d], state.block[d : 2 * d], state.block[2 * d : 3 * d]
    at = state.place[agent] * d
    read_block(state, agent, A)
    cholesky(A, L)  # Σ_ii = L Lᵀ, and then the same of its inverse
    inverse_from_cholesky(L, A, work)
    cholesky(A, L)
    return choose_by(state.common, state.theta[at : at + d], L, arms, agent, t, state.block[4 * d], 1.0)


@step("observe", GraphState)
def observe(state: GraphState, agent: int, x: Vector, reward: float, t: int) -> None:
    d, first, size = x.shape[0], state.first[agent], state.size[agent]
    add_sample(state.local, agent, x, reward)
    read_column(state, agent, x)
    at, low, high = state.place[agent] * d, first * d, (first + size) * d
    growth, error = 1.0, reward
    for m in range(d):
        growth += x[m] * state.column[at + m]
        error -= x[m] * state.theta[at + m]
    n = state.pending[first]
    scale = 1.0 / math.sqrt(growth)
    for c in range(low, high):
        state.theta[c] += state.column[c] * (error / growth)
        state.updates[n, c] = state.column[c] * scale
    if n + 1 < PENDING:
        state.pending[first] = n + 1
    else:
        apply_updates(state.covariance[state.start[agent] :], state.updates[:, low:high])
        state.pending[first] = 0
    state.common.cost[0] += size - 1


@compiled
def read_block(state: GraphState, agent: int, out: Matrix) -> None:
    """Write Σ_ii into `out`, (d, d)."""
    d, first = out.shape[0], state.first[agent]
    at, start = (state.place[agent] - first) * d, state.start[agent]
    for m in range(d):
        for column in range(m + 1):
            value = state.covariance[start + triangular(at + m) + at + column]
            for n in range(state.pending[first]):
                update = state.updates[n]
                value -= update[first * d + at + m] * update[first * d + at + column]
            out[m, column] = value
            out[column, m] = value


@compiled
def read_column(state: GraphState, agent: int, x: Vector) -> None:
    """Write `Σ_{·i} x` of the agent's component into `column`."""
    d, first, size = x.shape[0], state.first[agent], state.size[agent]
    at, start, low = (state.place[agent] - first) * d, state.start[agent], first * d
    out = state.column[low : low + size * d]
    out[:] = 0.0
    for m in range(d):  # the agent's rows, up to the diagonal
        row = start + triangular(at + m)
        for c in range(at + m + 1):
            out[c] += x[m] * state.covariance[row + c]
    for c in range(at + 1, size * d):  # below it, what other rows have in the agent's columns
        row = start + triangular(c) + at
        value = 0.0
        for m in range(min(d, c - at)):
            value += x[m] * state.covariance[row + m]
        out[c] += value
    for n in range(state.pending[first]):
        update = state.updates[n, low : low + size * d]
        factor = 0.0
        for m in range(d):
            factor += update[at + m] * x[m]
        for c in range(size * d):
            out[c] -= factor * update[c]


@inlined
def triangular(n: int) -> int:
    """Entries of a triangle's first n rows."""
    return n * (n + 1) // 2


@compiled
def apply_updates(triangle: Vector, updates: Matrix) -> None:
    """Subtract `u uᵀ` of every row u of `updates` from a lower triangle, eight rows at a time."""
    for row in range(updates.shape[1]):
        out = triangle[triangular(row) : triangular(row) + row + 1]
        for n in range(0, updates.shape[0], 8):
            u0, u1, u2, u3 = updates[n], updates[n + 1], updates[n + 2], updates[n + 3]
            u4, u5, u6, u7 = updates[n + 4], updates[n + 5], updates[n + 6], updates[n + 7]
            f0, f1, f2, f3 = u0[row], u1[row], u2[row], u3[row]
            f4, f5, f6, f7 = u4[row], u5[row], u6[row], u7[row]
            for c in range(row + 1):
                first = f0 * u0[c] + f1 * u1[c] + f2 * u2[c] + f3 * u3[c]
                out[c] -= first + (f4 * u4[c] + f5 * u5[c] + f6 * u6[c] + f7 * u7[c])
