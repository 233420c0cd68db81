"""What every environment offers to a simulation."""

import inspect
import os
from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any, ClassVar, TypedDict, Unpack, get_args, get_origin, get_type_hints

import numpy as np

from shoal.core import registry, validation
from shoal.core.types import Booleans, Integers, Matrix, Tensor, Vector

NOISE_KINDS = ("gaussian", "bernoulli")

NoiseFunction = Callable[[Matrix, Integers, np.random.Generator], Matrix]
"""`noise(means, agents, rng)`: the rewards (n, K) of n pulls by `agents` (n,), from their means (n, K)."""

Noise = str | NoiseFunction
NoiseScale = float | Sequence[float] | Vector


class NoiseOptions(TypedDict, total=False):
    """How rewards are drawn: what environments pass on to `Environment`, and its defaults hold for."""

    noise: Noise
    noise_scale: NoiseScale


class Environment:
    """Agents and arms, with a mean reward for each pair.

    Attributes
    ----------
    arms : (K, d)
        The arms; if they change, those of the first round.
    mean_rewards : (N, K)
        Mean reward of every agent for each of `arms`; if they change, those of the first round.
    theta_star : (N, d) or None
        True parameters, if there are any; if they change, those of the first round.
    labels : (N,) or None
        True clusters, if there are any.
    noise : "gaussian", "bernoulli" or a function
        How rewards are drawn: the mean plus Gaussian noise; 1 with the mean as its probability and 0
        otherwise, for means in [0, 1]; or by `noise(means, agents, rng)`, which gets the mean rewards (n, K)
        of n pulls, who pulls (n,) and a generator, and returns the reward of every arm (n, K). A function may
        also be named by the string "module:function".
    noise_scale : float or (N,)
        Standard deviation of Gaussian noise, for all agents or for each.
    param_norm : float
        Largest norm of a true parameter, in any round; without true parameters the bound that was passed,
        or nan.
    data_files : tuple of paths
        Files that it is made from, beside those that its parameters name: results are played again when they
        change.
    graph : (N, N)
        Who is joined to whom, for policies that are given a graph. Only if the class says `has_graph = True`.
    agent_features : (N, p) or None
        What is known of the agents themselves, for policies that are told; NaN is a missing entry.

    Examples
    --------
    >>> import numpy as np, shoal
    >>> world = shoal.Environment(np.eye(2), theta_star=np.array([[1.0, 0.0], [0.0, 1.0]]), noise_scale=0.1)
    >>> world.mean_rewards
    array([[1., 0.],
           [0., 1.]])
    """

    data_files: tuple[str | os.PathLike[str], ...] = ()
    graph: Booleans
    agent_features: Matrix | None = None
    has_graph: ClassVar[bool] = False

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.__signature__ = _spelled_out(cls)  # type: ignore[attr-defined]

    def __init__(
        self,
        arms: Matrix,
        *,
        theta_star: Matrix | None = None,
        mean_rewards: Matrix | None = None,
        labels: Integers | None = None,
        noise: Noise = "gaussian",
        noise_scale: NoiseScale = 1.0,
        param_norm: float | None = None,
    ) -> None:
        self.arms = validation.matrix("arms", arms).copy()
        self.dim, self.n_arms = self.arms.shape[1], self.arms.shape[0]
        self.theta_star = None
        if theta_star is not None:
            self.theta_star = validation.matrix("theta_star", theta_star, columns=self.dim).copy()
        if mean_rewards is None:
            if self.theta_star is None:
                raise ValueError("theta_star or mean_rewards must be given")
            mean_rewards = self.theta_star @ self.arms.T
        self.mean_rewards = validation.matrix("mean_rewards", mean_rewards, columns=self.n_arms).copy()
        self.n_agents = len(self.mean_rewards)
        if self.theta_star is not None and len(self.theta_star) != self.n_agents:
            raise ValueError(f"theta_star must have {self.n_agents} rows, got {len(self.theta_star)}")
        self.labels = None
        if labels is not None:
            given = np.asarray(labels)
            if given.shape != (self.n_agents,) or not np.issubdtype(given.dtype, np.integer):
                raise ValueError(f"labels must be {self.n_agents} integers, got {given.dtype}{given.shape}")
            self.labels = given.astype(np.int64)
        self.noise = _checked_noise(noise)
        self.noise_scale = _checked_scale(noise_scale, self.n_agents)
        if self.noise != "gaussian" and not (isinstance(self.noise_scale, float) and self.noise_scale == 1.0):
            raise ValueError("noise_scale is that of Gaussian noise: leave it out for any other noise")
        if self.noise == "bernoulli":
            _check_probabilities(self.mean_rewards)
        self.param_norm = float("nan")
        if param_norm is not None:
            self.param_norm = validation.number("param_norm", param_norm, low=0.0)
        elif self.theta_star is not None:
            self.param_norm = float(np.linalg.norm(self.theta_star, axis=1).max())
        for array in (self.arms, self.theta_star, self.mean_rewards, self.labels, self.noise_scale):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False

    @property
    def gap(self) -> float:
        """Δ_min: the smallest distance between two distinct true parameters; nan if there are no two."""
        if self.theta_star is None:
            return float("nan")
        distinct = np.unique(self.theta_star, axis=0)
        if len(distinct) < 2:
            return float("nan")
        from scipy.spatial import cKDTree  # takes longer to import than the rest of this package

        nearest, _ = cKDTree(distinct).query(distinct, k=2)  # the nearest point to each is itself
        return float(nearest[:, 1].min())

    @property
    def noise_bound(self) -> float:
        """A σ such that the noise is σ-sub-Gaussian: what BASS takes as its `noise_scale`.

        The largest scale of Gaussian noise, 1/2 for 0/1 rewards (Hoeffding), nan for a noise function.
        """
        if self.noise == "gaussian":
            return float(np.max(self.noise_scale))
        return 0.5 if self.noise == "bernoulli" else float("nan")

    def arms_in(self, first: int, last: int) -> Tensor:
        """Arms of rounds `first`, …, `last` (from 1): (rounds, K, d), or (1, K, d) if they never change."""
        return self.arms[None].copy()

    def rewards_in(self, arms: Tensor, rounds: Integers, agents: Integers, *, first: int) -> Matrix:
        """Mean rewards, shape (n, K), of `agents` (n,) in `rounds` (n,), counted from 1.

        `arms` is what `arms_in` returned for rounds from `first` on: the arms of round t are
        `arms[t - first]`, or `arms[0]` if they never change.
        """
        return np.asarray(self.mean_rewards[agents])

    def draw_rewards(
        self, means: Matrix, agents: Integers, rng: np.random.Generator
    ) -> tuple[Matrix, Vector]:
        """Draw what every arm would give in n pulls: arm k gives `by_arm[n, k] + shared[n]`.

        Nothing here depends on which arm is chosen, so policies are compared on the same draws.

        Parameters
        ----------
        means : (n, K)
            As returned by `rewards_in`.
        agents : (n,)
        rng : numpy.random.Generator

        Returns
        -------
        by_arm : (n, K)
        shared : (n,)
            Separate, because Gaussian noise is the same for all arms of a pull and need not be copied.
        """
        if self.noise == "gaussian":
            scale = self.noise_scale if isinstance(self.noise_scale, float) else self.noise_scale[agents]
            return means, scale * rng.standard_normal(len(agents))
        if self.noise == "bernoulli":
            _check_probabilities(means)
            # One uniform number per pull is used for all its arms, as one normal number is above.
            by_arm = (rng.random((len(agents), 1)) < means).astype(np.float64)
        else:
            assert callable(self.noise)  # by construction
            given = means.view()
            given.flags.writeable = False  # regret is computed from these later
            drawn = self.noise(given, agents, rng)
            if np.shape(drawn) != means.shape:
                raise ValueError(f"noise must return rewards of shape {means.shape}, got {np.shape(drawn)}")
            by_arm = validation.matrix("the rewards that noise returns", drawn, columns=means.shape[1])
        return by_arm, np.zeros(len(agents))

    def __repr__(self) -> str:
        shape = f"n_agents={self.n_agents}, dim={self.dim}, n_arms={self.n_arms}"
        if self.noise == "gaussian":
            scale = self.noise_scale
            text = f"{scale:g}" if isinstance(scale, float) else f"[{scale.min():g} … {scale.max():g}]"
            noise = f"noise_scale={text}"
        else:
            name = self.noise if isinstance(self.noise, str) else getattr(self.noise, "__name__", self.noise)
            noise = f"noise={name}"
        return f"{type(self).__name__}({shape}, {noise})"


def _spelled_out(kind: type[Environment]) -> inspect.Signature:
    """The signature of a class, with the options that it passes on to its bases under their own names.

    Specs check parameters by it, and `help` shows it.
    """
    _, *named = inspect.signature(kind.__init__).parameters.values()
    bases = [inspect.signature(base).parameters for base in kind.__mro__[1:-1]]
    if named and get_origin(named[-1].annotation) is Unpack:
        (options,) = get_args(named.pop().annotation)
        for name, hint in get_type_hints(options).items():
            default = next(known[name].default for known in bases if name in known)
            named.append(Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint))
    return inspect.Signature(named)


def _checked_noise(noise: Any) -> Noise:
    if isinstance(noise, str):
        found = registry.load(noise) if ":" in noise else validation.one_of("noise", noise, NOISE_KINDS)
    else:
        found = noise
    if not (isinstance(found, str) or callable(found)):
        shown = validation.show(noise)
        raise ValueError(f"noise must be one of {', '.join(NOISE_KINDS)} or a function, got {shown}")
    return found


def _checked_scale(scale: Any, n_agents: int) -> float | Vector:
    if np.ndim(scale) == 0:
        return validation.number("noise_scale", scale, low=0.0)
    scales = validation.vector("noise_scale", scale, n_agents).copy()
    if scales.min() < 0.0:
        agent = int(np.argmin(scales))
        raise ValueError(f"noise_scale must be at least 0, got {scales[agent]:g} for agent {agent}")
    return scales


def _check_probabilities(means: Matrix) -> None:
    if means.min() < 0.0 or means.max() > 1.0:
        wrong = means.min() if means.min() < 0.0 else means.max()
        raise ValueError(f"mean_rewards must be in [0, 1] for noise='bernoulli', got {wrong:g}")


def equal_clusters(n_agents: Any, n_clusters: Any) -> Integers:
    """Labels of clusters of nearly equal size, the larger ones last: 33, 33, 34."""
    n_agents = validation.positive_int("n_agents", n_agents)
    n_clusters = validation.positive_int("n_clusters", n_clusters)
    if n_clusters > n_agents:
        raise ValueError(f"n_clusters must be at most n_agents = {n_agents}, got {n_clusters}")
    size, larger = divmod(n_agents, n_clusters)
    sizes = np.full(n_clusters, size)
    sizes[n_clusters - larger :] += 1
    return np.repeat(np.arange(n_clusters), sizes)
