"""Policies played against each other in a world, and which of them to use.

Each policy's parameters are chosen on some seeds, and policies are compared on others. The same seed gives
every policy the same arms, agents and noise, so they are compared run by run.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core import validation
from shoal.core.policies.registry import find_policy, make_policy
from shoal.core.policy.living import LivePolicy
from shoal.core.types import Vector
from shoal.lab.environments.base import Environment
from shoal.lab.experiments.executors import as_done
from shoal.lab.experiments.runner import processors
from shoal.lab.simulation import Trace, simulate
from shoal.reporting.curves import Curve, half_width, mean_curve
from shoal.reporting.words import number

ALPHAS = (0.03, 0.1, 0.3, 0.6, 1.2)
"""Values of α to try, in units of the noise."""
CHOSEN_ON = 3
"""Runs that parameters are chosen on."""
FIRST_REPORTED = 1_000
"""The first seed of the runs that are reported."""
ALONE, ONE, WITH = "Independent", "everyone as one", "ClusterMixture with features"
OF_CLICKS = (
    'Rewards are 0 and 1. Independent, BASS and ClusterMixture are played with rewards="binary": they learn '
    "the log-odds, with an intercept of their own, so features need no column of ones. DynUCB and everyone "
    "as one cannot, and learn 0 and 1 as numbers."
)

Progress = Callable[[int, int, str], None]
"""Called with the number of finished runs, their total, and what was played last."""


class Method(NamedTuple):
    """A policy and the parameters to try."""

    label: str
    policy: str
    grid: Sequence[dict[str, Any]]
    can_be_taken: bool = True
    """Whether it may be recommended, or is only there for comparison."""
    described: bool = False
    """Whether it is given the world's `agent_features`."""

    @property
    def is_live(self) -> bool:
        """Whether a population accepts it."""
        return self.can_be_taken and issubclass(find_policy(self.policy), LivePolicy)


@dataclass(frozen=True)
class Played:
    """A method's runs on the seeds for reporting, at the parameters that were best on those for choosing."""

    method: Method
    parameters: dict[str, Any]
    regrets: Vector
    """(runs,) final regret on the seeds for reporting."""
    curve: Curve
    """Mean regret over rounds."""
    late: float
    """Where the last quarter lies between an arm drawn at random (0) and the best arm (1)."""
    at_edge: bool
    """Whether the best α is the smallest or largest that was tried."""

    @property
    def label(self) -> str:
        """The method's label."""
        return self.method.label

    @property
    def mean(self) -> float:
        """Mean final regret."""
        return float(self.regrets.mean())

    def margin(self) -> float:
        """Half of the 95% interval of the mean."""
        return _margin(self.regrets)

    def against(self, other: "Played", level: float = 0.95) -> tuple[float, float]:
        """Mean difference from another method, run by run, and half of its interval."""
        difference = self.regrets - other.regrets
        return float(difference.mean()), _margin(difference, level)


@dataclass(frozen=True)
class Recommendation:
    """Which policy to use, with the evidence. `str()` says it in words.

    Examples
    --------
    >>> import shoal
    >>> found = shoal.recommend(shoal.SyntheticClusters(40, 5, 2, 1.0, seed=0), horizon=5_000, runs=4)
    >>> found.call()
    'shoal.make_policy("cluster_mixture", n_agents, dim, alpha=0.1)'
    >>> found.make(n_agents=40, dim=5).pulls.sum()
    np.int64(0)
    >>> sorted(one.label for one in found.played)
    ['BASS', 'ClusterMixture', 'DynUCB', 'Independent', 'everyone as one']
    """

    policy: str
    """Its registered name."""
    parameters: dict[str, Any]
    reason: str
    """Why, in a sentence or two."""
    played: tuple[Played, ...]
    """All methods that were played, the best first."""
    world: Environment
    horizon: int
    runs: int
    """Number of runs behind the figures."""
    rate: float
    """Regret per round of an arm drawn at random; nan if arms change."""
    notes: tuple[str, ...] = ()
    """Remarks on the world, for example what is odd about a log."""
    described: bool = False
    """Whether the policy is given `agent_features`."""

    @property
    def chosen(self) -> Played:
        """The runs of the policy to use."""
        wanted = self.policy, self.described
        return next(one for one in self.played if (one.method.policy, one.method.described) == wanted)

    def make(self, n_agents: int, dim: int, **other: Any) -> Any:
        """A new policy as recommended; with `agent_features`, if it is to have them."""
        if self.described and not {"agent_features", "agent_dim"} & other.keys():
            raise ValueError("agent_features must be given: the policy that was recommended has them")
        return make_policy(self.policy, n_agents, dim, **{**self.parameters, **other})

    def call(self) -> str:
        """The call that makes it, as text."""
        given = "".join(f", {name}={value!r}" for name, value in self.parameters.items())
        given += ", agent_features=Z" if self.described else ""
        return f'shoal.make_policy("{self.policy}", n_agents, dim{given})'

    def live_use(self) -> str:
        """A sentence that says which of the played policies a population accepts."""
        live = [one.label for one in self.played if one.method.is_live]
        rest = [one.label for one in self.played if one.method.can_be_taken and not one.method.is_live]
        return f"For live use: {', '.join(live)}; for comparison only: {', '.join(rest)}."

    def report(self, directory: str | os.PathLike[str]) -> Path:
        """Write a page, `index.html`, with table, curves and limits into a directory; returns its path."""
        from shoal.lab.recommendation.report import write_recommendation

        return write_recommendation(self, Path(directory))

    def __str__(self) -> str:
        lines = [f"Take {self.call()}.", self.reason, ""]
        wide = max(18, *(len(one.label) + 1 for one in self.played))
        lines += [f"{'':{wide}}{'regret':>12}{'':>12}{'last quarter':>14}"]
        for one in self.played:
            late = "" if math.isnan(one.late) else f"{one.late:14.0%}"
            lines.append(f"{one.label:{wide}}{one.mean:12,.0f} ± {one.margin():<9,.0f}{late}")
        said = f"Mean of {self.runs} runs of {self.horizon:,} rounds with 95% intervals; "
        lines.append(said + "last quarter: 0% is an arm drawn at random, 100% the best arm.")
        lines.append(self.live_use())
        return "\n".join([*lines, *self.notes])


def methods(world: Environment) -> list[Method]:
    """The methods to play in a world: the same α for all, in units of its noise, all else by default.

    Rewards of 0 and 1 are played as clicks by the policies that can: their α is in units of the logit.
    CLUB, SCLUB and CMLB are left out: their γ depends on the gap between clusters, which is unknown here.
    """
    bound = world.noise_bound
    scale = bound if math.isfinite(bound) and bound > 0.0 else 1.0
    alphas = [float(f"{alpha * scale:.3g}") for alpha in ALPHAS]
    real = [{"alpha": alpha} for alpha in alphas]
    one = [{"alpha": alpha, "labels": np.zeros(world.n_agents, dtype=np.int64)} for alpha in alphas]
    own: list[dict[str, Any]] = real
    of_bass = {} if scale == 1.0 else {"noise_scale": scale}
    if math.isfinite(world.param_norm):
        of_bass["param_norm"] = world.param_norm
    if is_binary(world):
        own, of_bass = [{"alpha": alpha, "rewards": "binary"} for alpha in ALPHAS], {}
    return [
        Method(ALONE, "independent", own),
        Method("BASS", "bass", [{**parameters, **of_bass} for parameters in own]),
        Method("ClusterMixture", "cluster_mixture", own),
        *([] if world.agent_features is None else [Method(WITH, "cluster_mixture", own, described=True)]),
        Method("DynUCB", "dynucb", real),
        Method(ONE, "oracle", one, can_be_taken=False),
    ]


def is_binary(world: Environment) -> bool:
    """Whether a world's rewards are 0 and 1."""
    return world.noise == "bernoulli"


def compare(
    world: Environment | Callable[[int], Environment],
    *,
    horizon: int | None,
    runs: int,
    seed: int,
    progress: Progress,
    notes: Iterable[str],
) -> Recommendation:
    """See `recommend`."""
    worlds = world if callable(world) else lambda seed: world
    seed = validation.natural("seed", seed)
    runs = validation.positive_int("runs", runs)
    if runs < 2:
        raise ValueError(f"runs must be at least 2, for an interval, got {runs}")
    for_choice = range(seed, seed + CHOSEN_ON)
    # Far from the seeds for choosing, so that no run is in both.
    reported = range(seed + FIRST_REPORTED, seed + FIRST_REPORTED + runs)
    # Each world once, for all policies: comparisons are run by run in the same world.
    made = {one: worlds(one) for one in (*for_choice, *reported)}
    first_world = made[for_choice[0]]
    if horizon is None:
        horizon = int(np.clip(30 * first_world.n_agents, 5_000, 50_000))
    horizon = validation.positive_int("horizon", horizon)
    tried = methods(first_world)
    total = CHOSEN_ON * sum(len(method.grid) for method in tried) + runs * len(tried)
    table = _Table(made, horizon, total, progress)
    every = [(method, parameters) for method in tried for parameters in method.grid]
    # Parameters are chosen on runs that are not reported; otherwise the largest grid would look best.
    for_each = table.play(every, for_choice)
    best: dict[str, tuple[dict[str, Any], list[Trace]]] = {}
    for (method, parameters), traces in zip(every, for_each, strict=True):
        known = best.get(method.label)
        if known is None or _mean_regret(traces) < _mean_regret(known[1]):
            best[method.label] = parameters, traces
    rate = float(np.mean([_random_rate(made[one]) for one in reported]))
    played = [
        Played(
            method,
            best[method.label][0],
            np.array([trace.final_regret for trace in traces]),
            _curve(traces),
            _late(traces, rate),
            len(method.grid) > 1 and best[method.label][0] in (method.grid[0], method.grid[-1]),
        )
        for method, traces in zip(
            tried, table.play([(method, best[method.label][0]) for method in tried], reported), strict=True
        )
    ]
    choice, reason = choose(played)
    return Recommendation(
        **taken(choice),
        reason=reason,
        played=tuple(sorted(played, key=lambda one: one.mean)),
        world=first_world,
        horizon=horizon,
        runs=runs,
        rate=rate,
        notes=(*notes, *([OF_CLICKS] if is_binary(first_world) else []), *_of_features(played, choice)),
    )


def taken(choice: Played) -> dict[str, Any]:
    """What a recommendation says of the method to use."""
    method = choice.method
    return {"policy": method.policy, "parameters": dict(choice.parameters), "described": method.described}


def _undescribed(played: Sequence[Played], one: Played) -> Played | None:
    """For a method with features, the same policy without."""
    same = (other for other in played if other.method.policy == one.method.policy)
    return (
        next((other for other in same if not other.method.described), None) if one.method.described else None
    )


def _of_features(played: Sequence[Played], choice: Played) -> list[str]:
    """What features of agents bring, and how they are given."""
    said = []
    for one in played:
        if (plain := _undescribed(played, one)) is not None:
            mean, margin = one.against(plain)
            if mean - margin <= 0.0 <= mean + margin:
                verdict = "these runs do not show that they matter"
            else:
                verdict = "they help" if mean < 0.0 else "they do harm"
            said.append(
                f"What the features of agents bring: {one.label} has {one.mean:,.0f} regret, {plain.label} "
                f"{plain.mean:,.0f} ({number('{:+,.0f}', mean)} ± {margin:,.0f}, run by run): {verdict}."
            )
    if choice.method.described:
        said.append(
            "agent_features=Z: Z has a row for each agent and the columns in the order in which they were "
            "given here, with NaN for what is not known."
        )
    return said


def choose(played: Sequence[Played]) -> tuple[Played, str]:
    """The method to use, and why: the best of those that surely beat Independent, or else Independent.

    As several are compared with it, each interval is wide enough for all to hold together (Bonferroni).
    """
    alone = next(one for one in played if one.label == ALONE)
    others = [one for one in played if one.method.can_be_taken and one is not alone]
    level = 1.0 - 0.05 / max(len(others), 1)
    differences = {one.label: one.against(alone, level) for one in others}
    sure = [one for one in others if sum(differences[one.label]) < 0.0]
    # Features that bring nothing sure are not worth asking for.
    sure = [
        one for one in sure if (plain := _undescribed(sure, one)) is None or sum(one.against(plain)) < 0.0
    ]
    # Without evidence that sharing helps, the policy that does not share.
    best = min(sure or [alone], key=lambda one: one.mean)
    if sure:
        mean, margin = differences[best.label]
        why = (
            f"{best.label} has {-mean / max(alone.mean, 1e-300):.0%} less regret than {ALONE} "
            f"({number('{:+,.0f}', mean)} ± {margin:,.0f}): sharing helps."
        )
    else:
        listed = ", ".join(
            f"{number('{:+,.0f}', mean)} ± {margin:,.0f} for {label}"
            for label, (mean, margin) in differences.items()
        )
        why = f"No policy that shares surely has less regret than {ALONE} ({listed}): nothing says it helps."
    together = next((one for one in played if one.label == ONE), None)
    if together is not None:
        mean, margin = together.against(best)
        if mean - margin <= 0.0:  # better, or not surely worse
            size = f"{number('{:+,.0f}', mean)} ± {margin:,.0f}"
            how = "does better still" if mean + margin < 0.0 else "does as well"
            why += (
                f" Treating everyone as one agent {how} ({size}): within this many rounds the agents hardly "
                "differ, or each has too few of them."
            )
    return best, why


class _Table:
    """Runs on as many threads as there are cores: compiled loops release the interpreter's lock."""

    def __init__(
        self, worlds: Mapping[int, Environment], horizon: int, total: int, progress: Progress
    ) -> None:
        self._worlds, self._horizon, self._total, self._progress = worlds, horizon, total, progress
        self._done = 0

    def play(self, tried: Sequence[tuple[Method, dict[str, Any]]], seeds: Sequence[int]) -> list[list[Trace]]:
        """The run of each method with its parameters for each seed, whatever the order in which they end."""
        pool = ThreadPoolExecutor(processors())
        try:
            running = [[pool.submit(self._run, *one, seed) for seed in seeds] for one in tried]
            labels = [one[0].label for one in tried for _ in seeds]
            for label, future in as_done(zip(labels, itertools.chain(*running), strict=True)):
                future.result()  # or raises what the run raised
                self._done += 1
                self._progress(self._done, self._total, label)
        finally:
            pool.shutdown(cancel_futures=True)
        return [[future.result() for future in row] for row in running]

    def _run(self, method: Method, parameters: dict[str, Any], seed: int) -> Trace:
        world = self._worlds[seed]
        given = {**parameters, "seed": seed}
        if method.described:
            given["agent_features"] = world.agent_features
        policy = make_policy(method.policy, world.n_agents, world.dim, **given)
        return simulate(policy, world, horizon=self._horizon, seed=seed)


def _mean_regret(traces: Sequence[Trace]) -> float:
    return float(np.mean([trace.final_regret for trace in traces]))


def _random_rate(world: Environment) -> float:
    """Regret per round of an arm drawn at random; nan if arms or means change from round to round."""
    kind = type(world)
    changes = (kind.arms_in, kind.rewards_in) != (Environment.arms_in, Environment.rewards_in)
    means = world.mean_rewards
    return math.nan if changes else float((means.max(axis=1) - means.mean(axis=1)).mean())


def _late(traces: Sequence[Trace], rate: float) -> float:
    if not rate > 0.0:
        return math.nan
    # The end of a run shows what was learned; the whole run includes what learning cost.
    start = 3 * len(traces[0].regret) // 4
    lost = np.mean([(trace.regret[-1] - trace.regret[start - 1]) for trace in traces])
    return float(1.0 - lost / ((len(traces[0].regret) - start) * rate))


def _curve(traces: Sequence[Trace]) -> Curve:
    at = traces[0].recorded - 1
    return mean_curve(
        traces[0].recorded.astype(np.float64),
        np.array([trace.regret[at] for trace in traces]),
        bounds=(0.0, math.inf),
    )


def _margin(values: Vector, level: float = 0.95) -> float:
    return float(half_width(values.std(ddof=1) / math.sqrt(len(values)), len(values), level))
