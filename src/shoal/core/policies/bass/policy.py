"""BASS: share with everyone until a test says stop (Cherkaoui, Barlier and Colin 2025).

The graph starts complete, and an agent learns from its own samples and its neighbours'. Two agents stop
sharing, for good, when their confidence ellipsoids no longer overlap: then the bias of sharing has
outgrown the noise it removes.

What users call is here, but for `select` and `update`, which all policies inherit from
`shoal.core.policy.base`: they call the steps `select`, `observe` and `revise` that an engine registers for
its state. There are two: `witnesses` keeps a common point of every pair, and `crowd` serves where these would
take too much memory. `_engine` says which; what they share is in `common`.
"""

import math
from collections.abc import Collection, Mapping
from statistics import NormalDist
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from shoal.core.kernels.linalg import solve_cholesky
from shoal.core.kernels.separation import search
from shoal.core.policies.bass import crowd, witnesses
from shoal.core.policies.bass.common import count_all, judge_all, measure_pairs, noise_limits
from shoal.core.policies.bass.level import calibrated_gamma
from shoal.core.policy.cuts import CuttingPolicy
from shoal.core.policy.explanations import Name, When, differing, in_round, numbered, pair_text
from shoal.core.policy.living import MANY
from shoal.core.policy.parameters import Exploring, Rewards
from shoal.core.policy.units import UnitPolicy
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Vector
from shoal.core.validation import LARGEST, SMALLEST

WITNESS_BYTES = 2**25
"""Memory that witnesses may take. With more agents than that allows (617 at d = 10) the crowd's engine
serves: it is faster from about there on, and its memory does not grow with the square of N."""


class BASSParameters(Exploring, frozen=True, kw_only=True):
    """Parameters of BASS."""

    level: Annotated[
        Annotated[float, Meta(gt=0.0, lt=1.0)] | None,
        Meta(
            description="Largest probability with which two identical agents are cut, from 0.02 to 0.2 "
            "(docs/theory.md); sets `gamma` and `radius`. None: no such promise."
        ),
    ] = None
    delta: Annotated[
        float,
        Meta(gt=0.0, lt=1.0, description="δ of the radius β. It is not the probability of a wrong cut."),
    ] = 0.1
    gamma: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(description="Scale of the ellipsoids: larger values share longer. None: 2, or by `level`."),
    ] = None
    radius: Annotated[
        Literal["beta", "beta_squared"] | None,
        Meta(
            description="Scale by β (as published figures do) or β² (as the proofs do; try γ = 1.25). "
            'None: "beta", or "beta_squared" with a `level`.'
        ),
    ] = None
    noise_scale: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(
            description="R, the scale of the sub-Gaussian noise; better given if known. None: of each agent, "
            "estimated from its own samples alone; then arms or rewards times a factor make no difference "
            "(docs/algorithms.md)."
        ),
    ] = 1.0
    param_norm: Annotated[
        float,
        Meta(
            ge=0.0,
            le=LARGEST,
            description="S, a bound on every agent's ‖θ‖; 0 is the radius as the paper prints it.",
        ),
    ] = 1.0
    rewards: Rewards = "real"


class CutExplanation(NamedTuple):
    """Why two agents share, or stopped."""

    statistic: float
    """max f, from the agents' present samples."""
    threshold: float
    """γ²/4: above it the pair is cut."""
    s: float
    """The s at which the statistic is attained."""
    radius_agent: float
    radius_other: float
    """β of each."""
    separated: bool
    separation_time: int
    """Round in which the pair was cut, −1 if it was not."""
    lent_by_agent: int
    lent_by_other: int
    """Samples each contributes to the other's pool now."""
    agent: int
    other: int
    distance: float
    """‖θ̂_i − θ̂_j‖."""
    allowed: float
    """The distance, in the direction of θ̂_i − θ̂_j, at which the statistic would be at its threshold."""
    noise_agent: float
    noise_other: float
    """R of each; inf where it is estimated and the samples are too few."""
    level: float | None = None
    """Largest probability with which identical agents are cut; None if none was asked for."""

    @property
    def together(self) -> bool:
        """Whether the pair was not cut."""
        return not self.separated

    def text(self, name: Name = numbered, when: When = in_round) -> str:
        """The same in words."""
        reason = differing(self.distance, self.allowed, cut=self.separated)
        for who, noise in ((self.agent, self.noise_agent), (self.other, self.noise_other)):
            if math.isinf(noise):
                reason += f", and {name(who)} has too few samples to tell that from noise"
                break
        if self.separated and self.level is not None:
            reason += f", a test that cuts identical agents with probability {self.level:g} at most"
        return pair_text(self, name, when, reason)

    def __str__(self) -> str:
        return self.text()


class BASS(UnitPolicy, CuttingPolicy):
    """Shares samples along the edges of a graph; cuts (i, j) when `max_s f(s) > γ²/4`.

    By default the test is the published one, with which δ is not the probability of a wrong cut: of 20
    identical agents with d = 10, δ = 0.1, noise 1 and 500 pulls each, it cuts about a fifth of the pairs.
    With `level` that probability is what you ask for at most; what this costs is in docs/theory.md.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.BASS(n_agents=3, dim=2, alpha=0.3, delta=0.1)
    >>> arms = np.eye(2)
    >>> policy.update(0, arms[1], reward=1.0)
    >>> policy.select(2, arms)  # agent 2 has no sample of its own, and uses agent 0's
    1

    Notes
    -----
    Departs from the paper: the printed test's slips are corrected, the radius has the term √ridge · S of the
    theorem that the paper cites, and the bonus has ln(t+1), not log t (docs/algorithms.md).
    """

    name = "bass"
    label = "BASS"
    line_style = LineStyle("#e87000", "*", width=2.2)
    in_paper = True
    degree = 2
    Parameters = BASSParameters
    State = witnesses.State
    gamma: float
    """γ in force: as given, or what `level` asks for."""

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        super()._configure(dim, parameters)
        own = self._parameters
        if own.level is None:
            gamma, radius = own.gamma or 2.0, own.radius or "beta"
            self._parameters, self.gamma = replace(own, gamma=gamma, radius=radius), gamma
            return
        for name in sorted(self.superseded(["level"])):
            if getattr(own, name) is not None:
                raise ValueError(f"level sets {name}: give level={own.level!r} or {name}, not both")
        self.gamma = calibrated_gamma(own, self.inner_dim)

    @classmethod
    def superseded(cls, given: Collection[str]) -> frozenset[str]:
        if "level" in given:
            return frozenset({"gamma", "radius"})
        return frozenset() if {"gamma", "radius"}.isdisjoint(given) else frozenset({"level"})

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"delta": 0.1}

    @property
    def _most(self) -> int:
        """Agents for whom witnesses are kept."""
        return math.isqrt(WITNESS_BYTES // (8 * (self.inner_dim + 1)))

    @property
    def engine_limits(self) -> tuple[int, ...]:
        return (self._most,)

    def _engine(self, n_agents: int) -> ModuleType:
        """The module that serves `n_agents` agents."""
        return witnesses if n_agents**2 * 8 * (self.inner_dim + 1) <= WITNESS_BYTES else crowd

    @property
    def _own(self) -> ModuleType:
        """The module whose state this is."""
        return witnesses if isinstance(self.state, witnesses.State) else crowd

    def _state_class(self, n_agents: int) -> Any:
        return self._engine(n_agents).State

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return self._sizes_ahead(n_agents, n_agents)

    def _sizes_ahead(self, n_agents: int, present: int) -> dict[str, int]:
        engine = self._engine(present)
        n_agents = min(n_agents, self._most) if engine is witnesses else n_agents
        return {**super()._sizes(n_agents), **engine.sizes(self.inner_dim)}

    def _tables_ahead(self, n_agents: int) -> dict[str, int]:
        if (
            MANY <= n_agents <= self._most
        ):  # to copy witnesses takes long: make room for all there may ever be
            return self._sizes_ahead(self._most, n_agents)
        return super()._tables_ahead(n_agents)

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        squared = own.level is not None or own.radius == "beta_squared"
        return {
            **super()._settings(),
            # With β² estimated noise has to exceed the true one with probability 1 − δ, as the ellipsoids do;
            # β promises no such thing, and a limit above the median only delays its cuts.
            "quantile": NormalDist().inv_cdf(min(own.delta, 0.5)) if squared else 0.0,
            "offset": math.sqrt(own.ridge) * own.param_norm,
            "confidence": -2.0 * math.log(own.delta) - self.inner_dim * math.log(own.ridge),
            "squared": squared,
            "threshold": self.gamma**2 / 4.0,
        }

    def _join(self, state: Any, first: int) -> None:
        active = state.common.active
        if first > 0 and type(state) is not type(self.state):
            crowd.start(state, self.pinned_state(state))
            return
        state.degree[:first] += active[:first] * (len(active) - first)
        state.degree[first:] = np.count_nonzero(active) - 1
        self._engine(len(active)).join(state, self.pinned_state(state), first)

    def _derive(self, state: Any) -> None:
        self._engine(len(state.degree)).derive(state, self.pinned_state(state))

    def _problem(self, state: Any) -> str:
        if trouble := super()._problem(state):
            return trouble
        if state.seen.any() and not self._learns_units:
            return "seen is not 0, and units are given"
        if self._learns_units:
            known = np.array(state.seen)
            count_all(self.pinned_state(state))
            size = state.seen + np.array([state.squares.sum(), 0.0, 0.0, 0.0])
            if (np.abs(known - state.seen) > 1e-6 * size).any():
                return "seen is not the sum over who lends"
            state.seen[:] = known
        return str(self._engine(len(state.degree)).problem(state, self._ridges(state)))

    def _margins(self, agent: int, others: Integers) -> Vector:
        statistics = np.zeros(len(others))
        measure_pairs(self.pinned_state(), agent, others, statistics)
        return np.asarray(statistics / self.state.threshold)

    def _explain_pair(self, agent: int, other: int) -> CutExplanation:
        i, j, state, local = agent, other, self.pinned_state(), self.state.local
        statistic, s, _ = search(
            local.theta_hat[i], local.A[i], local.tail[i], state.radius[i],
            local.theta_hat[j], local.A[j], local.tail[j], state.radius[j],
            state.threshold, False, True, state.scratch.test,
        )  # fmt: skip
        when = self._round_of_cut(i, j)
        gap = float(np.linalg.norm(local.theta_hat[i] - local.theta_hat[j]))
        noise, c = self._noise_of(np.array([i, j])), state.radius[[i, j]]
        scales = np.minimum(noise, LARGEST) if self._learns_units else 1.0
        beta = np.sqrt(c) if state.squared else c / scales
        return CutExplanation(
            statistic=statistic,
            threshold=state.threshold,
            s=s,
            radius_agent=float(beta[0]),
            radius_other=float(beta[1]),
            separated=when >= 0,
            separation_time=when,
            lent_by_agent=int(local.pulls[i] * self._used(j)[i]),
            lent_by_other=int(local.pulls[j] * self._used(i)[j]),
            agent=i,
            other=j,
            distance=gap,
            allowed=self._allowed(gap, statistic / state.threshold) if np.isfinite(noise).all() else math.nan,
            noise_agent=float(noise[0]),
            noise_other=float(noise[1]),
            level=self._parameters.level,
        )

    @property
    def noise_scales(self) -> Vector:
        """R of each agent, shape (N,): `noise_scale`, or what is estimated, inf where samples are too few."""
        with self.lock:
            return self._noise_of(np.arange(self.n_agents))

    def _noise_of(self, agents: Integers) -> Vector:
        if self._parameters.noise_scale is not None:
            return np.full(len(agents), self._parameters.noise_scale)
        limits = np.empty(len(agents))
        noise_limits(self.pinned_state(), agents, limits)
        return np.where(limits < LARGEST, limits, np.inf)

    def _edges(self) -> Booleans:
        return np.asarray(self._own.edges(self.state))

    def _pool(self, agent: int) -> Booleans:
        return np.asarray(self._own.pool(self.pinned_state(), agent))

    def _pooled_estimate(self, agent: int) -> Vector:
        self._own.factor_pool(self.pinned_state(), agent)
        estimate, scratch = np.zeros(self.inner_dim), self.state.scratch
        solve_cholesky(scratch.L, scratch.total[-self.inner_dim :], estimate)
        return estimate

    def _forget_tests(self) -> None:
        self._own.forget_tests(self.state, self.pinned_state())

    def _end_edges(self, agent: int) -> None:
        neighbors = self._pool(agent)
        neighbors[agent] = False
        self.state.degree[neighbors] -= 1

    def _withdraw(self, agent: int) -> None:
        self._forget_cuts((self.state.cuts.pairs[: self.state.cuts.used[0]] == agent).any(axis=1))
        self.state.degree[agent] = 0
        super()._withdraw(agent)
        self._count_anew()
        self._own.withdraw(self.state, self.pinned_state(), agent)

    def _count_anew(self) -> None:
        if self._learns_units:
            count_all(self.pinned_state())

    def _absorb(self, agent: int, other: int) -> None:
        super()._absorb(agent, other)
        self._lending_changed(agent)

    def _lending_changed(self, agent: int) -> None:
        self._count_anew()
        self._own.relend(self.state, self.pinned_state(), agent)

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        super()._amended(agent, x, old, change, removes)
        self._count_anew()
        self._own.amend(self.state, self.pinned_state(), agent, x, change, removes)

    def _reconsider(self, agent: int) -> None:
        separated = np.zeros(self.n_agents, dtype=np.bool_)
        judge_all(self.pinned_state(), agent, separated)
        self._cut_from(agent, separated)

    def _cut_from(self, agent: int, separated: Booleans) -> None:
        state = self.pinned_state()
        known = ~state.common.withdrawn
        was = ~self._pool(agent) & known
        for other in np.flatnonzero(separated & ~was & known).tolist():
            self._own.cut_pair(state, agent, other, self.rounds)
        joined = was & ~separated
        state.degree[agent] += np.count_nonzero(joined & state.common.active)
        state.degree[joined] += state.common.active[agent]
        self._forget_cuts_of(agent, joined)
        self._own.rejoin(state, agent, joined)
