"""What every registered policy promises, checked for each of them alike."""

import copy
import inspect
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests import reference

import shoal
from shoal.core import fields
from shoal.core.policies.registry import BUILT_IN, RIVALS, policy_class
from shoal.core.policy.cuts import CuttingPolicy
from shoal.lab.benchmark import typical

N, D = 9, 3
OWN: dict[str, dict[str, Any]] = {
    "independent": {},
    "oracle": {"labels": [0, 1, 2] * 3},
    "dynucb": {"n_clusters": 3},
    "club": {"gamma": 0.4},
    "sclub": {"gamma": 0.5},
    "cmlb": {"gamma": 0.9, "exploration_rounds": 60},
    "bass": {"delta": 0.1, "gamma": 1.6},
    "dyclu": {"noise_scale": 4.0},  # so that no sample is left out
    "cluster_mixture": {"concentration": 2.0, "redraws": 2, "scatter": 0},
}
"""Parameters with which these policies have something to decide; others are built as is typical of them."""
CLASSES: dict[str, Any] = {name: policy_class(name) for name in (*BUILT_IN, *RIVALS)}
LIVE = [name for name, kind in CLASSES.items() if issubclass(kind, shoal.LivePolicy)]
every_policy = pytest.mark.parametrize("name", list(CLASSES))
BY_ARM = ("locb", "cab")
"""Policies whose pool depends on the arm, so that no one estimate predicts all of them."""
every_live_policy = pytest.mark.parametrize("name", LIVE)


def make(name: str, n_agents: int = N, **changed: Any) -> Any:
    own = dict(OWN[name] if name in OWN else typical(CLASSES[name], world()))
    if name == "oracle":
        own["labels"] = [i % 3 for i in range(n_agents)]
    return shoal.make_policy(name, n_agents, D, **({"alpha": 0.5, "seed": 0} | own | changed))


def world() -> shoal.Environment:
    return shoal.SyntheticClusters(N, D, 3, 1.2, seed=0)


def kept(policy: Any) -> dict[str, Any]:
    """What a policy saves: all that its future depends on."""
    return {
        leaf.name: leaf.used(policy.state, policy._sizes(policy.n_agents))
        for leaf in fields.leaves(type(policy.state))
        if leaf.field.role is fields.Role.KEPT
    }


def snapshot(policy: Any) -> bytes:
    """Everything but work space."""
    return b"".join(
        np.asarray(leaf.used(policy.state, policy._sizes(policy.n_agents))).tobytes()
        for leaf in fields.leaves(type(policy.state))
        if leaf.field.role is not fields.Role.SCRATCH
    )


def play(policy: Any, rounds: int, seed: int = 0, log: list[Any] | None = None) -> list[int]:
    """Online rounds with every active agent's samples kept in `log`."""
    rng, environment, choices = np.random.default_rng(seed), world(), []
    assert environment.theta_star is not None
    for _ in range(rounds):
        agent = int(rng.choice(policy.agents))
        k = policy.select(agent, environment.arms)
        reward = float(environment.arms[k] @ environment.theta_star[agent % N] + rng.standard_normal())
        policy.update(agent, environment.arms[k], reward)
        choices.append(k)
        if log is not None:
            log.append((agent, environment.arms[k], reward))
    return choices


def pooled_samples(policy: Any, agent: int, log: list[Any]) -> list[tuple[Any, float]]:
    """The samples of an agent's pool."""
    pool = policy._pool(agent)
    return [(x, y) for who, x, y in log if pool[who]]


def taught_twin(policy: Any, log: list[Any]) -> Any:
    """The twin of a rival, once it has seen the same samples."""
    apart = ("epsilon", "seed", "exploration", "bonus")
    own = {key: value for key, value in policy.parameters.items() if key not in apart}
    if policy.name == "locb":
        own["seeds"] = policy.seeds
    kind = getattr(import_module(f"tests.twins.{policy.name}"), type(policy).__name__)
    twin = kind(policy.n_agents, policy.dim, **own)
    twin.rng = reference.Xorshift(policy.parameters["seed"])
    for t, (agent, x, reward) in enumerate(log, start=1):
        twin.observe(agent, x, reward, t)
        twin.revise(agent, t)
    return twin


def refit(policy: Any, agent: int, log: list[Any], ridge: float) -> Any:
    """The agent's estimate from raw samples: of its pool, or of each pool that it may belong to."""
    if policy.name in RIVALS:  # not all of them are ridge regression on a pool
        return taught_twin(policy, log).pooled(agent).theta_hat
    if not hasattr(policy, "posterior"):
        return reference.fit(pooled_samples(policy, agent, log), D, ridge).theta_hat
    model, lent_at = policy.state.pool.model, policy.state.pool.members.lent_at[:, 0, 0]
    total, weight = np.zeros(D), 0.0

    def sums(who: int) -> tuple[Any, Any]:
        """Of an agent's samples, by its weight."""
        S, b = np.zeros((D, D)), np.zeros(D)
        for _, x, y in [entry for entry in log if entry[0] == who]:
            S, b = S + model.weights[who] * np.outer(x, x), b + model.weights[who] * y * x
        return S, b

    def softened(S: Any, b: Any, scatter: float) -> tuple[Any, Any]:
        spread = np.eye(D) + scatter * S
        return np.linalg.solve(spread, S), np.linalg.solve(spread, b)

    for cluster, chance in policy.posterior(agent).items():
        if chance >= 1e-3:
            S, b = model.prior[0] * np.eye(D), np.zeros(D)
            for who in np.flatnonzero((policy.labels == cluster) & (cluster >= 0)).tolist():
                lent = softened(*sums(who), lent_at[who]) if who != agent else (0.0, 0.0)
                S, b = S + lent[0], b + lent[1]
            (S, b), own = softened(S, b, policy.scatter), sums(agent)
            total += chance * np.linalg.solve(S + own[0], b + own[1])
            weight += chance
    return total / weight


@every_policy
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda policy: pickle.loads(pickle.dumps(policy))])
def test_a_copy_goes_its_own_way(name: str, how: Callable[[Any], Any]) -> None:
    policy, untouched = make(name), make(name)
    play(policy, 60)
    play(untouched, 60)
    other = how(policy)
    play(other, 80, seed=1)
    assert snapshot(policy) == snapshot(untouched)
    assert play(policy, 80, seed=1) == play(untouched, 80, seed=1)
    assert np.array_equal(other.graph, policy.graph)


@every_policy
def test_selects_an_arm_and_changes_nothing_by_looking(name: str) -> None:
    policy, rng = make(name), np.random.default_rng(1)
    play(policy, 120)
    before = snapshot(policy)
    for n_arms in (1, 2, 7, 30):
        arms = rng.standard_normal((n_arms, D))
        kept = arms.copy()
        choice = policy.select(3, arms)
        assert type(choice) is int
        assert 0 <= choice < n_arms
        assert np.array_equal(arms, kept)
    for look in (
        policy.graph,
        policy.pulls,
        policy.neighbors(0),
        policy.estimate(0),
        policy.local_estimate(0),
    ):
        look.fill(0)  # copies: writing to them is nobody's business
    assert policy.communication_cost >= 0
    assert list(policy.agents) == list(range(N))
    assert name.replace("_", "") in repr(policy).lower()
    assert snapshot(policy) == before
    undisturbed = make(name)
    play(undisturbed, 120)
    assert snapshot(policy) == snapshot(undisturbed)


@every_policy
def test_update_touches_only_its_agent(name: str) -> None:
    policy = make(name)
    play(policy, 100)
    local = {key: np.array(value) for key, value in policy.state.local._asdict().items()}
    x = np.array([0.3, -0.2, 0.9])
    policy.update(4, x, 0.7)
    others = np.arange(N) != 4
    for key in ("A", "A_inv", "b", "theta_hat", "logdet_A", "pulls"):
        now = getattr(policy.state.local, key)
        assert np.array_equal(now[others], local[key][others]), key
        assert not np.array_equal(now[4], local[key][4]), key
    assert np.array_equal(x, [0.3, -0.2, 0.9])
    assert policy.rounds == 101


@every_policy
def test_estimates_are_a_refit_of_the_pool_s_samples(name: str) -> None:
    policy, log = make(name, ridge=0.5), list[Any]()
    play(policy, 200, log=log)
    for agent in range(N):
        assert agent in policy.neighbors(agent)
        np.testing.assert_allclose(policy.estimate(agent), refit(policy, agent, log, 0.5), atol=1e-9)
        naive = reference.fit([(x, y) for who, x, y in log if who == agent], D, 0.5)
        np.testing.assert_allclose(policy.local_estimate(agent), naive.theta_hat, atol=1e-9)
        assert policy.pulls[agent] == sum(who == agent for who, _, _ in log)


@every_policy
def test_graph_is_symmetric_without_loops(name: str) -> None:
    policy = make(name)
    for _ in range(4):
        play(policy, 60)
        graph = policy.graph
        assert graph.shape == (N, N)
        assert graph.dtype == np.bool_
        assert np.array_equal(graph, graph.T)
        assert not graph.diagonal().any()


@every_policy
def test_save_and_load_continue_bit_for_bit(name: str, tmp_path: Path) -> None:
    policy = make(name, epsilon=0.2)
    play(policy, 150)
    path = tmp_path / "policy.shoal"
    policy.save(path)
    for loaded in (type(policy).load(path), shoal.load_policy(path)):
        assert type(loaded) is type(policy)
        assert {k: np.asarray(v).tolist() for k, v in loaded.parameters.items()} == {
            k: np.asarray(v).tolist() for k, v in policy.parameters.items()
        }
        copy = type(policy).load(path)
        assert play(loaded, 200, seed=5) == play(copy, 200, seed=5)
    original = play(policy, 200, seed=5)
    resumed = shoal.load_policy(path)
    assert play(resumed, 200, seed=5) == original
    for key, one in kept(policy).items():
        assert np.array_equal(one, kept(resumed)[key]), key
    assert os.listdir(tmp_path) == ["policy.shoal"]


@every_live_policy
def test_saves_after_agents_came_and_went(name: str, tmp_path: Path) -> None:
    policy = make(name)
    play(policy, 80)
    grow(policy, 2)
    policy.remove_agent(1)
    policy.remove_agent(2, withdraw=True)
    play(policy, 80)
    policy.save(tmp_path / "p")
    loaded = shoal.load_policy(tmp_path / "p")
    assert list(loaded.agents) == list(policy.agents)
    assert play(loaded, 100) == play(policy, 100)


def grow(policy: Any, n: int) -> Any:
    return policy.add_agents(n, labels=[0] * n) if policy.name == "oracle" else policy.add_agents(n)


@every_policy
def test_files_that_are_not_policies(name: str, tmp_path: Path) -> None:
    policy, path = make(name), tmp_path / "policy"
    play(policy, 20)
    policy.save(path)
    content = path.read_bytes()

    def refused(message: str) -> None:
        with pytest.raises(shoal.PolicyFileError, match=message):
            shoal.load_policy(path)

    path.write_bytes(content[: len(content) // 2])
    refused("is not a readable policy file")
    path.write_bytes(b"")
    refused("is not a readable policy file")
    path.write_bytes(b"something else")
    refused("is not a readable policy file")
    with path.open("wb") as handle:
        np.save(handle, np.eye(2))
    refused("is not a readable policy file")
    damaged = bytearray(content)
    damaged[content.index(policy.state.local.b.tobytes())] ^= 0xFF  # a byte of a number
    path.write_bytes(bytes(damaged))
    refused("is not a readable policy file")
    with pytest.raises(FileNotFoundError):
        shoal.load_policy(tmp_path / "absent")

    with np.load(_restore(path, content)) as archive:
        arrays = dict(archive)
    header = json.loads(arrays["header"].tobytes())

    def rewrite(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        arrays = arrays | {"header": np.frombuffer(json.dumps(header).encode(), dtype=np.uint8)}
        with path.open("wb") as handle:
            np.savez(handle, allow_pickle=False, **arrays)

    rewrite([], arrays)  # type: ignore[arg-type]
    refused("is not a readable policy file")
    rewrite({key: value for key, value in header.items() if key != "dim"}, arrays)
    refused("lacks 'dim' in its header")
    rewrite(header | {"format": 99}, arrays)
    refused("has format 99, which a newer version wrote; this version of shoal reads 1$")
    rewrite(header | {"policy": "unheard-of"}, arrays)
    with pytest.raises(ValueError, match="unknown policy 'unheard-of'"):
        shoal.load_policy(path)
    rewrite(header, {key: value for key, value in arrays.items() if key != "local.b"})
    refused("lacks the array 'local.b'")
    rewrite(header, arrays | {"local.b": arrays["local.b"][:-1]})
    refused(r"array 'local.b' is float64\(8, 3\), expected float64\(9, 3\)")
    rewrite(header, arrays | {"more": np.zeros(3)})
    refused("holds an array 'more', which its policy does not have")
    assert zipfile.is_zipfile(_restore(path, content))
    assert shoal.load_policy(path).rounds == 20
    wrong = shoal.BASS if name != "bass" else shoal.Independent
    with pytest.raises(shoal.PolicyFileError, match=f"holds a '{name}' policy"):
        wrong.load(path)


def _restore(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@every_policy
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.select(N, np.eye(D)), f"agent must be in 0, …, {N - 1}, got {N}"),
        (lambda p: p.select(-1, np.eye(D)), "agent must be in 0"),
        (lambda p: p.select("a", np.eye(D)), "agent must be an integer, got 'a'"),
        (lambda p: p.select(1.0, np.eye(D)), "agent must be an integer, got 1.0"),
        (lambda p: p.select(0, np.eye(D + 1)), rf"arms must have shape \(n, {D}\)"),
        (lambda p: p.select(0, np.zeros((0, D))), "arms must have shape"),
        (lambda p: p.select(0, np.ones(D)), "arms must have shape"),
        (lambda p: p.select(0, [[1, 2, "x"]]), "arms must be an array of numbers"),
        (
            lambda p: p.select(0, np.array([[1.0, np.nan, 0.0]])),
            r"arms must be finite, got nan at index \(0, 1\)",
        ),
        (lambda p: p.select(0, np.array([[1.0, 2.0, np.inf]])), "arms must be finite, got inf"),
        (lambda p: p.update(N, np.ones(D), 1.0), "agent must be in 0"),
        (lambda p: p.update(0, np.ones(D + 1), 1.0), rf"x must have shape \({D},\)"),
        (lambda p: p.update(0, np.ones((1, D)), 1.0), "x must have shape"),
        (lambda p: p.update(0, np.array([1.0, np.inf, 0.0]), 1.0), "x must be finite, got inf"),
        (lambda p: p.update(0, np.ones(D), np.nan), "reward must be a finite number"),
        (lambda p: p.update(0, np.ones(D), -np.inf), "reward must be a finite number"),
        (lambda p: p.update(0, np.ones(D), "high"), "reward must be a number, got 'high'"),
        (lambda p: p.update(0, np.ones(D), None), "reward must be a number"),
        (lambda p: p.neighbors(N), "agent must be in 0"),
        (lambda p: p.estimate(-2), "agent must be in 0"),
    ],
)
def test_bad_calls_are_refused_and_change_nothing(name: str, call: Any, message: str) -> None:
    policy = make(name)
    play(policy, 30)
    before = snapshot(policy)
    with pytest.raises(ValueError, match=message):
        call(policy)
    assert snapshot(policy) == before


@every_live_policy
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda p: p.update(0, np.ones(D), 1.0, begun=True), "agent 0 has no pull that has begun"),
        (lambda p: p.cancel(0, np.ones(D)), "agent 0 has no pull that has begun"),
        (lambda p: p.cancel(0, np.ones(D + 1)), rf"x must have shape \({D},\)"),
        (lambda p: p.begin(N, np.ones(D)), "agent must be in 0"),
        (lambda p: p.begin(0, np.ones((1, D))), "x must have shape"),
        (lambda p: p.begin(0, np.array([1.0, np.nan, 0.0])), "x must be finite, got nan"),
        (lambda p: p.remove_agent(N), "agent must be in 0"),
        (lambda p: p.add_agents(0), "(n|labels) must be"),
    ],
)
def test_bad_live_calls_are_refused_and_change_nothing(name: str, call: Any, message: str) -> None:
    test_bad_calls_are_refused_and_change_nothing(name, call, message)


@every_policy
def test_a_policy_has_no_method_for_what_it_cannot_do(name: str) -> None:
    """A pool that keeps a corrected sample's old reward is worse than an AttributeError."""
    policy = make(name)
    for call in (
        "add_agents",
        "remove_agent",
        "merge",
        "correct",
        "retract",
        "set_sharing",
        "begin",
        "replay",
    ):
        assert hasattr(policy, call) == (name in LIVE), call
    if name not in LIVE:
        with pytest.raises(TypeError, match="begun"):
            policy.update(0, np.ones(D), 1.0, begun=True)


@every_policy
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"alpha": -0.1}, r"alpha must be a finite number in \[0, 1e\+30\], got -0.1"),
        ({"alpha": np.nan}, "alpha must be a finite number"),
        ({"alpha": "wide"}, "alpha must be a number, got 'wide'"),
        ({"ridge": 0.0}, r"ridge must be a finite number in \[1e-30, 1e\+30\], got 0.0"),
        ({"epsilon": 1.5}, r"epsilon must be a finite number in \[0, 1\], got 1.5"),
        ({"seed": -1}, "seed must be a non-negative integer or None, got -1"),
        ({"seed": 1.5}, "seed must be"),
    ],
)
def test_bad_parameters_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **changed)


@pytest.mark.parametrize(
    ("name", "changed", "message"),
    [
        ("bass", {"delta": 0.0}, r"delta must be a finite number in \(0, 1\), got 0.0"),
        ("bass", {"delta": 1.0}, "delta must be a finite number"),
        ("bass", {"gamma": 0.0}, "gamma must be a finite number"),
        ("bass", {"radius": "squared"}, "radius must be one of 'beta', 'beta_squared', got 'squared'"),
        ("bass", {"noise_scale": 0.0}, "noise_scale must be a finite number"),
        ("cluster_mixture", {"spread": -0.1}, r"spread must be a finite number in \[0, 1e\+30\], got -0.1"),
        ("cluster_mixture", {"concentration": 0.0}, "concentration must be a finite number"),
        (
            "cluster_mixture",
            {"redraws": -1},
            "redraws must be an integer of at least 0 and at most 1000, got -1",
        ),
        ("cluster_mixture", {"noise_scale": 0.0}, "noise_scale must be a finite number"),
        (
            "cluster_mixture",
            {"scatter": -1.0},
            r"scatter must be a finite number in \[0, 1e\+06\], got -1.0",
        ),
        ("cluster_mixture", {"scatter": "some"}, "scatter must be a number, got 'some'"),
        ("cluster_mixture", {"scatter": 1e-9}, "scatter must be 0, at least 1e-06 or None, got 1e-09"),
        ("cluster_mixture", {"drift": 1}, "drift must be True or False, got 1"),
        ("cluster_mixture", {"ridge_bonus": -1.0}, "ridge_bonus must be a finite number"),
        ("club", {"gamma": -1.0}, "gamma must be a finite number"),
        ("sclub", {"gamma": np.inf}, "gamma must be a finite number"),
        ("locb", {"n_seeds": 0}, "n_seeds must be an integer of at least 1, got 0"),
        ("rclumb", {"misspecification": -0.1}, "misspecification must be a finite number"),
        ("goblin", {"graph": np.eye(4)}, r"graph must be 9 × 9 booleans, got shape \(4, 4\)"),
        ("colin", {"graph": np.full((9, 9), 0.5)}, "graph must be 9 × 9 booleans, got other entries"),
        ("goblin", {"graph": np.eye(9, k=1)}, r"graph must be symmetric, got True at \(0, 1\) only"),
        ("cmlb", {"exploration_rounds": 0}, "exploration_rounds must be an integer of at least 1, got 0"),
        ("cmlb", {"min_cluster_fraction": 1.1}, "min_cluster_fraction must be a finite number"),
        ("dynucb", {"n_clusters": 0}, "n_clusters must be an integer of at least 1, got 0"),
        ("oracle", {"labels": [0, 1]}, "labels must be 9 integers of at least 0"),
        ("oracle", {"labels": [-1] * 9}, "labels must be 9 integers"),
        ("oracle", {"labels": [0.5] * 9}, "labels must be 9 integers"),
    ],
)
def test_bad_own_parameters_are_named(name: str, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(name, **changed)


@every_policy
def test_every_parameter_has_a_default(name: str) -> None:
    """But who is in which cluster, and who knows whom: that is knowledge."""
    knowledge: dict[str, dict[str, Any]] = {"oracle": {"labels": [0, 1, 0, 1]}}
    knowledge["goblin"] = knowledge["colin"] = {"graph": np.eye(4)}
    told = knowledge.get(name, {})
    policy = shoal.make_policy(name, 4, D, **told)
    policy.update(0, np.ones(D), 1.0)
    known = inspect.signature(type(policy)).parameters
    required = {key for key, parameter in known.items() if parameter.default is inspect.Parameter.empty}
    assert required == {"n_agents", "dim", *told}
    if told:
        with pytest.raises(TypeError, match=f"{type(policy).__name__} needs '{next(iter(told))}'"):
            shoal.make_policy(name, 4, D)


@pytest.mark.parametrize(("n_agents", "dim"), [(3, 0), (-1, 3), (2.5, 3), (True, 3)])
def test_sizes(n_agents: Any, dim: Any) -> None:
    with pytest.raises(ValueError, match=r"must be an integer of at least [01]"):
        shoal.make_policy("bass", n_agents, dim, alpha=1.0, delta=0.1)


def test_unknown_policy() -> None:
    with pytest.raises(ValueError, match="unknown policy 'bas'; did you mean 'bass'"):
        shoal.make_policy("bas", 3, 3, alpha=1.0)


@every_policy
def test_lists_integers_and_strided_arrays_are_welcome(name: str) -> None:
    policy, twin = make(name), make(name)
    wide = np.asfortranarray(np.random.default_rng(0).standard_normal((6, 2 * D)))[:, ::2]
    read_only = np.ascontiguousarray(wide)
    read_only.flags.writeable = False
    assert policy.select(np.int32(1), wide) == twin.select(1, wide.tolist()) == twin.select(1, read_only)
    policy.update(np.int64(1), [1, 0, 2], np.float32(0.5))
    twin.update(1, np.array([1.0, 0.0, 2.0]), 0.5)
    assert snapshot(policy) == snapshot(twin)


# Agents come and go


@every_live_policy
def test_newcomers(name: str) -> None:
    policy = make(name)
    play(policy, 120)
    pulls, graph, estimates = policy.pulls, policy.graph, [policy.local_estimate(i) for i in range(N)]
    new = grow(policy, 2)
    assert list(new) == [N, N + 1]
    assert policy.n_agents == N + 2
    assert np.array_equal(policy.pulls[:N], pulls)
    assert (policy.pulls[N:] == 0).all()
    assert np.array_equal(policy.graph[:N, :N], graph)
    for i in range(N):
        assert np.array_equal(policy.local_estimate(i), estimates[i])
    joined, others = policy.graph[N], np.arange(N + 2) != N
    if isinstance(policy, CuttingPolicy):
        assert joined[others].all()
    elif hasattr(policy, "labels"):
        assert np.array_equal(joined, (policy.labels == policy.labels[N]) & (policy.labels >= 0) & others)
    else:
        assert not joined.any()
    log: list[Any] = []
    play(policy, 150, log=log)
    assert {who for who, _, _ in log} == set(range(N + 2))


@every_live_policy
def test_pools_stay_sums_whoever_comes_and_goes(name: str) -> None:
    policy, log, rng = make(name, ridge=0.5), list[Any](), np.random.default_rng(3)
    for _ in range(6):
        play(policy, 60, seed=int(rng.integers(1000)), log=log)
        leaver = int(rng.choice(policy.agents))
        withdraw = bool(rng.integers(2))
        lent = {i: policy.estimate(i) for i in policy.agents if i != leaver}
        was = policy.graph
        policy.remove_agent(leaver, withdraw=withdraw)
        if withdraw:
            log = [entry for entry in log if entry[0] != leaver]
        else:  # what it lent stays where it was
            for i, estimate in lent.items() if name != "cluster_mixture" else ():  # it now counts one less
                np.testing.assert_allclose(policy.estimate(i), estimate, atol=1e-12)
            others = np.arange(policy.n_agents) != leaver
            assert np.array_equal(policy.graph[np.ix_(others, others)], was[np.ix_(others, others)])
        assert not policy.graph[leaver].any()
        assert not policy.graph[:, leaver].any()
        for i in policy.agents:
            assert leaver not in policy.neighbors(i)
        if rng.integers(2):
            grow(policy, 1)
        for i in policy.agents:
            np.testing.assert_allclose(policy.estimate(i), refit(policy, i, log, 0.5), atol=1e-9)


@every_live_policy
def test_withdrawal_leaves_what_never_having_lent_would(name: str) -> None:
    policy = make(name)
    log: list[Any] = []
    play(policy, 50, log=log)
    policy.remove_agent(2, withdraw=True)
    assert policy.pulls[2] == 0
    log = [entry for entry in log if entry[0] != 2]
    for i in policy.agents:
        np.testing.assert_allclose(policy.estimate(i), refit(policy, i, log, 1.0), atol=1e-12)


@every_live_policy
def test_removed_agents_are_gone_for_good(name: str) -> None:
    policy = make(name)
    play(policy, 60)
    policy.remove_agent(3)
    before = snapshot(policy)
    for method, arguments in (
        ("select", [np.eye(D)]),
        ("update", [np.ones(D), 1.0]),
        ("neighbors", []),
        ("remove_agent", []),
    ):
        with pytest.raises(ValueError, match="agent 3 has been removed"):
            getattr(policy, method)(3, *arguments)
    assert snapshot(policy) == before
    assert 3 not in policy.agents
    policy.remove_agent(3, withdraw=True)  # its samples can still be taken back
    assert policy.pulls[3] == 0
    with pytest.raises(ValueError, match="agent 3 has been removed already"):
        policy.remove_agent(3, withdraw=True)
    assert list(grow(policy, 1)) == [N]
    play(policy, 60)


@every_live_policy
def test_cost_counts_only_agents_that_are_there(name: str) -> None:
    policy = make(name)
    play(policy, 40)
    for leaver in range(N - 1):
        policy.remove_agent(leaver)
    cost = policy.communication_cost
    play(policy, 20)
    assert policy.communication_cost == cost
    assert cost <= (N - 1) * 40


def test_oracle_needs_labels_for_newcomers() -> None:
    policy = make("oracle")
    with pytest.raises(ValueError, match="labels must be given"):
        policy.add_agents(2)
    for wrong in (1.5, 0):
        with pytest.raises(ValueError, match="n must be an integer of at least 1"):
            policy.add_agents(wrong, labels=[1])
    policy.add_agents(2, labels=[1, 5])
    assert list(policy.labels[-2:]) == [1, 5]
    assert policy.n_agents == N + 2


@every_live_policy
def test_late_rewards_online_are_those_of_a_simulation(name: str) -> None:
    """`begin` counts the round, `update` with `begun` takes in what was waited for: as `simulate` does."""
    late = 25
    trace = shoal.simulate(simulated := make(name), world(), horizon=200, seed=3, delay=late)
    policy, due = make(name), list[Any]()
    for t, agent in enumerate(trace.agents.tolist()):
        k = policy.select(agent, world().arms)
        assert k == trace.choices[t]
        policy.begin(agent, world().arms[k])
        due.append((agent, world().arms[k], float(trace.rewards[t])))
        assert policy.pending.sum() == len(due)
        if len(due) > late:
            policy.update(*due.pop(0), begun=True)
    assert policy.rounds == simulated.rounds == 200
    for agent, x, _ in due:
        policy.cancel(agent, x)
    assert not policy.pending.any()
    assert not simulated.pending.any()
    assert not policy.state.common.pending.sums.any()
    assert snapshot(policy) == snapshot(simulated)


@every_live_policy
def test_who_leaves_is_waited_for_no_more(name: str) -> None:
    policy = make(name)
    play(policy, 60)
    policy.begin(1, np.ones(D))
    policy.begin(2, np.ones(D))
    policy.remove_agent(1)
    assert policy.pending.tolist() == [0, 0, 1] + [0] * (N - 3)
    with pytest.raises(ValueError, match="agent 1 has been removed"):
        policy.update(1, np.ones(D), 1.0, begun=True)
    play(policy, 30)
    policy.update(2, np.ones(D), 1.0, begun=True)
    assert not policy.state.common.pending.sums.any()
