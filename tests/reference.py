"""Naive twins of every kernel and policy, written from docs/algorithms.md alone.

Nothing here is fast and nothing is shared with the package: a twin keeps raw samples, sums pooled statistics
anew whenever it needs them and solves with the full matrices. Tests compare the compiled code with these.
"""

from collections.abc import Callable, Sequence
from math import cos, e, exp, log, pi, sqrt
from typing import Any, Literal, NamedTuple, Protocol

import mpmath
import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.optimize import brentq, minimize_scalar
from scipy.special import expit, gammaln
from scipy.stats import norm

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Sample = tuple[Floats, float]
Radius = Literal["beta", "beta_squared"]

# ---------------------------------------------------------------------------------------------------------
# Linear algebra
# ---------------------------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """`A` (d, d), `b` (d,), `theta_hat` (d,) and `logdet_A` of some samples."""

    A: Floats
    b: Floats
    theta_hat: Floats
    logdet_A: float


def statistics_from_sums(gram: Floats, b: Floats, ridge: float) -> Statistics:
    """Statistics from `gram` = sum of x xᵀ, without the ridge, and `b` = sum of y x."""
    A = ridge * np.eye(len(b)) + gram
    theta_hat = np.asarray(np.linalg.solve(A, b), dtype=np.float64)
    return Statistics(A, b.copy(), theta_hat, float(np.linalg.slogdet(A)[1]))


def fit(samples: Sequence[Sample], dim: int, ridge: float) -> Statistics:
    """Ridge regression on raw samples (x, y)."""
    gram = np.zeros((dim, dim))
    b = np.zeros(dim)
    for x, reward in samples:
        gram = gram + np.outer(x, x)
        b = b + reward * x
    return statistics_from_sums(gram, b, ridge)


def scores(theta_hat: Floats, A: Floats, arms: Floats, alpha: float, t: int) -> Floats:
    """Upper confidence score of every arm, (K,)."""
    A_inv = np.linalg.inv(A)
    return np.array([theta_hat @ x + alpha * sqrt((x @ A_inv @ x) * log(t + 1)) for x in arms])


def choose(theta_hat: Floats, A: Floats, arms: Floats, alpha: float, t: int) -> int:
    """Index of the best score, the lowest one on ties."""
    values = scores(theta_hat, A, arms, alpha, t)
    best = 0
    for k in range(1, len(values)):
        if values[k] > values[best]:
            best = k
    return best


def beta(
    delta: float, logdet_A: float, noise_scale: float, param_norm: float = 1.0, ridge: float = 1.0
) -> float:
    """Confidence radius, unsquared; with a ridge other than one, pass `logdet_A - dim * log(ridge)`."""
    return sqrt(ridge) * param_norm + noise_scale * sqrt(2 * log(1 / delta) + logdet_A)


def radius_constant(radius: Radius, beta_value: float) -> float:
    """The c of the separation test: β or β²."""
    return {"beta": beta_value, "beta_squared": beta_value**2}[radius]


# ---------------------------------------------------------------------------------------------------------
# Separation test: the same number, or the same verdict, by unrelated routes
# ---------------------------------------------------------------------------------------------------------

LOGIT_END = 40.0  # the searches over s run over logit(s) in [-LOGIT_END, LOGIT_END]


def f(s: float, theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float) -> float:
    """The function of s whose maximum is the separation statistic, as it is defined."""
    v = theta_i - theta_j
    return float(v @ np.linalg.inv(c_i / (1 - s) * np.linalg.inv(A_i) + c_j / s * np.linalg.inv(A_j)) @ v)


def separation_statistic_eigen(
    theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float
) -> float:
    """Maximum of f over s, after diagonalising both inverses at once.

    With A_i⁻¹Φ = A_j⁻¹Φ diag(η), Φᵀ A_j⁻¹ Φ = I and μ = Φᵀv: f(s) = Σ_k μ_k² / (c_i η_k/(1−s) + c_j/s).
    The search is over logit(s), so that a maximum close to 0 or 1 is found as precisely as any other. Good
    for condition numbers up to about 1e6; beyond, the inverses lose digits and the mp twin is the judge.
    """
    eta, Phi = eigh(np.linalg.inv(A_i), np.linalg.inv(A_j))
    mu = Phi.T @ (theta_i - theta_j)

    def minus_f(logit: float) -> float:
        s, one_minus_s = expit(logit), expit(-logit)
        return -float(np.sum(mu**2 / (c_i * eta / one_minus_s + c_j / s)))

    found = minimize_scalar(
        minus_f, bounds=(-LOGIT_END, LOGIT_END), method="bounded", options={"xatol": 1e-10, "maxiter": 1000}
    )
    return -float(found.fun)


def separation_statistic_grid(
    theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float, *, n: int = 4001
) -> float:
    """Maximum of f, from its definition, over n values of s spaced evenly in logit(s).

    Never above the true maximum; below it by a relative error of about (step in logit)² / 8 at most.
    The grid ends at logit ±30, where 1 − s still has digits.
    """
    grid = expit(np.linspace(-30.0, 30.0, n))
    return max(f(float(s), theta_i, A_i, c_i, theta_j, A_j, c_j) for s in grid)


def separation_statistic_mp(
    theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float, *, digits: int = 60
) -> float:
    """Maximum of f by golden-section search over logit(s), in `digits`-digit arithmetic.

    The inputs are taken as the exact values of their doubles. f is concave in s, hence unimodal in logit(s).
    """
    with mpmath.workdps(digits):
        v = mpmath.matrix(theta_i.tolist()) - mpmath.matrix(theta_j.tolist())
        inverse_i = mpmath.inverse(mpmath.matrix(A_i.tolist())) * mpmath.mpf(c_i)
        inverse_j = mpmath.inverse(mpmath.matrix(A_j.tolist())) * mpmath.mpf(c_j)

        def f_of_logit(logit: Any) -> Any:
            s = 1 / (1 + mpmath.exp(-logit))
            one_minus_s = 1 / (1 + mpmath.exp(logit))
            solution = mpmath.lu_solve(inverse_i / one_minus_s + inverse_j / s, v)
            return (v.T * solution)[0]

        golden = (mpmath.sqrt(5) - 1) / 2
        low, high = mpmath.mpf(-LOGIT_END), mpmath.mpf(LOGIT_END)
        left, right = high - golden * (high - low), low + golden * (high - low)
        f_left, f_right = f_of_logit(left), f_of_logit(right)
        for _ in range(90):  # the bracket ends below 1e-16, so f is right to about 1e-33
            if f_left < f_right:
                low, left, f_left = left, right, f_right
                right = low + golden * (high - low)
                f_right = f_of_logit(right)
            else:
                high, right, f_right = right, left, f_left
                left = high - golden * (high - low)
                f_left = f_of_logit(left)
        return float(max(f_left, f_right))


def nearest_by_geometry(
    theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float, *, gamma: float
) -> tuple[float, Floats]:
    """Least ‖z−θ̂_i‖²_{A_i}/c_i over the scaled ellipsoid of j, and the z that attains it.

    In coordinates w in which the ellipsoid of j is the unit ball this is least squares on a ball,
    min ‖M w − m‖² with ‖w‖ ≤ 1, solved by its Lagrange multiplier: the root of ‖w(multiplier)‖ = 1.
    """
    threshold = gamma**2 / 4
    L_i, L_j = np.linalg.cholesky(A_i), np.linalg.cholesky(A_j)
    z_of_w = np.linalg.inv(L_j.T) * sqrt(c_j * threshold)  # z = θ̂_j + z_of_w @ w
    M = L_i.T @ z_of_w / sqrt(c_i)
    m = L_i.T @ (theta_i - theta_j) / sqrt(c_i)
    U, sigma, Vt = np.linalg.svd(M)
    g = U.T @ m

    def w_of(multiplier: float) -> Floats:
        return np.asarray(Vt.T @ (sigma * g / (sigma**2 + multiplier)))

    w = w_of(0.0)
    if np.linalg.norm(w) > 1:
        multiplier = brentq(
            lambda multiplier: float(np.linalg.norm(w_of(multiplier))) - 1,
            0.0,
            2 * float(np.linalg.norm(sigma * g)),
            xtol=1e-300,
            rtol=1e-15,
            maxiter=2000,
        )
        w = w_of(multiplier)
    return float(np.sum((M @ w - m) ** 2)), theta_j + z_of_w @ w


def ellipsoids_intersect_by_geometry(
    theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float, *, gamma: float
) -> bool:
    """Whether {‖z−θ̂_i‖²_{A_i} ≤ c_i γ²/4} and the same for j have a point in common."""
    nearest, _ = nearest_by_geometry(theta_i, A_i, c_i, theta_j, A_j, c_j, gamma=gamma)
    return nearest <= gamma**2 / 4


def screen(theta_i: Floats, A_i: Floats, c_i: float, theta_j: Floats, A_j: Floats, c_j: float) -> float:
    """Upper bound on the separation statistic from Lemma 2, exact when A_i and A_j are proportional."""
    v = theta_i - theta_j
    if not np.any(v):
        return 0.0
    return float((np.sqrt(c_i / (v @ A_i @ v)) + np.sqrt(c_j / (v @ A_j @ v))) ** -2)


# ---------------------------------------------------------------------------------------------------------
# Policies
# ---------------------------------------------------------------------------------------------------------


def F(pulls: int) -> float:
    """The width CLUB and SCLUB give an estimate made from that many pulls."""
    return sqrt((1 + log(1 + pulls)) / (1 + pulls))


def distance(p: Floats, q: Floats) -> float:
    """Euclidean distance."""
    return float(np.linalg.norm(p - q))


def connected_components(graph: Bools) -> list[list[int]]:
    """Components of an undirected graph, each sorted, in the order of their lowest agent."""
    components: list[list[int]] = []
    seen: set[int] = set()
    for start in range(len(graph)):
        if start in seen:
            continue
        reached = {start}
        while True:
            more = {j for i in reached for j in range(len(graph)) if graph[i, j]} - reached
            if not more:
                break
            reached |= more
        seen |= reached
        components.append(sorted(reached))
    return components


class Xorshift:
    """Marsaglia's xorshift64: the policies' own random numbers."""

    def __init__(self, seed: int) -> None:
        self.word = max(int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]), 1)

    def uniform(self) -> float:
        """A number in [0, 1)."""
        self.word ^= self.word << 13 & (2**64 - 1)
        self.word ^= self.word >> 7
        self.word ^= self.word << 17 & (2**64 - 1)
        return (self.word >> 11) / 2**53

    def below(self, n: int) -> int:
        """An integer in 0, …, n−1."""
        return int(self.uniform() * n)

    def normal(self) -> float:
        """A standard normal number."""
        return sqrt(-2 * log(1 - self.uniform())) * cos(2 * pi * self.uniform())

    def gamma(self, shape: float) -> float:
        """A number of the gamma distribution with a shape of at least 1."""
        d = shape - 1 / 3
        while True:
            x = self.normal()
            v = (1 + x / sqrt(9 * d)) ** 3
            if v > 0 and log(1 - self.uniform()) < x * x / 2 + d - d * v + d * log(v):
                return d * v

    def normals(self, t: int, agent: int, n: int) -> Floats:
        """`n` standard normal numbers that belong to an agent's round; the state stays as it is."""
        half = 2**32 - 1
        left, right, key = (self.word ^ t) & half, self.word >> 32 ^ int(agent), self.word & half
        for _ in range(10):  # Philox-2x32
            product = left * 0xD256D193
            left, right = product >> 32 ^ key ^ right, product & half
            key = key + 0x9E3779B9 & half
        aside = Xorshift(0)
        aside.word = max(left << 32 | right, 1)
        return np.array([aside.normal() for _ in range(n)])


class Twin:
    """What all twins share; a subclass says whom an agent pools (`pool`) and how that changes (`revise`)."""

    foresees = False
    """Whether pulls whose rewards are due narrow the width."""
    exploration = "ucb"
    bonus = "ucb"
    width_scale = 1.0
    """What alpha is multiplied by in the present choice."""
    rng: Xorshift

    def __init__(self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0) -> None:
        self.n_agents = n_agents
        self.dim = dim
        self.alpha = alpha
        self.ridge = ridge
        self.samples: list[list[Sample]] = [[] for _ in range(n_agents)]
        self.gram: list[Floats] = [np.zeros((dim, dim)) for _ in range(n_agents)]
        self.b: list[Floats] = [np.zeros(dim) for _ in range(n_agents)]
        self.communication_cost = 0
        self.active = [True] * n_agents
        self.waiting: list[list[Floats]] = [[] for _ in range(n_agents)]
        self.lends = [True] * n_agents
        self.borrows = [True] * n_agents

    def join(self, n: int) -> None:
        """Let `n` agents without samples join."""
        self.n_agents += n
        self.lends += [True] * n
        self.borrows += [True] * n
        self.waiting += [[] for _ in range(n)]
        self.samples += [[] for _ in range(n)]
        self.gram += [np.zeros((self.dim, self.dim)) for _ in range(n)]
        self.b += [np.zeros(self.dim) for _ in range(n)]
        self.active += [True] * n

    def leave(self, agent: int, *, withdraw: bool) -> None:
        """Let an agent go; what it lent stays, unless it is withdrawn."""
        self.active[agent] = False
        self.waiting[agent] = []
        if withdraw:
            self.samples[agent] = []
            self.gram[agent] = np.zeros((self.dim, self.dim))
            self.b[agent] = np.zeros(self.dim)

    def pool(self, agent: int) -> list[int]:
        """Agents who belong together with `agent`, itself included, sorted."""
        raise NotImplementedError

    def uses(self, agent: int) -> list[int]:
        """Agents whose samples `agent` uses, itself included, sorted."""
        if not self.borrows[agent]:
            return [agent]
        return [other for other in self.pool(agent) if self.lends[other] or other == agent]

    def graph(self) -> Bools:
        """(N, N), False on the diagonal: here, who pools whom."""
        graph = np.zeros((self.n_agents, self.n_agents), dtype=np.bool_)
        for agent in range(self.n_agents):
            for other in self.pool(agent):
                if other != agent:
                    graph[agent, other] = True
        return graph

    def pulls(self, agents: Sequence[int]) -> int:
        """Number of samples of a set of agents."""
        return sum(len(self.samples[agent]) for agent in agents)

    def statistics(self, agents: Sequence[int]) -> Statistics:
        """Pooled statistics of a set of agents, summed and solved anew."""
        gram = np.zeros((self.dim, self.dim))
        b = np.zeros(self.dim)
        for agent in agents:
            gram = gram + self.gram[agent]
            b = b + self.b[agent]
        return statistics_from_sums(gram, b, self.ridge_of(agents))

    def ridge_of(self, agents: Sequence[int]) -> float:
        """Ridge of the statistics of some agents."""
        return self.ridge

    def theta_hat(self, agents: Sequence[int]) -> Floats:
        """Pooled estimate of a set of agents."""
        return self.statistics(agents).theta_hat

    def pooled(self, agent: int) -> Statistics:
        """Statistics that `agent` chooses from: here, those of its pool."""
        return self.statistics(self.uses(agent))

    def select(self, agent: int, arms: Floats, t: int) -> int:
        """Arm that `agent` plays in round t."""
        if not self.borrows[agent]:
            return self.select_alone(agent, arms, t)
        pooled = self.pooled(agent)
        ahead = self.pending_weight(agent) * self.pending([agent]) if self.foresees else 0.0
        return self.choose(pooled.theta_hat, pooled.A + ahead, arms, agent, t)

    def select_alone(self, agent: int, arms: Floats, t: int) -> int:
        """Arm that `agent` plays if it does not borrow, whatever the policy."""
        own = self.statistics([agent])
        ahead = self.pending_weight(agent) * self.pending([agent])
        return self.choose(own.theta_hat, own.A + ahead, arms, agent, t)

    def pending_weight(self, agent: int) -> float:
        """What a pull whose reward is due counts; less than 1 for clicks, see `Clicks`."""
        return 1.0

    def logit(self, agent: int, x: Floats) -> tuple[float, float]:
        """Mean and variance of `x·θ` by what `agent` uses, with noise 1."""
        known = self.pooled(agent) if self.borrows[agent] else self.statistics([agent])
        return float(x @ known.theta_hat), float(x @ np.linalg.solve(known.A, x))

    def choose(self, theta_hat: Floats, A: Floats, arms: Floats, agent: int, t: int) -> int:
        """The arm with the best score, or the best one for a draw from N(θ̂, α² A⁻¹)."""
        if self.exploration == "sample" or self.bonus == "as-released":
            return int(np.argmax(arms @ theta_hat + self.bonuses(A, arms, agent, t)))
        return choose(theta_hat, A, arms, self.width_scale * self.alpha, t)

    def bonuses(self, A: Floats, arms: Floats, agent: int, t: int) -> Floats:
        """What is added to the mean of every arm, (K,)."""
        if self.exploration == "sample":
            z = self.rng.normals(t, agent, self.dim)
            return np.asarray(
                arms @ (self.width_scale * self.alpha * np.linalg.solve(np.linalg.cholesky(A).T, z))
            )
        variance = np.array([x @ np.linalg.inv(A) @ x for x in arms])
        width = self.width_scale * self.alpha * sqrt(log(t + 1))
        return width * (variance if self.bonus == "as-released" else np.sqrt(variance))

    def expect(self, agent: int, x: Floats, sign: int) -> None:
        """Let a reward be due (1), or no longer (−1)."""
        if sign > 0:
            self.waiting[agent].append(np.array(x))
        else:
            same = [n for n, arm in enumerate(self.waiting[agent]) if np.array_equal(arm, x)]
            del self.waiting[agent][same[0]]

    def pending(self, agents: Sequence[int]) -> Floats:
        """Σ x xᵀ over pulls of some agents whose rewards are due."""
        pulls = [np.outer(x, x) for agent in agents for x in self.waiting[agent]]
        return np.asarray(np.sum([np.zeros((self.dim, self.dim)), *pulls], axis=0))

    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
        """Add a sample."""
        x = np.array(x, dtype=np.float64)
        self.samples[agent].append((x, float(reward)))
        self.gram[agent] = self.gram[agent] + np.outer(x, x)
        self.b[agent] = self.b[agent] + reward * x
        if all(self.lends):
            self.communication_cost += sum(self.active[other] for other in self.pool(agent)) - 1
        elif self.lends[agent]:
            users = [other for other in range(self.n_agents) if agent in self.uses(other)]
            self.communication_cost += sum(self.active[other] for other in users) - 1

    def revise(self, agent: int, t: int) -> None:
        """Reconsider whom `agent` shares with."""


class UnitTwin(Twin):
    """A twin that may learn the noise, and measures arms and rewards in units of its own then."""

    foresees = True

    def __init__(self, n_agents: int, dim: int, *, noise_scale: float | None = 1.0, **own: Any) -> None:
        super().__init__(n_agents, dim, **own)
        self.noise_scale = noise_scale
        self.units = [0.0] * n_agents

    def join(self, n: int) -> None:
        super().join(n)
        self.units += [0.0] * n

    def leave(self, agent: int, *, withdraw: bool) -> None:
        super().leave(agent, withdraw=withdraw)
        if withdraw:
            self.units[agent] = 0.0

    def ridge_of(self, agents: Sequence[int]) -> float:
        """That of an agent is measured by its own samples."""
        (agent,) = agents if len(agents) == 1 else (-1,)
        return self.ridge * (self.units[agent] or 1.0) if agent >= 0 else self.ridge

    def sums(self, agents: Sequence[int]) -> tuple[float, float, float, int]:
        """Squared errors, rewards and lengths of arms, and samples."""
        errors = squares = 0.0
        for agent in agents:
            theta, ridge = self.statistics([agent]).theta_hat, self.ridge_of([agent])
            mine = sum(y**2 for _, y in self.samples[agent])
            errors += float(sum((y - x @ theta) ** 2 for x, y in self.samples[agent]))
            errors += ridge * float(theta @ theta) + 1e-8 * mine
            squares += mine
        lengths = sum(float(x @ x) for agent in agents for x, _ in self.samples[agent])
        return float(errors), float(squares), lengths, self.pulls(agents)

    def unit_of(self, agents: Sequence[int]) -> float:
        """Mean squared length of arms, times the share of rewards that is noise; 3 samples say it is all."""
        errors, squares, lengths, n = self.sums(agents)
        share = (
            1.0 if squares == 0 else (min(errors, squares) + 3 * squares / n) / (squares + 3 * squares / n)
        )
        return lengths / n * share if lengths > 0 else 0.0

    def scale_of(self, agents: Sequence[int]) -> float:
        """The noise of some agents' samples."""
        errors, _, _, n = self.sums(agents)
        return sqrt(errors / n) if errors > 0 else 1.0

    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
        super().observe(agent, x, reward, t)
        if self.noise_scale is None:
            if self.units[agent] == 0.0:
                self.units[agent] = sum(float(x @ x) for x, _ in self.samples[agent]) / self.pulls([agent])
            wanted = self.unit_of([agent])
            if wanted > 1.5 * self.units[agent] or wanted * 1.5 < self.units[agent]:
                self.units[agent] = wanted

    def pending_weight(self, agent: int) -> float:
        """Where all arms are pending, these are what the ridge is measured by."""
        if self.noise_scale is not None or self.sums(self.known(agent))[2] > 0 or not self.waiting[agent]:
            return 1.0
        return len(self.waiting[agent]) / float(np.trace(self.pending([agent])))

    def known(self, agent: int) -> list[int]:
        """Whose samples say what is measured in what when an agent chooses."""
        return [agent]

    def select_alone(self, agent: int, arms: Floats, t: int) -> int:
        if self.noise_scale is None:
            self.width_scale = self.scale_of([agent])
        return super().select_alone(agent, arms, t)


class Independent(UnitTwin):
    """LinUCB for each agent."""

    def pool(self, agent: int) -> list[int]:
        return [agent]

    def select(self, agent: int, arms: Floats, t: int) -> int:
        self.width_scale = self.noise_scale or 1.0
        return self.select_alone(agent, arms, t)


class LabelledTwin(Twin):
    """A twin whose pools are clusters, told by one label per agent."""

    def __init__(
        self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0, labels: Sequence[int]
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.labels = [int(label) for label in labels]

    def join(self, n: int) -> None:
        """Newcomers start in the first cluster."""
        super().join(n)
        self.labels += [0] * n

    def members(self, label: int) -> list[int]:
        """Agents of a cluster, sorted; who does not lend follows it, and is not a member."""
        return [a for a in range(self.n_agents) if self.labels[a] == label and self.lends[a]]

    def pool(self, agent: int) -> list[int]:
        return sorted({agent, *self.members(self.labels[agent])})


class Oracle(LabelledTwin):
    """Pools the agents with the same label, given once and for all."""


class EdgeTwin(Twin):
    """A twin that starts from the complete graph and cuts edges for good."""

    def __init__(self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.edges: Bools = ~np.eye(n_agents, dtype=np.bool_)
        self.separation_time: Ints = np.full((n_agents, n_agents), -1, dtype=np.int64)
        self.withdrawn: set[int] = set()

    def join(self, n: int) -> None:
        old = self.n_agents
        super().join(n)
        edges, times = self.edges, self.separation_time
        self.edges = ~np.eye(self.n_agents, dtype=np.bool_)
        self.edges[:old, :old] = edges
        for gone in self.withdrawn:
            self.edges[gone, old:] = self.edges[old:, gone] = False
        self.separation_time = np.full((self.n_agents, self.n_agents), -1, dtype=np.int64)
        self.separation_time[:old, :old] = times

    def leave(self, agent: int, *, withdraw: bool) -> None:
        super().leave(agent, withdraw=withdraw)
        if withdraw:
            self.withdrawn.add(agent)
            self.edges[agent] = self.edges[:, agent] = False
            self.separation_time[agent] = self.separation_time[:, agent] = -1

    def graph(self) -> Bools:
        return self.edges.copy()

    def differ(self, agent: int, other: int) -> bool:
        """Whether the edge between two connected agents has to go."""
        raise NotImplementedError

    def revise(self, agent: int, t: int) -> None:
        for other in range(self.n_agents):
            if self.edges[agent, other] and self.differ(agent, other):
                self.edges[agent, other] = self.edges[other, agent] = False
                self.separation_time[agent, other] = self.separation_time[other, agent] = t


def chi_square_quantile(degrees: int, level: float) -> float:
    """Wilson and Hilferty's approximation: the cube root of χ²/degrees is nearly normal; 0 if below."""
    if degrees < 1:
        return 0.0
    cube_root = norm.ppf(level, loc=1 - 2 / (9 * degrees), scale=sqrt(2 / (9 * degrees)))
    return float(degrees * max(cube_root, 0.0) ** 3)


class BASS(UnitTwin, EdgeTwin):
    """Direct neighbours pool; an edge goes when the scaled confidence ellipsoids are disjoint."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        delta: float,
        gamma: float = 2.0,
        radius: Radius = "beta",
        noise_scale: float | None = 1.0,
        param_norm: float = 1.0,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, noise_scale=noise_scale)
        self.param_norm = param_norm
        self.delta = delta
        self.gamma = gamma
        self.radius: Radius = radius

    def pool(self, agent: int) -> list[int]:
        return [other for other in range(self.n_agents) if other == agent or self.edges[agent, other]]

    def known(self, agent: int) -> list[int]:
        if not self.borrows[agent]:
            return [agent]
        return [other for other in range(self.n_agents) if self.lends[other] or other == agent]

    def pooled(self, agent: int) -> Statistics:
        found = super().pooled(agent)
        known = self.known(agent)
        unit = self.unit_of(known) if self.noise_scale is None and self.pulls(known) else 0.0
        gram = np.sum([self.gram[other] for other in self.uses(agent)], axis=0)
        return statistics_from_sums(gram, found.b, self.ridge * unit) if unit > 0 else found

    def select(self, agent: int, arms: Floats, t: int) -> int:
        self.width_scale = self.scale_of(self.known(agent)) if self.noise_scale is None else 1.0
        return super().select(agent, arms, t)

    def ellipsoid(self, agent: int) -> tuple[Floats, Floats, float]:
        """Local estimate, A and c of an agent."""
        local = self.statistics([agent])
        ridge, norm, c_unit = self.ridge_of([agent]), self.param_norm, 1.0
        noise = self.noise_of(agent) if self.noise_scale is None else self.noise_scale
        if self.noise_scale is None and self.samples[agent]:  # S is in units of rewards over those of arms
            _, squares, lengths, _ = self.sums([agent])
            norm *= sqrt(squares / lengths) if lengths > 0 else 1.0
        if self.noise_scale is None and self.radius == "beta":
            c_unit = noise
        logdet = local.logdet_A - self.dim * log(ridge)
        beta_value = beta(self.delta, logdet, noise, norm, ridge)
        return local.theta_hat, local.A, c_unit * radius_constant(self.radius, beta_value)

    def noise_of(self, agent: int) -> float:
        """Limit of an agent's noise, from its own samples: their errors, or their rewards; 1e30 if none."""
        theta, n = self.statistics([agent]).theta_hat, len(self.samples[agent])
        rewards = sum(y**2 for _, y in self.samples[agent])
        errors = sum((y - x @ theta) ** 2 for x, y in self.samples[agent]) + 1e-8 * rewards
        level = min(self.delta, 0.5) if self.radius == "beta_squared" else 0.5
        limits: list[Any] = [1e60]
        for total, degrees in ((errors, n - self.dim), (rewards, n)):
            quantile = chi_square_quantile(degrees, level)
            limits += [total / quantile] if quantile > 0 else []
        return float(sqrt(min(limits)))

    def differ(self, agent: int, other: int) -> bool:
        statistic = separation_statistic_eigen(*self.ellipsoid(agent), *self.ellipsoid(other))
        return statistic > self.gamma**2 / 4


def log_normal(x: float, mean: float, variance: float) -> float:
    """Log density of a Gaussian."""
    return -0.5 * ((x - mean) ** 2 / variance + log(2 * pi * variance))


Sums = tuple[Floats, Floats]
"""Σ x xᵀ and Σ y x."""
Member = tuple[int, int]
"""0 and an agent, or 1 and the agent whose ghost it is."""


class Look:
    """What an agent's samples say, alone."""

    def __init__(self, n: float, trace: float, rewards: float) -> None:
        self.n, self.trace, self.rewards = n, trace, rewards
        self.known, self.errors = 0.0, 0.0
        self.forms, self.logdets = np.zeros(10), np.zeros(10)
        self.precisions, self.likelihoods = [0.0] * 6, [0.0] * 6


class ClusterMixture(Twin):
    """Clusters drawn from their posterior; an agent chooses by all that it may belong to."""

    grid = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
    lifts = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
    tempers = (0.0, 0.125, 0.25, 0.5, 0.75, 1.0)

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float = 0.6,
        spread: float = 1.0,
        concentration: float = 5.0,
        redraws: int = 1,
        noise_scale: float | None = None,
        scatter: float | None = None,
        drift: bool = True,
        ridge_bonus: float = 3.0,
        agent_features: Any = None,
        ridge: float = 1.0,
        clicks: bool = False,
        seed: int,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.clicks = clicks  # then the last coordinate, the intercept, has a scatter and a ridge of its own
        self.features = np.zeros((n_agents, 0)) if agent_features is None else np.array(agent_features)
        self.temper_votes = [[0.0] * len(self.tempers) for _ in range(n_agents)]
        self.spread = spread
        self.concentration = concentration
        self.redraws = redraws
        self.noise_scale = noise_scale
        self.drift = drift
        self.ridge_bonus = ridge_bonus
        self.learns_scatter = scatter is None
        self.given = scatter
        self.position = self.first = 0 if clicks else 2
        self.lift_position = 0
        self.slopes = dim - clicks
        self.unit, self.prior, self.noise = 1.0, ridge, 1.0 if noise_scale is None else noise_scale**2
        self.weights = [1.0] * n_agents
        self.looks: list[Look | None] = [None] * n_agents
        self.centers: list[float | None] = [None] * 6
        self.unequal: tuple[float, float] | None = None  # ν and s₀²
        self.random = Xorshift(seed)
        self.labels: list[int | None] = [None] * n_agents
        self.ghosts: dict[int, int] = {}  # label of each agent's ghost
        self.past: list[list[tuple[float, Floats, float]]] = [[] for _ in range(n_agents)]
        self.recent: list[list[tuple[Floats, float, float]]] = [[] for _ in range(n_agents)]
        self.forgot = [-1] * n_agents
        self.votes = [self.no_votes() for _ in range(n_agents)]
        self.raw: dict[Member, Sums] = {}
        self.lent: dict[Member, Sums] = {}
        self.lent_at: dict[Member, tuple[float, float]] = {}
        self.heeded: dict[Member, int] = {}
        self.alarms: dict[int, int] = {}
        self.cusum: dict[int, float] = {}
        self.latest: dict[int, Sums] = {}
        self.scales: dict[int, tuple[float, float]] = {}
        self.scale = 0.0
        self.rate = [0.0, 0.0]
        self.rounds_kept_up = self.to_tend = self.cursor = 0

    # Agents that come and go

    def join(self, n: int) -> None:
        super().join(n)
        self.labels += [None] * n
        self.features = np.vstack([self.features, np.full((n, self.features.shape[1]), np.nan)])
        self.temper_votes += [[0.0] * len(self.tempers) for _ in range(n)]
        self.forgot += [-1] * n
        self.weights += [1.0] * n
        self.looks += [None] * n
        self.past += [[] for _ in range(n)]
        self.recent += [[] for _ in range(n)]
        self.votes += [self.no_votes() for _ in range(n)]
        if self.to_tend > 0:
            self.to_tend = (2 if self.drift else 1) * self.n_agents

    def leave(self, agent: int, *, withdraw: bool) -> None:
        super().leave(agent, withdraw=withdraw)
        if withdraw:
            self.labels[agent] = None
            self.ghosts.pop(agent, None)
            self.looks[agent], self.past[agent], self.recent[agent] = None, [], []
            self.votes[agent] = self.no_votes()
            self.temper_votes[agent] = [0.0] * len(self.tempers)
            self.features[agent] = np.nan
            self.raw.pop((0, agent), None)
        self.dissolve()
        if withdraw:
            self.cusum = {}
            self.learn_anew()
            for label in self.used():  # what is known of clusters is computed anew without it
                S, b = self.nothing()
                for other in self.members(label):
                    for x, y, _ in self.recent[other]:
                        S, b = S + self.weights[other] * np.outer(x, x), b + self.weights[other] * y * x
                self.latest[label] = (S, b)

    def dissolve(self) -> None:
        """Forget the clusters in which nobody is active."""
        alive = {label for label, active in zip(self.labels, self.active, strict=True) if active}
        alive |= set(self.ghosts.values())
        self.labels = [label if label in alive else None for label in self.labels]
        known: tuple[dict[int, Any], ...] = (self.alarms, self.cusum, self.latest, self.scales)
        for values in known:
            for label in set(values) - alive:
                del values[label]

    # Clusters

    def members(self, label: int) -> list[int]:
        """Agents of a cluster, removed ones included."""
        return [agent for agent in range(self.n_agents) if self.labels[agent] == label]

    def pool(self, agent: int) -> list[int]:
        label = self.labels[agent]
        return [agent] if label is None else self.members(label)

    def used(self) -> list[int]:
        """Clusters there are."""
        return sorted({label for label in self.labels if label is not None} | set(self.ghosts.values()))

    def everyone(self, label: int) -> list[Member]:
        """Members of a cluster, ghosts included."""
        ghosts = [(1, agent) for agent, where in sorted(self.ghosts.items()) if where == label]
        return [(0, agent) for agent in self.members(label)] + ghosts

    def count(self, label: int, without: Member | None = None) -> int:
        """Members of a cluster that are not removed, but one."""
        there = [m for m in self.everyone(label) if m[0] == 1 or self.active[m[1]]]
        return len([m for m in there if m != without])

    def label_of(self, member: Member) -> int | None:
        return self.labels[member[1]] if member[0] == 0 else self.ghosts.get(member[1])

    def nothing(self) -> Sums:
        return np.zeros((self.dim, self.dim)), np.zeros(self.dim)

    def sum_of(self, label: int, without: Member | None = None) -> Sums:
        """What the members of a cluster, but one, lend it."""
        S, b = self.nothing()
        for member in self.everyone(label):
            if member != without:
                S, b = S + self.lent[member][0], b + self.lent[member][1]
        return S, b

    def soften(self, sums: Sums, scatters: tuple[float, float]) -> Sums:
        """What samples of scattered parameters tell of their mean."""
        inverse = np.linalg.inv(np.eye(self.dim) + sums[0] @ self.scatters_of(scatters))
        return inverse @ sums[0], inverse @ sums[1]

    def scatters_of(self, scatters: tuple[float, float]) -> Floats:
        """Variance of members' parameters: of slopes, and of an intercept."""
        return np.diag([scatters[0]] * self.slopes + [scatters[1]] * self.clicks)

    def precision(self) -> Floats:
        """That of the clusters' prior."""
        return np.diag([self.prior] * self.slopes + [self.ridge] * self.clicks)

    def lend(self, member: Member) -> None:
        if member[0] == 0:
            self.raw[member] = (self.gram[member[1]], self.b[member[1]])
        self.lent[member] = self.soften(self.weighted(self.raw[member], member[1]), self.scatters)
        self.lent_at[member] = self.scatters

    def weighted(self, sums: Sums, agent: int) -> Sums:
        return self.weights[agent] * sums[0], self.weights[agent] * sums[1]

    # Units and noise

    @property
    def scatter(self) -> float:
        return self.slope_scatters()[self.position] if self.given is None else self.given

    @property
    def lift(self) -> float:
        return self.intercept_scatters()[self.lift_position] if self.clicks and self.learns_scatter else 0.0

    @property
    def scatters(self) -> tuple[float, float]:
        return self.scatter, self.lift

    def slope_scatters(self) -> list[float]:
        """Those to choose from, in units of one over the mean square of arms' entries."""
        return [scatter / self.unit for scatter in self.grid]

    def intercept_scatters(self) -> list[float]:
        """Those to choose from, in units of the intercept's prior variance; none but of clicks."""
        return [lift / self.ridge for lift in self.lifts] if self.clicks else []

    def no_votes(self) -> list[float]:
        return [0.0] * (len(self.grid) + len(self.lifts) * self.clicks)

    def variance(self) -> float:
        """Noise variance, known or estimated."""
        return self.noise

    def is_noise_known(self) -> bool:
        return self.noise_scale is not None or sum(one.known for one in self.seen()) >= 100

    def seen(self) -> list["Look"]:
        """What was last seen of all who lend."""
        return [one for one, lends in zip(self.looks, self.lends, strict=True) if lends and one is not None]

    def rewards(self, agent: int) -> float:
        """Σ y² of an agent's samples, by the weight that they still have."""
        if not self.drift:
            return sum(y**2 for _, y in self.samples[agent])
        return sum(w * y**2 for w, _, y in self.past[agent]) + sum(y**2 for _, y, _ in self.recent[agent])

    def describe(self, agent: int) -> None:
        """Look at an agent's samples: what needs no unit."""
        n = len(self.samples[agent])
        S, n_seen = self.gram[agent], float(n)
        if self.clicks:
            n_seen = S[-1, -1] / 9
        look = Look(n_seen, float(np.trace(S[: self.slopes, : self.slopes])), self.rewards(agent))
        self.looks[agent] = look if n else None

    def fit_alone(self, agent: int) -> None:
        """The rest of a look: an agent's samples as those of one parameter, under every ridge."""
        look, d = self.looks[agent], self.dim
        if look is None:
            return
        S, b = self.gram[agent], self.b[agent]
        ridges = [self.ridge * self.dim * self.unit * 4.0**g for g in range(-7, 3)]
        look.forms = np.array([b @ np.linalg.solve(S + r * np.eye(d), b) for r in ridges])
        look.logdets = np.array([np.linalg.slogdet(np.eye(d) + S / r)[1] for r in ridges])
        smoother = np.trace(np.linalg.solve(S + ridges[0] * np.eye(d), S))
        look.known, look.errors = max(look.n - float(smoother), 0.0), max(look.rewards - look.forms[0], 0.0)

    def judge_noise(self, agent: int) -> None:
        """And how probable its errors are, under every ν."""
        look = self.looks[agent]
        if look is None:
            return
        for j in range(6):
            nu, center = 2 ** (j + 1), self.noise if self.centers[j] is None else self.centers[j]
            shape, rate = nu / 2, nu * center / 2
            look.precisions[j] = (shape + look.known / 2) / (rate + look.errors / 2)
            look.likelihoods[j] = gammaln(shape + look.known / 2) - gammaln(shape) + shape * log(rate)
            look.likelihoods[j] -= (shape + look.known / 2) * log(rate + look.errors / 2)

    def find_unit(self, first: bool) -> bool:
        """Measure arms by their mean square if that has changed by half."""
        seen = self.seen()
        total, n = sum(one.trace for one in seen), sum(one.n for one in seen)
        if total == 0:
            return False
        wanted = total / (self.slopes * n)
        if not first and 1 / 1.5 <= wanted / self.unit <= 1.5:
            return False
        self.unit, self.to_tend = wanted, (2 if self.drift else 1) * self.n_agents
        if first:
            self.prior = self.ridge * self.slopes * wanted
        return True

    def find_noise(self) -> None:
        """From errors if they are half as many as samples, else by the ridge that explains all samples."""
        if self.noise_scale is not None:
            return
        seen = self.seen()
        n, rewards, known = (sum(getattr(one, key) for one in seen) for key in ("n", "rewards", "known"))
        start = 10 * (rewards / n if rewards > 0 else 1.0)
        if not seen:
            self.noise = 1.0
        elif known > n / 2:
            self.noise = (start + rewards - sum(one.forms[0] for one in seen)) / (10 + known)
        else:
            squares = start + rewards - np.sum([one.forms for one in seen], axis=0)
            logdets = np.sum([one.logdets for one in seen], axis=0)
            values = -0.5 * (10 + n) * np.log(squares) - 0.5 * logdets
            largest = np.flatnonzero(values >= values.max() - 3)[-1]
            self.noise = float(squares[largest] / (10 + n))

    def weight(self, agent: int) -> float:
        """The noise variance of all over that of an agent."""
        look = self.looks[agent]
        if self.unequal is None or look is None:
            return 1.0
        nu, center = self.unequal
        return self.noise * (nu + look.known) / (nu * center + look.errors)

    def find_noises(self) -> None:
        """Whether agents differ in noise, and how much."""
        seen = self.seen()
        errors = max(sum(one.rewards for one in seen) - sum(one.forms[0] for one in seen), 0.0)
        best = -0.5 * (sum(one.known for one in seen) * log(self.noise) + errors / self.noise)
        self.unequal = None
        for j in range(6 if seen else 0):
            center = len(seen) / sum(one.precisions[j] for one in seen)
            self.centers[j] = center
            value = sum(one.likelihoods[j] for one in seen) - 3
            if value > best:
                best, self.unequal = value, (2.0 ** (j + 1), center)

    def look(self, agent: int) -> None:
        """Look at an agent's samples, and heed what that says."""
        first = sum(one.n for one in self.seen()) == 0
        self.describe(agent)
        rescaled = self.find_unit(first)
        self.fit_alone(agent)
        self.find_noise()
        self.judge_noise(agent)
        change = self.weight(agent) / self.weights[agent]
        if not 1 / 1.03 <= change <= 1.03:
            self.weights[agent] *= change
        if rescaled or not 1 / 1.03 <= change <= 1.03:
            self.lend((0, agent))

    def wanted_prior(self) -> float:
        """The ridge that fits how large the clusters' estimates are."""
        start = self.ridge * self.slopes * self.unit
        sizes = {k: self.count(k) for k in self.used()}
        norms = sum(size * self.scales.get(k, (0.0, 0.0))[0] for k, size in sizes.items())
        known = sum(size * self.scales.get(k, (0.0, 0.0))[1] for k, size in sizes.items())
        if self.clicks:  # directions that are not known count as expected at the start
            total = self.slopes * sum(sizes.values())
            norms, known = norms + (total - known) / start, total
        tau_sq = (self.slopes * self.noise / start + norms) / (self.slopes + known)
        return min(max(self.noise / tau_sq, 0.01 * start), 100 * start)

    def learn_anew(self) -> None:
        """Learn all this from the samples there are."""
        self.unit, self.prior, self.centers = 1.0, self.ridge, [None] * 6
        for agent in range(self.n_agents):
            self.describe(agent)
        self.find_unit(True)
        for agent in range(self.n_agents):
            self.fit_alone(agent)
        self.find_noise()
        for agent in range(self.n_agents):
            self.judge_noise(agent)
        if self.noise_scale is None:
            self.find_noises()
        self.weights = [self.weight(agent) for agent in range(self.n_agents)]
        for member in [(0, agent) for agent in range(self.n_agents)] + [(1, agent) for agent in self.ghosts]:
            self.lend(member)
        for label in self.used():
            self.measure(label)
        self.prior = self.wanted_prior()
        for label in self.used():
            self.measure(label)
        self.to_tend = 0

    def evidence(self, sums: Sums) -> float:
        """Log marginal likelihood of samples under one parameter, up to what cancels."""
        A = self.precision() + sums[0]
        form = float(sums[1] @ np.linalg.solve(A, sums[1])) / (2 * self.variance())
        return form - 0.5 * (float(np.linalg.slogdet(A)[1]) - float(np.linalg.slogdet(self.precision())[1]))

    def candidates(self, member: Member) -> list[tuple[int, Sums, float]]:
        """Cluster, the sums of its other members, and its probability; −1 is a cluster of its own."""
        found, temper = self.weigh(member), self.temper()
        logs = np.array([weight + temper * self.log_ratio(member, k) for k, _, weight in found])
        weights = np.exp(logs - logs.max())
        return [(k, rest, float(p)) for (k, rest, _), p in zip(found, weights / weights.sum(), strict=True)]

    def weigh(self, member: Member) -> list[tuple[int, Sums, float]]:
        """The same with log-weights instead of probabilities, by samples alone."""
        mine = self.lent.get(member, self.nothing())
        found: list[tuple[int, Sums, float]] = []
        for label in self.used():
            if [other for other in self.everyone(label) if other != member]:
                S, b = rest = self.sum_of(label, without=member)
                together = (S + mine[0], b + mine[1])
                gain = self.evidence(together) - self.evidence(rest) - self.evidence(mine)
                found.append((label, rest, gain + log(max(self.count(label, without=member), 1))))
        found.append((-1, self.nothing(), log(self.concentration)))
        return found

    def posterior(self, agent: int) -> dict[int, float]:
        """Probability of every cluster."""
        return {label: chance for label, _, chance in self.candidates((0, agent)) if chance > 0}

    # Features

    def log_ratio(self, member: Member, label: int) -> float:
        """log p(z | the other agents of a cluster) / p(z) of a member's features."""
        if member[0] == 1 or label < 0:
            return 0.0
        found = 0.0
        for z, column in zip(self.features[member[1]], self.features.T, strict=True):
            groups = [column[self.members(k)] for k in self.used()]
            groups = [group[~np.isnan(group)] for group in groups]
            groups = [group for group in groups if len(group) > 0]
            if np.isnan(z) or len(groups) < 2 or np.ptp(np.concatenate(groups)) == 0:
                continue
            everybody, sizes = np.concatenate(groups), np.array([len(group) for group in groups])
            n, mu, T = len(everybody), everybody.mean(), everybody.var()
            SS_within = sum(float(np.sum((group - group.mean()) ** 2)) for group in groups)
            SS_between = sum(len(group) * float(group.mean() - mu) ** 2 for group in groups)
            W = (SS_within + 4 * T) / (n - len(groups) + 4)
            if n - np.sum(sizes**2) / n <= 1:
                continue
            B = (SS_between - (len(groups) - 1) * W) / (n - np.sum(sizes**2) / n)
            if B <= 1e-9 * T:
                continue
            others = column[[agent for agent in self.members(label) if agent != member[1]]]
            others = others[~np.isnan(others)]
            kappa = W / B
            mean = (np.sum(others) + kappa * mu) / (len(others) + kappa)
            found += log_normal(z, mean, W * (1 + 1 / (len(others) + kappa))) - log_normal(z, mu, W + B)
        return found

    def temper(self) -> float:
        """How far features are trusted."""
        tally = np.sum(self.temper_votes, axis=0) - (1 - np.array(self.tempers))
        return self.tempers[int(np.argmax(tally))]

    def vote_on_temper(self, agent: int) -> None:
        """Log evidence of an agent's samples, labels having the prior that features give."""
        member = (0, agent)
        found = self.weigh(member)
        for g, temper in enumerate(self.tempers):
            ratios = np.array([self.log_ratio(member, k) for k, _, _ in found])
            counts = [log(max(self.count(k, without=member), 1)) for k, _, _ in found[:-1]]
            prior = np.array([*counts, log(self.concentration)]) + temper * ratios
            evidence = np.array([weight for _, _, weight in found]) + temper * ratios
            self.temper_votes[agent][g] = float(np.logaddexp.reduce(evidence) - np.logaddexp.reduce(prior))

    # Choice

    def model(self, rest: Sums, agent: int) -> Statistics:
        """What an agent knows with a cluster's other members, whose parameters scatter around one."""
        ridge = (self.precision() + rest[0], rest[1])
        S, b = self.soften(ridge, self.scatters)
        own = self.weighted((self.gram[agent], self.b[agent]), agent)
        return statistics_from_sums(S + own[0], b + own[1], 0.0)

    def components(self, agent: int) -> list[tuple[float, int, Statistics, Floats]]:
        """The clusters that count in a choice: probability, label, model, and the design its width is of."""
        kept = [(p, k, rest) for k, rest, p in self.candidates((0, agent)) if p >= 1e-3]
        total = sum(p for p, _, _ in kept)
        found = []
        for p, label, (S, b) in kept:
            members = sum(self.count(k) for k in self.used())
            company, others = (1, members + 1) if label < 0 else (self.count(label), members)
            lone = [a for a in range(self.n_agents) if self.labels[a] is None and a != agent]
            lone = [a for a in lone if self.lends[a]]
            theirs = [a for a in (self.members(label) if label >= 0 else []) if a != agent]
            ahead = company / (others + self.concentration) * self.pending(lone) + self.pending(theirs)
            weight = self.pending_weight(agent)
            wide = self.model((S + weight * ahead, b), agent).A + weight * self.pending([agent])
            found.append((p / total, label, self.model((S, b), agent), wide))
        return found

    def pooled(self, agent: int) -> Statistics:
        mixture = self.components(agent)
        theta_hat = np.sum([p * one.theta_hat for p, _, one, _ in mixture], axis=0)
        return mixture[0][2]._replace(theta_hat=theta_hat)

    def select(self, agent: int, arms: Floats, t: int) -> int:
        if not self.borrows[agent]:
            return self.select_alone(agent, arms, t)
        mixture = self.components(agent)
        p = np.array([chance for chance, _, _, _ in mixture])
        means = np.array([arms @ one.theta_hat for _, _, one, _ in mixture])
        zeta = self.alpha**2 * self.noise * log(len(self.samples[agent]) + e)
        inner = []
        for _, label, _, wide in mixture:
            hidden = 0.0
            if label >= 0:
                norm, known = self.scales.get(label, (0.0, 0.0))
                others = self.count(label, without=(0, agent))
                size = max(self.scale, norm / max(known, 1.0)) * others / (others + 10)
                hidden = max(0.0, self.ridge_bonus**2 * size * self.prior**2 - zeta * self.prior)
            if self.ridge_bonus == 0:
                hidden = 0.0
            solved = np.linalg.solve(wide, arms.T).T
            inner.append(
                zeta * np.sum(arms * solved, axis=1) + hidden * np.sum(solved[:, : self.slopes] ** 2, axis=1)
            )
        mean = p @ means
        outer = p @ (means - mean) ** 2
        values = mean + np.sqrt(p @ np.array(inner) + self.spread**2 * outer)
        return int(np.argmax(values))

    def logit(self, agent: int, x: Floats) -> tuple[float, float]:
        if not self.borrows[agent]:
            return super().logit(agent, x)
        if not self.seen():
            return 0.0, (float(x[:-1].any()) + 9.0) / self.ridge
        mixture = self.components(agent)
        p = np.array([chance for chance, _, _, _ in mixture])
        means = np.array([x @ one.theta_hat for _, _, one, _ in mixture])
        within = np.array([x @ np.linalg.solve(one.A, x) for _, _, one, _ in mixture])
        return float(p @ means), float(p @ within + p @ means**2 - (p @ means) ** 2)

    # Learning

    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
        label, n = self.labels[agent], len(self.samples[agent]) + 1
        if self.drift:
            self.watch(agent, np.array(x), float(reward))
        super().observe(agent, x, reward, t)
        self.lend((0, agent))
        if n <= 4 or n % (4 if n <= 64 else 32) == 0:
            self.look(agent)
        assert label == self.labels[agent]

    def improbability(self, sums: Sums, agent: int, x: Floats, reward: float) -> float:
        """−log of the density of an agent's reward, but for a constant; sums with their ridge."""
        own = self.variance() / self.weights[agent]
        spread = own + self.variance() * float(x @ np.linalg.solve(sums[0], x))
        error = reward - float(x @ np.linalg.solve(*sums))
        return error**2 / (2 * spread) + 0.5 * log(spread / own)

    def watch(self, agent: int, x: Floats, reward: float) -> None:
        """Keep a sample among the last, and see whether the agent's cluster has moved."""
        label, improbable = self.labels[agent], 0.5
        if label is not None:
            S, b = self.latest.get(label, self.nothing())
            if self.is_noise_known():
                model = self.model(self.sum_of(label, without=(0, agent)), agent)
                improbable = self.improbability((model.A, model.b), agent, x, reward)
                lately = self.improbability((self.precision() + S, b), agent, x, reward)
                cusum = max(0.0, self.cusum.get(label, 0.0) + improbable - lately)
                if self.to_tend > 0:
                    cusum = 0.0
                elif cusum > 20:
                    cusum = 0.0
                    self.alarms[label] = self.alarms.get(label, 0) + 1
                    self.to_tend = 2 * self.n_agents
                self.cusum[label] = cusum
            active = sum(self.active[other] for other in self.members(label))
            fading = 1 - 1 / (16 * max(active, 1))
            weight = self.weights[agent]
            self.latest[label] = (fading * S + weight * np.outer(x, x), fading * b + weight * reward * x)
        elif not self.lends[agent] and self.is_noise_known():
            S, b = self.weighted((self.gram[agent], self.b[agent]), agent)
            improbable = self.improbability((self.precision() + S, b), agent, x, reward)
        if len(self.recent[agent]) == 24:
            oldest = self.recent[agent].pop(0)
            self.past[agent].append((1.0, oldest[0], oldest[1]))
        self.recent[agent].append((x, reward, improbable))

    def revise(self, agent: int, t: int) -> None:
        pulls = len(self.samples[agent])
        if not self.lends[agent]:
            if self.drift and pulls % 2 == 0 and self.is_noise_known():
                self.look_for_change(agent, t)
            return
        if self.labels[agent] is not None:
            if self.learns_scatter and pulls % (8 if pulls <= 64 else 32) == 0:
                raw = self.weighted((self.gram[agent], self.b[agent]), agent)
                tried = [(scatter, self.lift) for scatter in self.slope_scatters()]
                tried += [(self.scatter, lift) for lift in self.intercept_scatters()]
                self.votes[agent] = [self.log_evidence(raw, scatters, agent) for scatters in tried]
            if self.drift and pulls % 2 == 0 and self.is_noise_known():
                self.look_for_change(agent, t)
        self.keep_up()
        for n in range(1 + (self.redraws if self.n_agents > 1 else 0)):
            who = agent
            if n > 0:
                others = [other for other in range(self.n_agents) if other != agent]
                who = others[self.random.below(len(others))]
            if n == 0 or (self.active[who] and self.labels[who] is not None):
                self.tend((0, who))
                self.draw((0, who))
            if n > 0 and who in self.ghosts:
                self.tend((1, who))
                if who in self.ghosts:
                    self.draw((1, who))

    def draw(self, member: Member) -> None:
        """Draw a member's cluster."""
        found, u = self.candidates(member), self.random.uniform()
        if member[0] == 0 and self.features.shape[1]:
            self.vote_on_temper(member[1])
        cumulative = np.cumsum([chance for _, _, chance in found])
        position = min(int(np.sum(cumulative <= u)), len(found) - 1)
        if found[position][0] == self.label_of(member):
            return
        if member[0] == 0:
            self.labels[member[1]] = None
        else:
            del self.ghosts[member[1]]
        self.dissolve()
        free = min(set(range(2 * self.n_agents)) - set(self.used()))
        label = free if position == len(found) - 1 else found[position][0]
        if member[0] == 0:
            self.labels[member[1]] = label
        else:
            self.ghosts[member[1]] = label
        self.heeded[member] = self.alarms.get(label, 0)

    # Scatter

    def log_evidence(self, raw: Sums, scatters: tuple[float, float], agent: int) -> float:
        """Log evidence of samples as those of one agent in place of this one."""
        S, b = raw
        variances = self.scatters_of(scatters)
        spread = np.eye(self.dim) + S @ variances
        data = self.soften(raw, scatters)
        logs, n = [log(self.concentration) + self.evidence(data)], 0
        for label in self.used():
            if [other for other in self.everyone(label) if other != (0, agent)]:
                rest, others = self.sum_of(label, without=(0, agent)), self.count(label, without=(0, agent))
                gain = self.evidence((rest[0] + data[0], rest[1] + data[1])) - self.evidence(rest)
                logs.append(gain + log(max(others, 1)))
                n += others
        form = float(b @ variances @ np.linalg.solve(spread, b)) / (2 * self.variance())
        own = form - 0.5 * float(np.linalg.slogdet(spread)[1])
        return own + float(np.logaddexp.reduce(logs)) - log(n + self.concentration)

    def keep_up(self) -> None:
        """What has to be done now and then."""
        self.rounds_kept_up += 1
        if self.learns_scatter and self.rounds_kept_up % self.n_agents == 0:
            tally, size = np.sum(self.votes, axis=0), len(self.grid)
            best = int(np.argmax(tally[:size] - 5 * np.abs(np.arange(size) - self.first)))
            wanted_lift = 0
            if self.clicks:
                wanted_lift = int(np.argmax(tally[size:] - 5 * np.arange(len(self.lifts))))
            if (best, wanted_lift) != (self.position, self.lift_position):
                self.position += int(np.sign(best - self.position))
                self.lift_position += int(np.sign(wanted_lift - self.lift_position))
                self.to_tend = (2 if self.drift else 1) * self.n_agents
        for _ in range(min(8, self.to_tend)):
            self.cursor = (self.cursor + 1) % ((2 if self.drift else 1) * self.n_agents)
            self.to_tend -= 1
            self.tend(divmod(self.cursor, self.n_agents))
        if self.rounds_kept_up % 16 == 0:
            if self.used():
                self.measure(self.used()[self.rounds_kept_up // 16 % len(self.used())])
            wanted = self.wanted_prior()
            if not 1 / 1.15 <= wanted / self.prior <= 1.15:
                self.prior = wanted
        if self.noise_scale is None and self.rounds_kept_up % self.n_agents == 0:
            self.find_noises()

    def measure(self, label: int) -> None:
        """Compute how large a cluster's estimate is, and that of all on average."""
        S, b = self.sum_of(label)
        inverse, slopes = np.linalg.inv(self.precision() + S), slice(self.slopes)
        norm = float(np.sum((inverse @ b)[slopes] ** 2))
        self.scales[label] = (norm, self.slopes - self.prior * float(np.trace(inverse[slopes, slopes])))
        sizes = {k: self.count(k) for k in self.used()}
        norms = sum(size * self.scales.get(k, (0.0, 0.0))[0] for k, size in sizes.items())
        known = sum(size * self.scales.get(k, (0.0, 0.0))[1] for k, size in sizes.items())
        self.scale = norms / (1 + known)

    def tend(self, member: Member) -> None:
        """Bring what a member lends up to date with its cluster's alarms and with the scatter."""
        label, agent = self.label_of(member), member[1]
        if label is None:
            return
        if self.heeded.get(member, 0) != self.alarms.get(label, 0):
            if member[0] == 1:
                del self.ghosts[agent]
                self.dissolve()
                return
            self.heeded[member] = self.alarms.get(label, 0)
            before = len(self.samples[agent]) - len(self.recent[agent])
            self.past[agent] = [(0.5 * weight, x, y) for weight, x, y in self.past[agent]]
            self.rebuild(agent, before // 2)
            self.lend(member)
        elif self.lent_at[member] != self.scatters:
            self.lend(member)

    # Agents that change

    def rebuild(self, agent: int, before: int) -> None:
        """Sum an agent's samples from what is kept of them; `before` is how many old ones count as."""
        self.gram[agent], self.b[agent] = self.nothing()
        for weight, x, y in [*self.past[agent], *((1.0, x, y) for x, y, _ in self.recent[agent])]:
            self.gram[agent] = self.gram[agent] + weight * np.outer(x, x)
            self.b[agent] = self.b[agent] + weight * y * x
        self.samples[agent] = self.samples[agent][-len(self.recent[agent]) - before :]

    def split(self, agent: int, n: int) -> tuple[Sums, Sums]:
        """Sums of an agent's samples before its last n, and of these."""
        older, newer = self.nothing(), self.nothing()
        recent = [(1.0, x, y) for x, y, _ in self.recent[agent]]
        for weight, x, y in self.past[agent] + recent[: len(recent) - n]:
            older = (older[0] + weight * np.outer(x, x), older[1] + weight * y * x)
        for _, x, y in recent[len(recent) - n :]:
            newer = (newer[0] + np.outer(x, x), newer[1] + y * x)
        return older, newer

    def gain(self, agent: int, n: int) -> float:
        """Log Bayes factor for a change before an agent's last n samples."""
        older, newer = self.split(agent, n)
        whole = (older[0] + newer[0], older[1] + newer[1])
        found = [
            self.log_evidence(self.weighted(part, agent), self.scatters, agent)
            for part in (older, newer, whole)
        ]
        return found[0] + found[1] - found[2]

    def look_for_change(self, agent: int, t: int) -> None:
        """Test whether an agent has changed; if so, let it forget what was before."""
        memory = 1.5 * self.n_agents
        if self.lends[agent]:
            self.rate = [(1 - 1 / memory) * self.rate[0] + 1, (1 - 1 / memory) * self.rate[1]]
        threshold = min(9.0, -log((exp(-9) * memory + self.rate[1]) / (memory + self.rate[0])))
        excess = np.cumsum([improbable - 0.5 for _, _, improbable in reversed(self.recent[agent])])
        if not np.any(excess[4:] > threshold - 3):
            return
        kept, pulls = len(self.recent[agent]), len(self.samples[agent])
        tried = [n for n in (24, 17, 12, 8, 5) if n <= kept and pulls - n >= 5]
        gains = [self.gain(agent, n) for n in tried]
        if not tried or max(gains) <= threshold:
            return
        self.rate[1] += self.lends[agent]
        best = tried[int(np.argmax(gains))]
        longer = {24: pulls - 4, 17: 24, 12: 17, 8: 12, 5: 8}[best] - 1
        shorter = {24: 17, 17: 12, 12: 8, 8: 5, 5: 2}[best] + 1
        dated = list(range(shorter, min(kept, longer) + 1))
        self.forget(agent, dated[int(np.argmax([self.gain(agent, n) for n in dated]))], t)

    def forget(self, agent: int, n: int, t: int) -> None:
        """Let an agent keep only its last n samples; what was before becomes its ghost."""
        label = self.labels[agent]
        self.ghosts.pop(agent, None)
        if label is not None:  # who does not lend has no cluster, and leaves no ghost
            self.raw[1, agent], _ = self.split(agent, n)
            self.lend((1, agent))
            self.ghosts[agent] = label
            self.dissolve()
            self.heeded[1, agent] = self.alarms.get(label, 0)
        self.past[agent], self.recent[agent] = [], self.recent[agent][-n:]
        self.rebuild(agent, 0)
        self.lend((0, agent))
        self.forgot[agent] = t


class Clicks:
    """Any twin of `dim` + 1 dimensions, taught clicks: assumed density filtering with MacKay's σ(κm)."""

    def __init__(self, twin: Any) -> None:
        self.twin = twin
        self.weights: list[list[float]] = [[] for _ in range(twin.n_agents)]
        twin.pending_weight = lambda agent: (0.1 + sum(self.weights[agent])) / (1 + len(self.weights[agent]))

    @staticmethod
    def inner(arms: Floats) -> Floats:
        """Arms with the constant that carries the base rate."""
        return np.array([[*x, 3.0] for x in np.atleast_2d(arms)])

    def chance(self, agent: int, x: Floats) -> float:
        """Predicted probability of a click."""
        mean, variance = self.twin.logit(agent, self.inner(x)[0])
        return 1 / (1 + exp(-mean / sqrt(1 + pi * variance / 8)))

    def select(self, agent: int, arms: Floats, t: int) -> int:
        return int(self.twin.select(agent, self.inner(arms), t))

    def expect(self, agent: int, x: Floats, sign: int) -> None:
        self.twin.expect(agent, self.inner(x)[0], sign)

    def observe(self, agent: int, x: Floats, click: float, t: int) -> tuple[float, float]:
        """Learn a click; returns the moments of the logit that it was learned with."""
        x = self.inner(x)[0]
        mean, variance = self.twin.logit(agent, x)
        # N(mean, variance) times σ has, by Z = σ(κm) and its derivatives, these moments ...
        kappa = 1 / sqrt(1 + pi * variance / 8)
        p = 1 / (1 + exp(-kappa * mean))
        gradient, curvature = kappa * (click - p), kappa**2 * p * (1 - p)
        new_mean, new_variance = mean + variance * gradient, variance - variance**2 * curvature
        # ... and dividing the Gaussian with these by N(mean, variance) leaves what the click said.
        precision = 1 / new_variance - 1 / variance
        shift = new_mean / new_variance - mean / variance
        self.weights[agent].append(precision)
        self.twin.observe(agent, sqrt(precision) * x, shift / sqrt(precision), t)
        return mean, variance

    def revise(self, agent: int, t: int) -> None:
        self.twin.revise(agent, t)


class CLUB(EdgeTwin):
    """Connected components pool; an edge goes when the estimates are far apart for their pulls."""

    def __init__(self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0, gamma: float) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge)
        self.gamma = gamma

    def pool(self, agent: int) -> list[int]:
        return next(component for component in connected_components(self.edges) if agent in component)

    def differ(self, agent: int, other: int) -> bool:
        width = F(self.pulls([agent])) + F(self.pulls([other]))
        return distance(self.theta_hat([agent]), self.theta_hat([other])) > self.gamma * width


class SCLUB(LabelledTwin):
    """Clusters that split and merge, checked once per stage; stages double in length."""

    slack = 0.0
    """Added to the splitting radius."""

    def __init__(self, n_agents: int, dim: int, *, alpha: float, ridge: float = 1.0, gamma: float) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, labels=[0] * n_agents)
        self.gamma = gamma
        self.stage = 0
        self.checked = [False] * n_agents
        self.remembered: dict[int, tuple[Floats, int]] = {}

    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None:
        stage = (t + 1).bit_length() - 1  # 2^stage - 1 <= t <= 2^(stage + 1) - 2
        if stage > self.stage:
            self.stage = stage
            self.checked = [False] * self.n_agents
            self.remembered = {}
            for cluster in set(self.labels):
                self.remember(cluster)
        super().observe(agent, x, reward, t)

    def remember(self, cluster: int) -> None:
        """Keep the estimate and pulls a cluster has now."""
        members = self.members(cluster)
        self.remembered[cluster] = (self.theta_hat(members), self.pulls(members))

    def revise(self, agent: int, t: int) -> None:
        touched = {self.labels[agent]}
        if self.splits(agent):
            self.labels[agent] = min(set(range(self.n_agents)) - set(self.labels))
            self.remember(self.labels[agent])
            touched.add(self.labels[agent])
        self.checked[agent] = True
        while (pair := self.first_to_merge(touched)) is not None:
            kept, freed = pair
            self.labels = [kept if label == freed else label for label in self.labels]
            self.remember(kept)
            del self.remembered[freed]
            touched.add(kept)
            touched.discard(freed)

    def splits(self, agent: int) -> bool:
        """Whether an agent is too far from what its cluster remembers."""
        cluster = self.labels[agent]
        if self.members(cluster) == [agent]:
            return False
        theta_then, pulls_then = self.remembered[cluster]
        width = F(self.pulls([agent])) + F(pulls_then)
        return distance(self.theta_hat([agent]), theta_then) > self.gamma * width + self.slack

    def first_to_merge(self, touched: set[int]) -> tuple[int, int] | None:
        """First pair of fully checked clusters, one of them touched, that are close enough."""
        clusters = []
        for cluster in sorted(set(self.labels)):
            if all(self.checked[member] for member in self.members(cluster)):
                clusters.append(cluster)
        for first in clusters:
            for second in clusters:
                if first >= second or not touched & {first, second}:
                    continue
                ours, theirs = self.members(first), self.members(second)
                width = F(self.pulls(ours)) + F(self.pulls(theirs))
                gap = distance(self.theta_hat(ours), self.theta_hat(theirs))
                if gap < (self.gamma * width + self.slack) / 2:
                    return first, second
        return None


class CMLB(LabelledTwin):
    """Independent learning, then one clustering by thresholded distances."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        gamma: float,
        exploration_rounds: int = 1000,
        min_cluster_fraction: float = 0.1,
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, labels=range(n_agents))
        self.gamma = gamma
        self.exploration_rounds = exploration_rounds
        self.min_cluster_fraction = min_cluster_fraction
        self.clustered = False

    def revise(self, agent: int, t: int) -> None:
        if t >= self.exploration_rounds and not self.clustered:
            self.clustered = True
            self.form_clusters()

    def form_clusters(self) -> None:
        """Components of the graph of close estimates, the small ones merged into one."""
        estimates = [self.theta_hat([agent]) for agent in range(self.n_agents)]
        close = np.zeros((self.n_agents, self.n_agents), dtype=np.bool_)
        for i in range(self.n_agents):
            for j in range(self.n_agents):
                close[i, j] = i != j and distance(estimates[i], estimates[j]) < self.gamma
        if not close.any():
            return
        components = connected_components(close)
        least = self.min_cluster_fraction * self.n_agents
        clusters = [component for component in components if len(component) >= least]
        clusters.append([agent for component in components if len(component) < least for agent in component])
        for members in clusters:
            for agent in members:
                self.labels[agent] = members[0]


class DynUCB(LabelledTwin):
    """A fixed number of clusters; an agent moves to the nearest one after each observation."""

    def __init__(
        self,
        n_agents: int,
        dim: int,
        *,
        alpha: float,
        ridge: float = 1.0,
        n_clusters: int,
        labels: Sequence[int],
    ) -> None:
        super().__init__(n_agents, dim, alpha=alpha, ridge=ridge, labels=labels)
        self.n_clusters = n_clusters

    def revise(self, agent: int, t: int) -> None:
        own = self.theta_hat([agent])
        distances = [distance(own, self.theta_hat(self.members(c))) for c in range(self.n_clusters)]
        self.labels[agent] = distances.index(min(distances))


# ---------------------------------------------------------------------------------------------------------
# Simulation and scores
# ---------------------------------------------------------------------------------------------------------


class Steps(Protocol):
    """The three steps of a policy."""

    def select(self, agent: int, arms: Floats, t: int) -> int: ...
    def observe(self, agent: int, x: Floats, reward: float, t: int) -> None: ...
    def revise(self, agent: int, t: int) -> None: ...


class Run(NamedTuple):
    """`agents`, `choices` and `rewards` per event, in order; `regret` per round, cumulative."""

    agents: Ints
    choices: Ints
    rewards: Floats
    regret: Floats


def run(
    twin: Steps,
    schedule: Sequence[Sequence[int]],
    arms: Floats | Callable[[int], Floats],
    mean_rewards: Callable[[int, int], Floats],
    noise: Sequence[float] | Floats,
    delays: Sequence[int] | Ints | None = None,
) -> Run:
    """Simulate: in round t = 1, 2, … all selects, then all observes, then all revises.

    `mean_rewards(agent, t)` gives the mean of every arm, (K,); `noise` has one entry per event, and so have
    `delays`, the rounds after its own at whose end a reward is observed.
    """
    due: dict[int, list[tuple[int, int, Floats, float]]] = {}
    waiter: Any = twin  # has `expect` where rewards are late
    agents: list[int] = []
    choices: list[int] = []
    rewards: list[float] = []
    regret: list[float] = []
    total = 0.0
    for t, pulling in enumerate(schedule, start=1):
        arms_now = arms(t) if callable(arms) else arms
        chosen = [twin.select(agent, arms_now, t) for agent in pulling]
        for agent, choice in zip(pulling, chosen, strict=True):
            means = mean_rewards(agent, t)
            reward = float(means[choice] + noise[len(rewards)])
            total += float(max(means) - means[choice])
            agents.append(agent)
            late = 0 if delays is None else int(delays[len(rewards)])
            due.setdefault(t + late, []).append((len(rewards), agent, arms_now[choice], reward))
            if late:
                waiter.expect(agent, arms_now[choice], 1)
            choices.append(choice)
            rewards.append(reward)
        arrived = sorted(due.pop(t, []), key=lambda pull: pull[0])
        for event, agent, x, reward in arrived:
            if delays is not None and delays[event] > 0:
                waiter.expect(agent, x, -1)
            twin.observe(agent, x, reward, t)
        for _, agent, _, _ in arrived:
            twin.revise(agent, t)
        regret.append(total)
    return Run(
        np.array(agents, dtype=np.int64),
        np.array(choices, dtype=np.int64),
        np.array(rewards, dtype=np.float64),
        np.array(regret, dtype=np.float64),
    )


def f1(graph: Bools, labels: Sequence[int] | Ints) -> float:
    """F1 score of a graph's edges against the pairs with the same label, over i < j."""
    hits = false_alarms = misses = 0
    for i in range(len(labels)):
        for j in range(i + 1, len(labels)):
            same = labels[i] == labels[j]
            if graph[i, j] and same:
                hits += 1
            elif graph[i, j]:
                false_alarms += 1
            elif same:
                misses += 1
    return 2 * hits / (2 * hits + false_alarms + misses) if hits else 0.0
