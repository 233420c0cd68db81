"""ClusterMixture: weigh by evidence which cluster an agent belongs to, and explore what is not known of it.

Not in the paper: a policy of our own. Agents are clustered by drawing each one's cluster from its posterior
(a Chinese-restaurant process, one Gibbs step at a time). An agent chooses by all the clusters that it may
belong to, each counting by its probability. Members of a cluster resemble each other as much as the data say
(`scatter`), and agents and clusters may change (`drift`).

What users call is here. A round is in `choice` (`select`) and `learning` (`observe` and `revise`, which
`update` calls); what corrects the state between rounds is in `corrections`.
"""

import math
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from msgspec import Meta
from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.kernels.graphs import count_joined
from shoal.core.policies.mixture import corrections
from shoal.core.policies.mixture.choice import LEAST_SHARE, factor_components
from shoal.core.policies.mixture.clusters import evaluate, wait_in
from shoal.core.policies.mixture.evidence import weigh
from shoal.core.policies.mixture.explanation import MembershipExplanation
from shoal.core.policies.mixture.features import TEMPER_GRID, temper_of
from shoal.core.policies.mixture.learning import FIRST_OF_CLICKS, FIRST_SCATTER
from shoal.core.policies.mixture.noise import estimate_noise
from shoal.core.policies.mixture.profiles import profile_problem
from shoal.core.policies.mixture.state import (
    AGENT,
    CLUSTER,
    GHOST,
    LIFTS,
    SCATTERS,
    SLOPES,
    TO_TEND,
    MixtureState,
    base_of,
    lift_of,
    noise_of,
    scatter_of,
)
from shoal.core.policy.calls import checked_agent
from shoal.core.policy.clicks import INTERCEPT
from shoal.core.policy.living import LivePolicy, Sharing
from shoal.core.policy.parameters import Parameters, Rewards
from shoal.core.statistics import packed_problem
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST, SMALLEST

SOFTENED_MOST = 64
"""Clusters whose softened sums are remembered: the lowest rows, which are the ones in use."""
LEAST_SCATTER = 1e-6
"""Smallest scatter that can be given, beside 0."""


class MixtureParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of ClusterMixture."""

    alpha: Annotated[
        float, Meta(ge=0.0, le=LARGEST, description="Width of the confidence bonus, in units of the noise.")
    ] = 0.6
    spread: Annotated[
        float,
        Meta(ge=0.0, le=LARGEST, description="η, how much not knowing the cluster makes an agent explore."),
    ] = 1.0
    concentration: Annotated[
        float,
        Meta(
            ge=SMALLEST,
            le=LARGEST,
            description="c, the weight of a cluster of one's own beside the others' numbers of members.",
        ),
    ] = 5.0
    redraws: Annotated[
        int, Meta(ge=0, le=1000, description="Other agents whose cluster is drawn again after each pull.")
    ] = 1
    noise_scale: Annotated[
        Annotated[float, Meta(ge=SMALLEST, le=LARGEST)] | None,
        Meta(description="Scale of the noise; None: estimated from the samples, also of each agent."),
    ] = None
    scatter: Annotated[
        Annotated[float, Meta(ge=0.0, le=1e6)] | None,
        Meta(description="κ, variance of members' parameters over the noise's; 0: the same; None: learned."),
    ] = None
    drift: Annotated[
        bool,
        Meta(description="Whether agents and clusters may change. With binary rewards, False unless given."),
    ] = True
    ridge_bonus: Annotated[
        float,
        Meta(
            ge=0.0,
            le=1000.0,
            description="Standard deviations of what the ridge may hide that are explored. "
            "With binary rewards, 1 unless given.",
        ),
    ] = 3.0
    rewards: Rewards = "real"
    agent_dim: Annotated[
        int, Meta(ge=0, le=10_000, description="Features that describe an agent; see `agent_features`.")
    ] = 0


class ClusterMixture(LivePolicy):
    """Chooses by the mixture of all clusters k an agent may belong to, each with its probability `π_k`.

    `argmax_x m(x) + √(α² s² ln(T_i+e) Σ_k π_k xᵀA_k⁻¹x + η² Var_π(x·θ̂_k))` with `m(x) = Σ_k π_k x·θ̂_k`, where
    A_k and θ̂_k are those of the cluster with the agent in it, s² is the noise variance and T_i counts the
    agent's samples. The ridge and the noise, also of each agent, are learned, in units of the samples:
    rewards or arms times a factor change no choice. `π_k` is in proportion to the number of other members
    times the evidence for pooling the agent's samples with theirs, against not pooling them. After each of
    its pulls an agent's cluster is drawn from π. What is known of the agents themselves (`agent_features`, an
    array of shape (n_agents, agent_dim) in which NaN is a missing entry) makes clusters of similar agents
    more probable, as far as that proves right. What is exact for `scatter=0, drift=False,
    ridge_bonus=0` is in docs/algorithms.md refined by the parameters of these names.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> policy = shoal.ClusterMixture(n_agents=3, dim=2, seed=0)
    >>> policy.update(0, np.array([0.0, 1.0]), reward=1.0)
    >>> round(policy.posterior(2)[0], 2)  # agent 2 has no samples: one member against c = 5
    0.17
    >>> policy.select(2, np.eye(2))
    1

    Agents who are described, by two features each:

    >>> policy = shoal.ClusterMixture(2, 2, agent_features=[[34.0, 1.0], [np.nan, 0.0]], seed=0)
    >>> policy.add_agents(1, agent_features=[[19.0, 0.0]])
    array([2])
    >>> policy.set_features(1, [52.0, 0.0])
    >>> policy.agent_features[1]
    array([52.,  0.])

    Notes
    -----
    Not in the paper, and no bound is claimed.
    """

    name = "cluster_mixture"
    label = "ClusterMixture"

    line_style = LineStyle(
        "#5b2a86", "P", dashes=((3.0, 1.0, 3.0, 1.0, 1.0, 1.0), (2.0, 1.0)), width=2.2, further="#8f7be0"
    )
    Parameters = MixtureParameters
    given = MappingProxyType(
        {"agent_features": "What is known of each agent, (n_agents, agent_dim); NaN is a missing entry."}
    )
    State = MixtureState

    def __init__(
        self, n_agents: int, dim: int, *, agent_features: ArrayLike | None = None, **parameters: Any
    ) -> None:
        given = None
        if agent_features is not None:
            n_agents, wanted = validation.natural("n_agents", n_agents), parameters.get("agent_dim")
            given = validation.features("agent_features", agent_features, n_agents, wanted)
            parameters = {**parameters, "agent_dim": given.shape[1]}
        super().__init__(n_agents, dim, **parameters)
        if given is not None:
            self.state.pool.members.features[:] = given

    def _configure(self, dim: int, parameters: Any) -> None:
        if parameters.get("rewards") == "binary":
            if parameters.get("noise_scale") is not None:
                raise ValueError(f"clicks have no noise_scale, got {parameters['noise_scale']!r}")
            # Rare clicks look like changes. A third of the usual bonus suffices against unlucky first clicks.
            parameters = {"drift": False, "ridge_bonus": 1.0, **parameters}
        super()._configure(dim, parameters)
        scatter = self._parameters.scatter
        if scatter is not None and 0.0 < scatter < LEAST_SCATTER:  # (I − (I + κS)⁻¹)/κ would lose its digits
            raise ValueError(f"scatter must be 0, at least {LEAST_SCATTER:g} or None, got {scatter!r}")

    @property
    def _softens(self) -> bool:
        """Whether what is lent may differ from the samples' sums: by the scatter, or by weights."""
        return bool(self._parameters.scatter != 0.0 or self._parameters.noise_scale is None)

    def _sizes(self, n_agents: int) -> dict[str, int]:
        own = self._parameters
        members = n_agents * (2 if own.drift else 1)
        return {
            **super()._sizes(n_agents),
            "kinds": 2 if own.drift else 1,
            "clusters": members,
            "components": min(members + 1, int(1.0 / LEAST_SHARE)) + 1,
            "grid": len(self._grid()),
            "soft": n_agents if self._softens else 0,
            "softened": 1 + min(members, SOFTENED_MOST) if own.scatter != 0.0 else 0,
            "voters": n_agents if own.scatter is None else 0,
            "changing": n_agents if own.drift else 0,
            "moving": members if own.drift else 0,
            "features": own.agent_dim,
            "described": n_agents if own.agent_dim else 0,
            "profiled": members if own.agent_dim else 0,
            "tempers": len(TEMPER_GRID) if own.agent_dim else 0,
        }

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        return {
            **super()._settings(),
            "log_concentration": math.log(own.concentration),
            "slopes": self.dim,
            "learns_noise": own.noise_scale is None and not self.clicks,
            "softens": self._softens,
        }

    def _join(self, state: MixtureState, first: int) -> None:
        model, members, clusters, _ = state.pool
        members.labels[first:] = -1 - np.arange(first, len(members.labels))[:, None]
        members.features[first:] = math.nan
        model.grid[:] = self._grid()
        clusters.resummed[CLUSTER] = -1  # whose turn was over is said in numbers that ghosts no longer have
        if state.upkeep[TO_TEND] > 0:
            state.upkeep[TO_TEND] = members.labels.size
        if first == 0:
            first = FIRST_OF_CLICKS if self.clicks else FIRST_SCATTER
            model.position[SLOPES] = first if self._parameters.scatter is None else 0
            model.prior[0] = state.common.ridge
            self._set_noise(state)

    def _grid(self) -> tuple[float, ...]:
        if self._parameters.scatter is not None:
            return (self._parameters.scatter,)
        return SCATTERS + LIFTS if self.clicks else SCATTERS

    def _set_noise(self, state: MixtureState) -> None:
        """Estimate the noise from what agents who lend have seen, or set it to what was given."""
        estimate_noise(self.pinned_state(state))
        if not state.learns_noise:
            state.pool.model.noise[:] = 1.0 if self.clicks else self._parameters.noise_scale**2, 1.0

    def _derive(self, state: MixtureState) -> None:
        model, members, clusters, work = self.pinned_state(state).pool
        model.grid[:] = self._grid()
        labels, there = members.labels, members.labels >= 0
        removed = labels[~state.common.active & there[:, AGENT], AGENT]
        clusters.removed[:] = np.bincount(removed, minlength=len(clusters.removed))
        there[:, AGENT] &= state.common.active
        for kind in range(labels.shape[1]):
            found = labels[there[:, kind], kind]
            clusters.sizes[:, kind] = np.bincount(found, minlength=len(clusters.removed))
        used = np.flatnonzero(clusters.sizes.sum(axis=1))
        clusters.used[: len(used)], clusters.n_used[0] = used, len(used)
        for cluster in used[clusters.outdated[used] == 0].tolist():
            evaluate(clusters, work, model.prior[0], base_of(model), cluster)

    def _problem(self, state: MixtureState) -> str:
        if trouble := super()._problem(state):
            return trouble
        model, members, clusters, _ = state.pool
        labels, noise, pending = members.labels, model.noise.copy(), state.common.pending
        ghosts = labels[:, GHOST:]
        counted = state.common.active & state.common.lends & (state.labels >= 0)
        alive = set(labels[counted, AGENT]) | set(ghosts[ghosts >= 0])
        if set(labels[labels >= 0]) - alive:
            return "a cluster has no active member"
        usual = model.ridge * model.unit[0] * self.dim
        # Far wider than its bounds: until it is learned anew, the ridge is that of arms as they were before.
        if not 1e-15 * usual <= model.prior[0] <= 1e15 * usual:
            return f"pool.model.prior is {model.prior[0]:g}, and arms call for {usual:g}"
        if not -1 <= clusters.resummed[CLUSTER] < len(clusters.sums):
            return "pool.clusters.resummed names no cluster"
        summed, size = np.zeros_like(clusters.sums), np.zeros_like(clusters.sums)
        np.add.at(summed, labels[labels >= 0], members.lent[labels >= 0])
        np.add.at(size, labels[labels >= 0], np.abs(members.lent[labels >= 0]))
        if (np.abs(clusters.sums - summed) > 1e-6 * (size + clusters.peak[:, None])).any():
            return "clusters.sums is not the sum over the members of each cluster"
        if trouble := profile_problem(state):
            return trouble
        waiting = np.zeros_like(clusters.waiting)
        np.add.at(waiting, 1 + np.maximum(labels[:, AGENT], -1), pending.counts * state.common.lends)
        if (labels[~state.common.lends] >= 0).any():
            return "an agent who does not lend is in a cluster"
        if not np.array_equal(waiting, clusters.waiting):
            return "pool.clusters.waiting does not count the pending pulls of each cluster's agents"
        own = members.raw[:, AGENT] if model.softens else members.lent[:, AGENT]
        everyone = np.ones(len(labels), dtype=np.bool_)
        if trouble := packed_problem(own, state.local, state.common.ridge, everyone):
            return trouble
        total = (state.looks * state.common.lends[:, None]).sum(axis=0)
        size = np.abs(state.looks).sum(axis=0) + 1.0
        if (np.abs(state.looked - total) > 1e-6 * size).any():
            return "looked is not the sum over the agents who lend"
        if state.squares[state.local.pulls == 0].any() or state.looks[state.local.pulls == 0].any():
            return "squares or looks are not 0 where there are no samples"
        self._set_noise(state)
        if not noise.min() > 0.0 or not np.allclose(noise, model.noise, rtol=1e-6, atol=0.0):
            return f"noise is {noise.tolist()}, and the samples say {model.noise.tolist()}"
        model.noise[:] = noise
        return ""

    @property
    def labels(self) -> Integers:
        """Cluster of each agent, −1 for those that have none, shape (N,); a copy."""
        return np.asarray(np.maximum(self.state.labels, -1))

    def _edges(self) -> Booleans:
        return np.asarray(np.equal.outer(self.state.labels, self.state.labels))

    def count_edges(self, labels: Integers | None = None) -> tuple[int, int]:
        """Number of edges, and of those that join agents with the same label (0, 1, …)."""
        there = self.state.common.active & (self.state.labels >= 0)
        return count_joined(self.state.labels[there], None if labels is None else labels[there])

    @property
    def noise_variance(self) -> float:
        """The noise variance that evidence is measured with: estimated, or as given."""
        return noise_of(self.state.pool.model)

    @property
    def scatter(self) -> float:
        """κ: variance of members' parameters around their cluster's, over the noise's; learned, or given."""
        return scatter_of(self.state.pool.model)

    @property
    def base_spread(self) -> float:
        """Of clicks: standard deviation of agents' base rates in a cluster, as logits.

        It is learned, one of six values. Of real rewards it is 0.
        """
        return INTERCEPT * math.sqrt(lift_of(self.state.pool.model))

    @property
    def noise_variances(self) -> Vector:
        """The noise variance of each agent, shape (N,): all alike unless their samples say otherwise."""
        return np.asarray(self.noise_variance / self.state.pool.model.weights)

    @property
    def agent_dim(self) -> int:
        """Features that describe an agent."""
        return int(self._parameters.agent_dim)

    @property
    def agent_features(self) -> Matrix:
        """What is known of each agent, shape (N, agent_dim), NaN where nothing is; a copy."""
        return np.array(self.state.pool.members.features).reshape(self.n_agents, self.agent_dim)

    @property
    def temper(self) -> float:
        """τ, how far features are trusted: learned, 1 at the start; 0 without features."""
        return float(temper_of(self.pinned_state().pool.model)) if self.agent_dim else 0.0

    def add_agents(
        self, n: int = 1, *, sharing: Sharing = "both", agent_features: ArrayLike | None = None
    ) -> Integers:
        """Add `n` agents that have seen nothing and return their ids; they share as `set_sharing` says.

        `agent_features`, shape (n, agent_dim), is what is known of them; NaN is a missing entry.
        """
        given = None
        if agent_features is not None:
            n = validation.positive_int("n", n)
            given = validation.features("agent_features", agent_features, n, self.agent_dim)
        with self.lock:
            found = super().add_agents(n, sharing=sharing)
            if given is not None and self.agent_dim:
                self.state.pool.members.features[found] = given
        return found

    def set_features(self, agent: int, agent_features: ArrayLike) -> None:
        """Say what is known of `agent` now, shape (agent_dim,), NaN where nothing is; costs no round.

        Nothing stays of what was said before but where agents have been put meanwhile.
        """
        agent = self._check_agent(agent)
        given = validation.features("agent_features", [agent_features], 1, self.agent_dim)[0]
        with self._change("set_features"):
            if len(given):
                corrections.describe(self.pinned_state(), agent, given)

    def features_of(self, agent: int) -> Vector:
        """What is known of one agent, shape (agent_dim,); a copy."""
        agent = self._check_agent(agent)
        return np.array(self.state.pool.members.features[agent]) if self.agent_dim else np.empty(0)

    @property
    def forgot(self) -> Integers:
        """Round in which each agent was last found to have changed, −1 if never, shape (N,); a copy."""
        return np.array(self.state.drift.forgot) if self._parameters.drift else np.full(self.n_agents, -1)

    def posterior(self, agent: int) -> dict[int, float]:
        """Probability of each cluster that `agent` may belong to; −1 stands for one of its own."""
        agent = self._check_agent(agent)
        with self.lock:
            pool = self.pinned_state().pool
            count = weigh(pool, agent, int(self.state.local.pulls[agent]))
            clusters = [*pool.clusters.used[:count].tolist(), -1]
            chances = pool.scratch.chances[: count + 1].tolist()
        return {k: chance for k, chance in zip(clusters, chances, strict=True) if chance > 0.0}

    def _pool(self, agent: int) -> Booleans:
        """Who is in its cluster; of one who does not lend, and so has none, in the most probable one."""
        if self.state.common.lends[agent]:
            return np.asarray(self.state.labels == self.state.labels[agent])
        chances = self.posterior(agent)
        likeliest = max(chances, key=lambda cluster: chances[cluster])
        found = (self.state.labels == likeliest) & (likeliest >= 0)
        found[agent] = True
        return np.asarray(found)

    def lent(self, agent: int) -> Vector:
        labels, chances = self.state.labels, self.posterior(agent)
        shares = np.array([chances.get(label, 0.0) if label >= 0 else 0.0 for label in labels.tolist()])
        lent = np.where(shares >= LEAST_SHARE, shares * self.state.local.pulls, 0.0)
        lent[agent] = 0.0
        return np.asarray(lent * self.state.common.borrows[agent])

    def _explain_pair(self, agent: int, other: int) -> MembershipExplanation:
        i, j, common = agent, other, self.state.common
        (label_i, label_j), pulls = self.labels[[i, j]].tolist(), self.pulls
        forgot_agent, forgot_other = self.forgot[[i, j]].tolist()
        theirs, ours = self.posterior(j), self.posterior(i)
        by_rewards = self._by_rewards(label_j) if self.agent_dim else ours.get(label_j, 0.0)
        probability = 0.0 if label_j < 0 else ours.get(label_j, 0.0)
        back = 0.0 if label_i < 0 else theirs.get(label_i, 0.0)
        return MembershipExplanation(
            same_cluster=label_i == label_j >= 0,
            probability=probability,
            by_rewards=0.0 if label_j < 0 else by_rewards,
            alone=ours.get(-1, 0.0),
            pulls_agent=int(pulls[i]),
            pulls_other=int(pulls[j]),
            lent_by_agent=back * int(pulls[i]) * bool(common.borrows[j]),
            lent_by_other=probability * int(pulls[j]) * bool(common.borrows[i]),
            scatter=self.scatter,
            forgot_agent=forgot_agent,
            forgot_other=forgot_other,
            agent=i,
            other=j,
        )

    def _by_rewards(self, cluster: int) -> float:
        """What the last `posterior` would have said of a cluster had the agent no features."""
        clusters, gains = self.state.pool.clusters, self.state.pool.scratch.gains
        used = clusters.used[: clusters.n_used[0]]
        weights = np.exp(gains[: len(used) + 1] - gains[: len(used) + 1].max())
        return float(weights[:-1][used == cluster].sum() / weights.sum())

    def _pooled_estimate(self, agent: int) -> Vector:
        work = self.state.pool.scratch
        count = factor_components(self.pinned_state(), agent, 0.0)
        estimate = np.zeros(self.inner_dim)
        for share, L, y in zip(work.shares[:count], work.L, work.y, strict=False):
            estimate += share * np.linalg.solve(np.tril(L).T, y)
        return np.asarray(estimate / work.shares[:count].sum())

    def _end_pending(self, agent: int) -> None:
        state = self.pinned_state()
        if state.common.lends[agent]:
            wait_in(state.pool.clusters, state.common.pending, agent, state.labels[agent], -1)
        super()._end_pending(agent)

    def _lending_changed(self, agent: int) -> None:
        corrections.lending_changed(self.pinned_state(), agent)

    def _move_pending(self, agent: int, other: int) -> None:
        state = self.pinned_state()
        for who, sign in ((agent, -1), (other, -1), (agent, 1)):
            if sign > 0:
                super()._move_pending(agent, other)
            if state.common.lends[who]:
                wait_in(state.pool.clusters, state.common.pending, who, state.labels[who], sign)

    def _absorb(self, agent: int, other: int) -> None:
        corrections.absorb(self.pinned_state(), agent, other)

    def _end_edges(self, agent: int) -> None:
        corrections.remove(self.pinned_state(), agent)

    def holds(
        self,
        agent: int,
        x: ArrayLike,
        reward: float,
        learned: int,
        *,
        moments: tuple[float, float] | None = None,
    ) -> bool:
        """Whether a sample still counts: an agent found to have changed keeps its latest ones only."""
        agent, x = checked_agent(agent, self.n_agents), np.array(x, dtype=np.float64)
        if self.clicks:
            x, reward = self._as_sample(x, reward, moments)
        with self.lock:
            if not self._parameters.drift or self.state.drift.forgot[agent] < learned:
                return True
            order = corrections.latest(self.state.drift, agent)
            kept = self.state.drift.ring[agent, order, : self.inner_dim + 1]
            return bool((kept == [*x, reward]).all(axis=1).any())

    def _amended(self, agent: int, x: Vector, old: float, change: float, removes: bool) -> None:
        corrections.amend(self.pinned_state(), agent, x, old, change, removes)

    def _withdraw(self, agent: int) -> None:
        corrections.withdraw(self.pinned_state(), agent)
