"""What a round costs in other libraries, beside ours, in one process: `make bench-peers`.

Makes an environment in build/peers, installs shoal and the others there from the package index, and writes
the table between the markers of docs/comparison.md. Libraries that cannot be installed are listed there with
the reason.

A round is one choice among K = 20 arms with d = 10 features and the update with its reward. Two models of it:

- *arm features*: every arm has a vector, one linear model per user. Ours, coba's and Vowpal Wabbit's way.
- *per arm*: the round has a vector, and every arm its own linear model. The others' way.

The table has the share of the best mean reward that each got in the second half of its rounds: it learned.
"""

import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
import venv
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
PLACE = ROOT / "build" / "peers"
PAGE = ROOT / "docs" / "comparison.md"
TABLE = re.compile(r"(<!-- written by make bench-peers -->\n).*?(<!-- until here -->)", flags=re.DOTALL)
PEERS = ("river", "bayesianbandits", "mabwiser", "coba", "vowpalwabbit")
D, K, ROUNDS, REPEATS = 10, 20, 1_000, 5

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Matrices this small gain nothing from threads, and with them times depend on how many cores are free."""

Play = Callable[[int, np.ndarray], int]
"""Choose an arm, for a user and the round's vector."""
Learn = Callable[[int, np.ndarray, int, float], None]
"""Learn from a user, the vector, the arm and its reward."""


def shoal_policy(name: str, users: int) -> tuple[Play, Learn]:
    """A policy of ours; `ARMS` are the arms' features."""
    import shoal

    policy = shoal.make_policy(name, users, D, alpha=0.3)
    return (
        lambda user, _: policy.select(user, ARMS),
        lambda user, _, k, reward: policy.update(user, ARMS[k], reward),
    )


def coba_linucb() -> tuple[Play, Learn]:
    """LinUCB with one model over the features of actions."""
    import coba

    learner = coba.LinUCBLearner(alpha=0.3, features=["a"])
    actions = [tuple(arm) for arm in ARMS.tolist()]
    return (
        lambda user, _: actions.index(learner.predict(None, actions)[0]),
        lambda user, _, k, reward: learner.learn(None, actions[k], reward, 1.0),
    )


def vowpalwabbit_squarecb() -> tuple[Play, Learn]:
    """SquareCB on action-dependent features, learned by stochastic gradients."""
    import vowpalwabbit

    space = vowpalwabbit.Workspace("--cb_explore_adf --squarecb --gamma_scale 100 --quiet")
    lines = ["|a " + " ".join(f"f{i}:{value:.6g}" for i, value in enumerate(arm)) for arm in ARMS]
    rng, last = np.random.default_rng(0), [1.0]

    def play(user: int, _: np.ndarray) -> int:
        chances = np.asarray(space.predict(lines))
        k = int(rng.choice(K, p=chances / chances.sum()))
        last[0] = float(chances[k])
        return k

    def learn(user: int, _: np.ndarray, k: int, reward: float) -> None:
        space.learn([f"0:{-reward}:{last[0]} {line}" if i == k else line for i, line in enumerate(lines)])

    return play, learn


def river_linucb() -> tuple[Play, Learn]:
    """LinUCB with a model per arm."""
    from river import bandit

    policy, arms = bandit.LinUCBDisjoint(alpha=0.3, seed=0), list(range(K))

    def named(x: np.ndarray) -> dict[str, float]:
        return {f"x{i}": value for i, value in enumerate(x.tolist())}

    return (
        lambda user, x: policy.pull(arms, context=named(x)),
        lambda user, x, k, reward: policy.update(k, named(x), reward),
    )


def mabwiser_linucb() -> tuple[Play, Learn]:
    """LinUCB with a model per arm."""
    from mabwiser.mab import MAB, LearningPolicy

    bandit = MAB(arms=list(range(K)), learning_policy=LearningPolicy.LinUCB(alpha=0.3), seed=0)
    started = np.random.default_rng(0).normal(size=(K, D))
    bandit.fit(list(range(K)), [float(started[k] @ PER_ARM[k]) for k in range(K)], started)
    return (
        lambda user, x: int(bandit.predict([x.tolist()])),
        lambda user, x, k, reward: bandit.partial_fit([k], [reward], [x.tolist()]),
    )


def bayesianbandits_thompson() -> tuple[Play, Learn]:
    """Thompson sampling with a Bayesian linear model per arm."""
    import bayesianbandits as bb

    arms = [bb.Arm(k, learner=bb.NormalRegressor(alpha=1.0, beta=1.0)) for k in range(K)]
    agent = bb.ContextualAgent(arms, bb.ThompsonSampling(), random_seed=0)

    def learn(user: int, x: np.ndarray, k: int, reward: float) -> None:
        agent.select_for_update(k).update(x[None, :], np.array([reward]))

    return lambda user, x: int(agent.pull(x[None, :])[0]), learn


CONTESTANTS: list[tuple[str, str, str, int, Callable[[], tuple[Play, Learn]]]] = [
    ("shoal", "Independent", "arm features", 1, lambda: shoal_policy("independent", 1)),
    ("shoal", "Independent, 100 users", "arm features", 100, lambda: shoal_policy("independent", 100)),
    ("shoal", "BASS, 100 users who share", "arm features", 100, lambda: shoal_policy("bass", 100)),
    ("coba", "LinUCBLearner", "arm features", 1, coba_linucb),
    ("vowpalwabbit", "cb_explore_adf, squarecb", "arm features", 1, vowpalwabbit_squarecb),
    ("river", "LinUCBDisjoint", "per arm", 1, river_linucb),
    ("mabwiser", "LinUCB", "per arm", 1, mabwiser_linucb),
    ("bayesianbandits", "ContextualAgent, ThompsonSampling", "per arm", 1, bayesianbandits_thompson),
]
"""Library, its algorithm, the model, the number of users, and how to make it."""

_rng = np.random.default_rng(7)
ARMS = _rng.normal(size=(K, D)) / np.sqrt(D)
THETA = _rng.normal(size=D)
PER_ARM = _rng.normal(size=(K, D)) / np.sqrt(D)


def play_once(model: str, users: int, made: tuple[Play, Learn], rounds: int) -> tuple[float, float]:
    """Seconds per round, and the share of the best mean reward in the second half."""
    play, learn = made
    rng = np.random.default_rng(1)
    vectors, noise = rng.normal(size=(rounds, D)), 0.1 * rng.normal(size=rounds)
    means = vectors @ PER_ARM.T if model == "per arm" else np.tile(ARMS @ THETA, (rounds, 1))
    got, spent = np.zeros(rounds), 0.0
    for t in range(rounds):
        user = t % users
        start = time.perf_counter()
        k = play(user, vectors[t])
        spent += time.perf_counter() - start
        got[t] = means[t, k]
        reward = float(means[t, k] + noise[t])
        start = time.perf_counter()
        learn(user, vectors[t], k, reward)
        spent += time.perf_counter() - start
    half = slice(rounds // 2, None)
    return spent / rounds, float(got[half].sum() / means[half].max(axis=1).sum())


def measure() -> Iterator[dict[str, Any]]:
    """Every contestant that is installed, best of several, taking turns."""
    best: dict[int, float] = {}
    share: dict[int, float] = {}
    failed: dict[int, str] = {}
    for _ in range(REPEATS):
        for number, (_, _, model, users, make) in enumerate(CONTESTANTS):
            if number in failed:
                continue
            try:
                rounds = ROUNDS * (10 if users > 1 else 1)
                seconds, learned = play_once(model, users, make(), rounds)
            except Exception as error:
                failed[number] = f"{type(error).__name__}: {error}"
                continue
            best[number] = min(best.get(number, np.inf), seconds)
            share[number] = learned
    for number, (library, what, model, _, _) in enumerate(CONTESTANTS):
        row: dict[str, Any] = {"library": library, "what": what, "model": model}
        if number in failed:
            yield {**row, "failed": failed[number]}
        else:
            yield {**row, "version": version(library), "seconds": best[number], "share": share[number]}


def install() -> tuple[Path, dict[str, str]]:
    """The environment's interpreter, and the libraries that could not be installed, with the reason."""
    python = PLACE / "bin" / "python"
    if not python.exists():
        venv.create(PLACE, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, str(ROOT)], check=True, stderr=subprocess.DEVNULL)
    failed = {}
    for peer in PEERS:
        done = subprocess.run([*pip, "--prefer-binary", peer], capture_output=True, text=True)
        if done.returncode:
            errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            failed[peer] = (errors or [f"pip ended with {done.returncode}"])[0]
    return python, failed


def table(rows: list[dict[str, Any]], failed: dict[str, str]) -> str:
    """The table of the page."""
    ours = next(row["seconds"] for row in rows if row["what"] == "Independent")
    said = [
        f"Measured on {datetime.date.today():%Y-%m-%d}, Python {platform.python_version()}, "
        f"{platform.machine()}, {ROUNDS:,} rounds (10,000 with 100 users), best of {REPEATS} taking turns, "
        "in one process with one thread.",
        "",
        "| library | version | what | model | µs per round | over Independent | share of the best reward |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for row in rows:
        if "failed" in row:
            continue
        said.append(
            f"| {row['library']} | {row['version']} | {row['what']} | {row['model']} "
            f"| {1e6 * row['seconds']:,.0f} | {row['seconds'] / ours:,.1f} × | {row['share']:.2f} |"
        )
    said += [f"\n{peer} could not be installed: {why}" for peer, why in failed.items()]
    said += [
        f"\n{row['library']} ({row['what']}) could not be run: {row['failed']}"
        for row in rows
        if "failed" in row and row["library"] not in failed
    ]
    return "\n".join(said) + "\n"


def main() -> None:
    """Install, measure in the other environment, write."""
    if sys.argv[1:] == ["--measure"]:
        print(json.dumps(list(measure())))
        return
    python, failed = install()
    # Before the process starts: NumPy's library reads them when it is loaded.
    done = subprocess.run(
        [str(python), __file__, "--measure"],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **ONE_THREAD},
    )  # fmt: skip
    text = table(json.loads(done.stdout.splitlines()[-1]), failed)
    PAGE.write_text(TABLE.sub(lambda found: found[1] + text + found[2], PAGE.read_text()))
    print(text)


if __name__ == "__main__":
    main()
