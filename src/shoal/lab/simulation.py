"""Play a policy in an environment: one loop for compiled policies, one for plain ones, the same traces.

What the environment draws (order of agents, noise) depends only on the run's seed and is drawn in the order
of events, so policies are compared on the same draws.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from shoal.core import validation
from shoal.core.jit.compiled import compiled
from shoal.core.kernels.graphs import count_edges, pairs_within, separation_times
from shoal.core.policy.base import Policy
from shoal.core.policy.calls import check_scale
from shoal.core.policy.living import LivePolicy
from shoal.core.policy.steps import choose, expect, revise, take_in
from shoal.core.registry import load
from shoal.core.types import Integers, Matrix, Tensor, Vector
from shoal.lab.environments.base import Environment
from shoal.lab.metrics import f1_of_counts

BLOCK_EVENTS = 8192
"""Number of pulls drawn at once; limits the memory of a run."""
BLOCK_PAIRS = 2**22
"""Number of pairs of agents that a block may concern; limits what a policy has to reserve for it."""

PullingWord = Literal["asynchronous", "synchronous", "zipf"]
"""Who pulls when; see `simulate`."""

Pulling = str | Sequence[int] | Sequence[Sequence[int]] | Integers

Delay = int | Sequence[str | float] | Callable[[Integers, Integers, np.random.Generator], Integers]
"""How late rewards are; see `simulate`."""


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """What happened in one run.

    An event is one pull by one agent. Curves are recorded after the rounds in `recorded`.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=4, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> trace = shoal.simulate(shoal.Independent(n_agents=4, dim=3, alpha=0.5), world, horizon=100, seed=0)
    >>> trace  # a summary; the arrays are attributes
    Trace(100 rounds of 4 agents, final regret 25.5, F1 0.00, 0 edges)
    >>> trace.regret.shape, int(trace.recorded[-1])
    ((100,), 100)
    """

    agents: Integers
    """(events,) who pulled."""
    choices: Integers
    """(events,) which arm."""
    rewards: Vector
    """(events,) its reward."""
    regret: Vector
    """(rounds,) cumulative pseudo-regret over all agents after each round."""
    recorded: Integers
    """(points,) the rounds, counted from 1, at which the curves below were recorded."""
    f1: Vector
    """(points,) F1 score of the graph; nan without true labels or graph."""
    edges: Integers
    """(points,) number of edges; −1 without a graph."""
    communication: Integers
    """(points,) communication cost so far; −1 if the policy does not count it."""
    cuts: Integers | None
    """(cuts, 3) each edge that was cut, as two agents and a round; None for policies that cut none."""
    n_agents: int
    dividends: Vector | None = None
    """(events,) what sharing paid: squared error of the agent's own prediction minus that of the policy's;
    None unless asked for."""
    dividend: Vector | None = None
    """(points,) their mean so far; None unless asked for."""

    def __repr__(self) -> str:
        """The run in one line; the arrays are attributes."""
        text = (
            f"{len(self.regret):,} rounds of {self.n_agents:,} agents, final regret {self.final_regret:,.1f}"
        )
        if not np.isnan(self.f1[-1]):
            text += f", F1 {self.f1[-1]:.2f}"
        if self.edges[-1] >= 0:
            text += f", {self.edges[-1]:,} edges"
        return f"Trace({text})"

    @property
    def separation_time(self) -> Integers | None:
        """(N, N) round in which each edge was cut, −1 if never; None for policies that cut none."""
        return None if self.cuts is None else separation_times(self.cuts, self.n_agents)

    @property
    def final_regret(self) -> float:
        """Cumulative pseudo-regret at the end."""
        return float(self.regret[-1])


def simulate(
    policy: Any,
    environment: Environment,
    *,
    horizon: int,
    seed: int,
    pulling: Pulling = "asynchronous",
    delay: Delay = 0,
    points: int = 200,
    dividend: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Trace:
    """Play `policy` in `environment` for `horizon` rounds and return what happened.

    Parameters
    ----------
    policy : Policy, or any object with `select(agent, arms)` and `update(agent, x, reward)`
        It keeps its state: pass a fresh one for an independent run. A policy that is played again continues
        where it stopped, and so do its rounds, separation times and communication cost.
    environment : Environment
    horizon : int
        Number of rounds.
    seed : int
        Seed of the order of agents and of the noise.
    pulling : "asynchronous", "synchronous", "zipf" or a schedule
        One agent per round, drawn uniformly; every agent in every round; one agent per round, drawn with
        probability proportional to 1/rank, with ranks drawn at random from the seed; or, for each round, an
        agent or a sequence of distinct agents. In a round all choices precede all updates.
    delay : int, ("uniform", low, high), ("geometric", mean) or a function
        How many rounds after the pull its reward is learned, at the end of that round: a number; drawn for
        each pull from the integers `low`, …, `high`, or geometrically with that mean; or
        `delay(rounds, agents, rng)`, which returns an integer for each pull from arrays of its round (from 1)
        and agent, also named by the string "module:function". Rewards are learned in the order of their
        pulls; those still due at the end never are.
    points : int
        Number of rounds, evenly spaced and ending with the last, after which the graph is recorded.
    dividend : bool
        Whether to record what sharing paid; some 30 µs a pull, for policies that tell their predictions.
    progress : callable, optional
        Called from time to time with the number of rounds played since the last call.

    Examples
    --------
    >>> import shoal
    >>> world = shoal.SyntheticClusters(n_agents=6, dim=3, n_clusters=2, angle=1.0, seed=0)
    >>> policy = shoal.BASS(n_agents=6, dim=3, alpha=0.3, delta=0.1)
    >>> trace = shoal.simulate(policy, world, horizon=500, seed=0)
    >>> trace.regret.shape
    (500,)
    """
    horizon = validation.positive_int("horizon", horizon)
    points = validation.positive_int("points", points)
    if validation.seed_or_none("seed", seed) is None:
        raise ValueError(
            "seed must be an integer, got None: a run without a seed cannot be compared or repeated"
        )
    _check_fit(policy, environment)
    # Separate streams: changing how one thing is drawn does not change the others.
    order, noise_source, lateness = (
        np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)
    )
    offsets, agents = _draw_schedule(pulling, environment.n_agents, horizon, order)
    play_block = _play_compiled if _runs_compiled(policy) else _play_plain
    width = policy.inner_dim if play_block is _play_compiled else environment.dim
    late = _draw_delays(delay, offsets, agents, width, lateness)

    choices = np.zeros(len(agents), dtype=np.int64)
    rewards = np.zeros(len(agents))
    regret = np.zeros(horizon)
    recorded = recorded_rounds(horizon, points)
    f1 = np.full(len(recorded), np.nan)
    edges = np.full(len(recorded), -1)
    communication = np.full(len(recorded), -1)
    labels = None if environment.labels is None else np.unique(environment.labels, return_inverse=True)[1]
    true_edges = 0 if labels is None else pairs_within(labels)
    if dividend and not isinstance(policy, Policy):
        raise ValueError(f"dividend needs a policy that tells its predictions, got {policy!r}")
    paid = np.zeros(len(agents)) if dividend else None

    mark = 0
    block_events = min(BLOCK_EVENTS, max(1, BLOCK_PAIRS // environment.n_agents))
    for start, stop in _blocks(offsets, block_events):
        first_event, last_event = int(offsets[start]), int(offsets[stop])
        arms = environment.arms_in(start + 1, stop)
        rounds = np.repeat(np.arange(start, stop) + 1, np.diff(offsets[start : stop + 1]))
        pulling_now = agents[first_event:last_event]
        means = environment.rewards_in(arms, rounds, pulling_now, first=start + 1)
        if isinstance(policy, Policy):
            check_scale(policy, "an arm", arms)  # only now: what an agent is offered may depend on who pulls
        by_arm, noise = environment.draw_rewards(means, pulling_now, noise_source)
        if getattr(policy, "clicks", False):
            policy.check_rewards("the environment's rewards", by_arm + noise[:, None])
        # Stop after each recorded round of the block to look at the graph.
        marks = np.flatnonzero((recorded > start) & (recorded <= stop))
        for begin, end in zip([start, *recorded[marks]], [*recorded[marks], stop], strict=True):
            # Predictions change with every round: to see them all, rounds are played one by one.
            for first, last in _steps(int(begin), int(end), singly=dividend):
                here = slice(offsets[first] - first_event, offsets[last] - first_event)
                choosable = arms[first - start : last - start] if len(arms) > 1 else arms
                events = slice(offsets[first], offsets[last])
                predicted = _predictions(policy, agents[events], choosable[0]) if dividend else None
                rewards_due = late._replace(offsets=late.offsets[first : last + 1])
                drawn = means[here], by_arm[here], noise[here]
                filled = choices, rewards, regret[first:last]
                bounds = offsets[first : last + 1]
                play_block(policy, Rounds(bounds, agents, choosable, *drawn, rewards_due, *filled))
                if paid is not None and predicted is not None:
                    chosen = np.take_along_axis(predicted, choices[None, events, None], axis=2)[..., 0]
                    own, pooled = (chosen - rewards[events]) ** 2
                    paid[events] = own - pooled
            if begin < end and progress is not None:
                progress(int(end - begin))
            if mark < len(recorded) and recorded[mark] == end:
                f1[mark], edges[mark], communication[mark] = _look_at(policy, labels, true_edges)
                mark += 1
    _stop_waiting(policy, agents, late._replace(arms=late.arms[:, : environment.dim]))
    np.cumsum(regret, out=regret)
    cuts, n_agents = getattr(policy, "cuts", None), environment.n_agents
    so_far = None
    if paid is not None:
        counts = offsets[recorded]
        so_far = np.concatenate([[0.0], np.cumsum(paid)])[counts] / np.maximum(counts, 1)
    return Trace(
        agents, choices, rewards, regret, recorded, f1, edges, communication, cuts, n_agents, paid, so_far
    )


class Late(NamedTuple):
    """When rewards are learned, and the arms of pulls whose rewards are still due."""

    delays: Integers  # (events,) by how many rounds each reward is late
    due: Integers  # (arrivals,) pulls in the order in which their rewards are learned
    offsets: Integers  # (rounds + 1,) where the rewards of each round begin in `due`
    slots: Integers  # (events,) row of `arms` that a pull holds, −1 if none; (0,) if no reward is late
    arms: Matrix  # (most pulls pending at once, d)
    free: Integers  # rows of `arms` that no pull holds
    n_free: Integers  # (1,) how many of them


class Rounds(NamedTuple):
    """Consecutive rounds to play. Round r has the events `offsets[r]`, …, `offsets[r+1] − 1`.

    Agents, choices and rewards are those of the whole run; `means`, `by_arm` and `noise` start with these
    rounds, of which `choices`, `rewards` and `regret` are filled in.
    """

    offsets: Integers
    agents: Integers
    arms: Tensor
    means: Matrix
    by_arm: Matrix
    noise: Vector
    late: Late
    choices: Integers
    rewards: Vector
    regret: Vector


def _steps(begin: int, end: int, *, singly: bool) -> Iterator[tuple[int, int]]:
    """Rounds to be played together."""
    if singly:
        yield from zip(range(begin, end), range(begin + 1, end + 1), strict=True)
    elif begin < end:
        yield begin, end


def _predictions(policy: Policy, agents: Integers, arms: Matrix) -> Tensor:
    """Own and pooled predictions of all arms for all who pull in a round, shape (2, n, K)."""
    if policy.clicks:
        both = [[policy.predict(agent, x) for x in arms] for agent in agents.tolist()]
        return np.array(both).reshape(len(agents), len(arms), 2).transpose(2, 0, 1)
    own = [arms @ policy.local_estimate(agent) for agent in agents.tolist()]
    pooled = [policy.scores(agent, arms).mean for agent in agents.tolist()]
    return np.array([own, pooled]).reshape(2, len(agents), len(arms))


def recorded_rounds(horizon: int, points: int) -> Integers:
    """The rounds after which `simulate` records its curves: at most `points`, evenly spaced, to the last."""
    return np.unique(np.linspace(0, horizon, min(points, horizon) + 1).round().astype(np.int64))[1:]


@compiled
def play(state: Any, rounds: Rounds) -> None:
    """Play rounds with a compiled policy."""
    offsets, agents, arms, means, by_arm, noise, late, choices, rewards, regret = rounds
    clock, first = state.common.clock, offsets[0]
    for r in range(offsets.shape[0] - 1):
        t = clock[0] + 1
        choosable = arms[r if arms.shape[0] > 1 else 0]
        for event in range(offsets[r], offsets[r + 1]):
            choices[event] = choose(state, agents[event], choosable, t)
        for event in range(offsets[r], offsets[r + 1]):
            k, mean = choices[event], means[event - first]
            rewards[event] = by_arm[event - first, k] + noise[event - first]
            best = mean[0]
            for other in range(1, means.shape[1]):
                best = max(best, mean[other])
            regret[r] += best - mean[k]
            if late.delays[event] > 0:
                hold(late, event, choosable[k])
                expect(state, agents[event], choosable[k], 1)
        for n in range(late.offsets[r], late.offsets[r + 1]):
            event = late.due[n]
            is_late = late.delays[event] > 0
            x = late.arms[late.slots[event]] if is_late else choosable[choices[event]]
            if is_late:
                expect(state, agents[event], x, -1)
                release(late, event)
            take_in(state, agents[event], x, rewards[event], t)
        # After all observations, so that whom agents share with depends on the whole round.
        for n in range(late.offsets[r], late.offsets[r + 1]):
            revise(state, agents[late.due[n]], t)
        clock[0] = t


@compiled
def hold(late: Late, event: int, x: Vector) -> None:
    """Keep the arm of a pull until its reward is due: by then the round's arms may be gone."""
    late.n_free[0] -= 1
    slot = late.free[late.n_free[0]]
    late.slots[event] = slot
    for m in range(x.shape[0]):
        late.arms[slot, m] = x[m]


@compiled
def release(late: Late, event: int) -> None:
    """Free the row of a pull's arm for others."""
    late.free[late.n_free[0]] = late.slots[event]
    late.n_free[0] += 1
    late.slots[event] = -1


def _runs_compiled(policy: Any) -> bool:
    """Whether a policy is a `Policy` that does not override `select` or `update`."""
    kind = type(policy)
    ours = (Policy.update, LivePolicy.update)
    return isinstance(policy, Policy) and kind.select is Policy.select and kind.update in ours


def _play_compiled(policy: Any, rounds: Rounds) -> None:
    offsets, late = rounds.offsets, rounds.late
    with policy.lock:
        policy.reserve(max(int(offsets[-1] - offsets[0]), int(late.offsets[-1] - late.offsets[0])))
        play(policy.pinned_state(), rounds._replace(arms=policy.inner(rounds.arms)))


def _play_plain(policy: Any, rounds: Rounds) -> None:
    offsets, agents, arms, means, by_arm, noise, late, choices, rewards, regret = rounds
    for r in range(len(offsets) - 1):
        choosable = arms[r if len(arms) > 1 else 0]
        events = range(offsets[r], offsets[r + 1])
        for event in events:
            k = int(policy.select(int(agents[event]), choosable))
            if not 0 <= k < len(choosable):
                raise ValueError(f"select must return an arm in 0, …, {len(choosable) - 1}, got {k}")
            choices[event] = k
        for event in events:
            k, mean = choices[event], means[event - offsets[0]]
            rewards[event] = by_arm[event - offsets[0], k] + noise[event - offsets[0]]
            regret[r] += mean.max() - mean[k]
            if late.delays[event] > 0:
                hold(late, event, choosable[k])
                if hasattr(policy, "begin"):
                    policy.begin(int(agents[event]), choosable[k])
        for event in late.due[late.offsets[r] : late.offsets[r + 1]]:
            agent, reward = int(agents[event]), float(rewards[event])
            if late.delays[event] == 0:
                policy.update(agent, choosable[choices[event]], reward)
            else:
                x = late.arms[late.slots[event]].copy()
                policy.update(agent, x, reward, **({"begun": True} if hasattr(policy, "begin") else {}))
                release(late, event)


def _stop_waiting(policy: Any, agents: Integers, late: Late) -> None:
    """Cancel the rewards that a policy still expects: those due after the end never come."""
    if hasattr(policy, "cancel"):
        for event in np.flatnonzero(late.slots >= 0):
            policy.cancel(int(agents[event]), late.arms[late.slots[event]].copy())


def _blocks(offsets: Integers, events: int) -> Iterator[tuple[int, int]]:
    """Consecutive ranges of rounds with at most `events` events each, but at least one round."""
    start, horizon = 0, len(offsets) - 1
    while start < horizon:
        stop = int(np.searchsorted(offsets, offsets[start] + events, side="right")) - 1
        stop = min(max(stop, start + 1), horizon)
        yield start, stop
        start = stop


def _draw_schedule(
    pulling: Pulling, n_agents: int, horizon: int, order: np.random.Generator
) -> tuple[Integers, Integers]:
    """Offsets (horizon + 1,) into the agents (events,) that pull, round by round."""
    if isinstance(pulling, str):
        validation.one_of("pulling", pulling, get_args(PullingWord))
        if pulling == "asynchronous":
            return np.arange(horizon + 1), order.integers(n_agents, size=horizon)
        if pulling == "zipf":
            by_rank = order.permutation(n_agents)
            shares = 1.0 / np.arange(1, n_agents + 1)
            ranks = order.choice(n_agents, size=horizon, p=shares / shares.sum())
            return np.arange(horizon + 1), by_rank[ranks]
        return np.arange(horizon + 1) * n_agents, np.tile(np.arange(n_agents), horizon)
    if not isinstance(pulling, Sequence | np.ndarray):
        found = validation.show(pulling)
        raise ValueError(f"pulling must be a word or a sequence with one entry per round, got {found}")
    rounds = [np.atleast_1d(np.asarray(entry)) for entry in pulling]
    if len(rounds) != horizon:
        raise ValueError(f"pulling must have one entry for each of the {horizon} rounds, got {len(rounds)}")
    for t, entry in enumerate(rounds, start=1):
        is_valid = entry.ndim == 1 and (entry.size == 0 or np.issubdtype(entry.dtype, np.integer))
        if not is_valid or np.any((entry < 0) | (entry >= n_agents)) or len(np.unique(entry)) != len(entry):
            raise ValueError(
                f"pulling must name distinct agents in 0, …, {n_agents - 1}, got {entry} in round {t}"
            )
    offsets = np.concatenate([[0], np.cumsum([len(entry) for entry in rounds])]).astype(np.int64)
    return offsets, np.concatenate(rounds).astype(np.int64)


def _draw_delays(
    delay: Delay, offsets: Integers, agents: Integers, dim: int, rng: np.random.Generator
) -> Late:
    """Draw when each pull's reward is learned."""
    events, horizon = len(agents), len(offsets) - 1
    rounds = np.repeat(np.arange(horizon) + 1, np.diff(offsets))
    delays = _delays(delay, rounds, agents, rng)
    # Whatever arrives after the end counts as round horizon + 1. The inner minimum prevents overflow.
    arrival = np.minimum(rounds + np.minimum(delays, horizon), horizon + 1)
    due = np.argsort(arrival, kind="stable")  # of rewards in the same round, earlier pulls first
    arrivals = np.cumsum(np.bincount(arrival, minlength=horizon + 2)[1 : horizon + 1])
    begun = np.cumsum(np.bincount(rounds[delays > 0], minlength=horizon + 2)[1 : horizon + 1])
    ended = np.cumsum(np.bincount(arrival[delays > 0], minlength=horizon + 2)[1 : horizon + 1])
    # The most pulls that wait at once: begun so far, minus those that ended in earlier rounds.
    room = int(np.max(begun - np.concatenate([[0], ended[:-1]]), initial=0))
    return Late(
        delays=delays,
        due=due[: arrivals[-1]],
        offsets=np.concatenate([[0], arrivals]),
        slots=np.full(events if room else 0, -1),
        arms=np.zeros((room, dim)),
        free=np.arange(room),
        n_free=np.array([room]),
    )


def check_delay(delay: Any) -> None:
    """Raise a ValueError unless `delay` is something that `simulate` accepts."""
    if callable(_named(delay)):
        return
    if isinstance(delay, Sequence) and not isinstance(delay, str):
        match list(delay):
            case ["uniform", low, high]:
                low, high = (validation.natural(f"delay's {n}", v) for n, v in (("low", low), ("high", high)))
                if low > high:
                    raise ValueError(f"delay's low must be at most its high, got {delay!r}")
                return
            case ["geometric", mean]:
                validation.number("delay's mean", mean, low=0.0)
                return
    elif not isinstance(delay, str):
        validation.natural("delay", delay)
        return
    raise ValueError(
        "delay must be a number of rounds, ('uniform', low, high), ('geometric', mean) or a function, "
        f"got {delay!r}"
    )


def _named(delay: Any) -> Any:
    """The function that a string "module:function" names; anything else as it is."""
    return load(delay) if isinstance(delay, str) and ":" in delay else delay


def _delays(delay: Any, rounds: Integers, agents: Integers, rng: np.random.Generator) -> Integers:
    check_delay(delay)
    delay = _named(delay)
    if callable(delay):
        given = np.asarray(delay(rounds, agents, rng))
        if given.shape != rounds.shape or not np.issubdtype(given.dtype, np.integer) or np.any(given < 0):
            raise ValueError(
                f"delay must give {len(rounds)} integers of at least 0, got {given.dtype}{given.shape}"
            )
        return given.astype(np.int64)
    if isinstance(delay, Sequence):
        if delay[0] == "uniform":
            return rng.integers(int(delay[1]), int(delay[2]) + 1, size=len(rounds))
        # The number of failures before the first success has mean (1 − p)/p.
        return rng.geometric(1.0 / (1.0 + float(delay[1])), size=len(rounds)) - 1
    return np.full(len(rounds), int(delay))


def _check_fit(policy: Any, environment: Environment) -> None:
    for method in ("select", "update"):
        if not callable(getattr(policy, method, None)):
            raise ValueError(f"policy must have a method {method}, got {policy!r}")
    for name in ("n_agents", "dim"):
        has, needs = getattr(policy, name, None), getattr(environment, name)
        if has is not None and has != needs:
            raise ValueError(f"policy has {name} = {has}, the environment {needs}")
    if isinstance(policy, LivePolicy) and not policy.state.common.active.all():
        raise ValueError("policy must not have removed agents: an environment draws from all agents")


def _look_at(policy: Any, labels: Integers | None, true_edges: int) -> tuple[float, int, int]:
    """F1 score, number of edges and communication cost, as far as the policy has them."""
    cost = getattr(policy, "communication_cost", -1)
    if isinstance(policy, Policy):
        edges, found = policy.count_edges(labels)
    elif (graph := getattr(policy, "graph", None)) is not None:
        edges, found = count_edges(graph, labels)
    else:
        return float("nan"), -1, cost
    if labels is None:
        return float("nan"), edges, cost
    return f1_of_counts(found, edges, true_edges), edges, cost
