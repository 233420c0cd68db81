"""Logs from elsewhere: read, evaluated, and refused with file and line."""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shoal.core.policies.registry import make_policy
from shoal.live.evaluation.candidates import calibration, evaluate_log
from shoal.live.evaluation.estimators import effective_size
from shoal.live.evaluation.logs import read_log

ARMS = {"a": [1.0, 0.0], "b": [0.0, 1.0], "c": [0.6, 0.8]}
THETA = np.array([0.2, 0.9])


def rows(n: int, *, uniform: bool = False, seed: int = 0) -> list[dict[str, Any]]:
    """Three in ten decisions drawn uniformly (or all), the others "a"; agents are two."""
    rng = np.random.default_rng(seed)
    explore, made = 1.0 if uniform else 0.3, []
    for t in range(n):
        arm = list(ARMS)[int(rng.integers(3))] if rng.random() < explore else "a"
        p = explore / 3 + (1 - explore) * (arm == "a")
        reward = float(np.array(ARMS[arm]) @ THETA + 0.1 * rng.normal())
        made.append(
            {
                "t": t,
                "key": f"k{t}",
                "who": f"u{t % 2}",
                "arm": arm,
                "p": p,
                "reward": reward,
                "q": float(arm == "b"),
            }
        )
    return made


def write(path: Path, made: list[dict[str, Any]]) -> Path:
    if path.suffix == ".parquet":
        pq.write_table(pa.Table.from_pylist(made), path)
        return path
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    return path


@pytest.fixture
def arms(tmp_path: Path) -> Path:
    return write(
        tmp_path / "arms.csv", [{"arm": name, "features": json.dumps(x)} for name, x in ARMS.items()]
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_read(tmp_path: Path, arms: Path, ending: str) -> None:
    made = rows(50)
    path = write(tmp_path / f"log.{ending}", made)
    events = read_log(
        path, probability="p", agent="who", arm="arm", arms=arms, target="q", time="t", id="key"
    )
    assert events.agents.tolist() == [t % 2 for t in range(50)]
    np.testing.assert_allclose(events.rewards, [row["reward"] for row in made])
    np.testing.assert_allclose(events.probabilities, [row["p"] for row in made])
    assert events.offers is not None
    assert events.shown is not None
    assert [list(ARMS)[k] for k in events.shown] == [row["arm"] for row in made]
    np.testing.assert_array_equal(events.offers[7], list(ARMS.values()))


def test_arms_on_offer(tmp_path: Path, arms: Path) -> None:
    made = [{"arm": "b", "p": 0.5, "reward": 1, "offered": '["c", "b"]'}]
    events = read_log(
        write(tmp_path / "log.csv", made), probability="p", arm="arm", arms=arms, offered="offered"
    )
    assert events.offers is not None
    np.testing.assert_array_equal(events.offers[0], [ARMS["b"], ARMS["c"]])
    lists = [{"arm": "b", "p": 0.5, "reward": 1, "offered": ["c", "b"]}]
    lists[0]["arm"] = "a"
    with pytest.raises(ValueError, match="the arm 'a' was chosen, but is not among those on offer"):
        read_log(
            write(tmp_path / "log.parquet", lists), probability="p", arm="arm", arms=ARMS, offered="offered"
        )
    for name, twice in (("log.csv", '["b", "c", "b"]'), ("log.parquet", ["b", "c", "b"])):
        path = write(tmp_path / name, [{**made[0], "offered": twice}])
        with pytest.raises(ValueError, match="offered must name each arm once, got"):
            read_log(path, probability="p", arm="arm", arms=arms, offered="offered")
    made[0]["offered"] = '["b", "z"]'
    with pytest.raises(ValueError, match=r"log\.csv, line 2: the arm 'z' on offer has no features"):
        read_log(write(tmp_path / "log.csv", made), probability="p", arm="arm", arms=arms, offered="offered")
    lists[0]["arm"] = "b"
    again = read_log(
        write(tmp_path / "log.parquet", lists), probability="p", arm="arm", arms=ARMS, offered="offered"
    )
    assert again.shown is not None
    assert again.shown.tolist() == [0]


BAD = [
    ({"p": ""}, "p is empty"),
    ({"p": "0"}, "p must be .* got '0'"),
    ({"p": "1.5"}, "p must be .* got '1.5'"),
    ({"p": "often"}, "p must be a number, got 'often'"),
    ({"reward": "nan"}, "reward must be"),
    ({"arm": "z"}, "the arm 'z' has no features"),
    ({"t": 0}, "t '?0'? is before that of a row above"),
    ({"t": "nan"}, "t must be a number or a date, got 'nan'"),
    ({"t": "soon"}, "t must be a number or a date, got 'soon'"),
    ({"key": "k2"}, "key 'k2' is that of row 4 already"),
    ({"q": "2"}, "q must be"),
]


@pytest.mark.parametrize(("change", "reason"), BAD, ids=[str(change) for change, _ in BAD])
def test_bad_rows_are_named(tmp_path: Path, arms: Path, change: dict[str, Any], reason: str) -> None:
    made = rows(8)
    made[4] |= change
    path = write(tmp_path / "log.csv", made)
    with pytest.raises(ValueError, match=rf"log\.csv, line 6: {reason}.*Nothing was evaluated; 7 of 8"):
        read_log(path, probability="p", arm="arm", arms=arms, target="q", time="t", id="key")


def test_bad_files(tmp_path: Path, arms: Path) -> None:
    made = rows(4)
    path = write(tmp_path / "log.csv", made)
    with pytest.raises(ValueError, match="no column 'prob'"):
        read_log(path, probability="prob")
    with pytest.raises(ValueError, match="arm does not say which column"):
        read_log(path, probability="p", arms=arms)
    with pytest.raises(ValueError, match="arms does not say what their features are"):
        read_log(path, probability="p", offered="arm")
    made[1]["p"] = None
    with pytest.raises(ValueError, match=r"log\.parquet, row 2: p is empty"):
        read_log(write(tmp_path / "log.parquet", made), probability="p")
    twice = write(tmp_path / "twice.csv", [{"arm": "a", "features": "[1]"}, {"arm": "a", "features": "[2]"}])
    with pytest.raises(ValueError, match=r"twice\.csv, line 3: the arm 'a' is there twice"):
        read_log(path, probability="p", arm="arm", arms=twice)
    uneven = write(tmp_path / "uneven.csv", [{"arm": "a", "features": "[1]"}, {"arm": "b", "features": "[]"}])
    with pytest.raises(ValueError, match=r"uneven\.csv, line 3: the arm 'b' has no features"):
        read_log(path, probability="p", arm="arm", arms=uneven)
    (tmp_path / "empty.csv").write_text("p,reward\n")
    with pytest.raises(ValueError, match="has no rows"):
        read_log(tmp_path / "empty.csv", probability="p")
    many = rows(20)
    for row in many:
        row["p"] = 7
    with pytest.raises(ValueError, match="and 15 more"):
        read_log(write(tmp_path / "many.csv", many), probability="p")


def test_a_column_as_the_target(tmp_path: Path) -> None:
    """ "Always b", whose value is known."""
    path = write(tmp_path / "log.parquet", rows(3000))
    found = evaluate_log(read_log(path, probability="p", target="q"), None, {})
    assert [one.name for one in found.estimates] == ["IPS", "SNIPS", "doubly robust"]
    for one in found.estimates:
        assert one.low < THETA[1] < one.high
    assert found.difference is not None
    assert found.difference.low > 0.0
    with pytest.raises(ValueError, match="policy must be named"):
        evaluate_log(read_log(path, probability="p"), None, {})
    with pytest.raises(ValueError, match="'bass' chooses by features"):
        evaluate_log(read_log(path, probability="p"), "bass", {})


def test_a_target_that_is_no_distribution(tmp_path: Path) -> None:
    made = rows(3000, uniform=True)
    for row in made:
        row["q"] = 0.5  # of each of three arms
    found = evaluate_log(read_log(write(tmp_path / "log.csv", made), probability="p", target="q"), None, {})
    assert "over the logged probability is 1.5 on average (1.5 to 1.5), where it must be 1" in found.sentence
    assert (found.estimates, found.difference) == ([], None)


def test_the_doubly_robust_estimate_of_a_column(tmp_path: Path) -> None:
    """Its model is a running mean of rewards, the same for all arms: valid, and less noisy than IPS."""
    made = rows(3000, seed=4)
    found = evaluate_log(
        read_log(write(tmp_path / "log.csv", made), probability="p", target="q", agent="who"), None, {}
    )
    terms, sums, counts, total = [], {"u0": 0.0, "u1": 0.0}, {"u0": 0, "u1": 0}, 0.0
    for t, row in enumerate(made):
        model = (sums[row["who"]] + 10.0 * total / max(t, 1)) / (counts[row["who"]] + 10.0)
        terms.append(model + row["q"] / row["p"] * (row["reward"] - model))
        sums[row["who"]] += row["reward"]
        counts[row["who"]] += 1
        total += row["reward"]
    ips, _, robust = found.estimates
    assert robust.value == pytest.approx(np.mean(terms))
    assert robust.high - robust.low < 0.8 * (ips.high - ips.low)


def test_a_policy_that_learns(tmp_path: Path, arms: Path) -> None:
    """Against a loop: at each decision it knows all before; replayed, only what it would have chosen."""
    path = write(tmp_path / "log.csv", rows(900, uniform=True))
    events = read_log(path, probability="p", agent="who", arm="arm", arms=arms)
    found = evaluate_log(events, "independent", {"alpha": 0.3})
    assert events.offers is not None
    assert events.shown is not None
    policy, terms, weights = make_policy("independent", 2, 2, alpha=0.3), [], []
    replayed, kept = make_policy("independent", 2, 2, alpha=0.3), []
    for t, shown in enumerate(events.shown.tolist()):
        agent, x, reward = t % 2, np.array(list(ARMS.values())[shown]), float(events.rewards[t])
        choice = policy.select(agent, np.array(list(ARMS.values())))
        mean = policy.scores(agent, np.array(list(ARMS.values()))).mean
        weights.append((choice == shown) * 3.0)
        terms.append(mean[choice] + weights[-1] * (reward - mean[shown]))
        policy.update(agent, x, reward)
        if replayed.select(agent, np.array(list(ARMS.values()))) == shown:
            replayed.update(agent, x, reward)
            kept.append(reward)
    by_name = {one.name: one for one in found.estimates}
    assert by_name["doubly robust"].value == pytest.approx(np.mean(terms))
    assert found.effective_size == pytest.approx(effective_size(np.array(weights)))
    assert found.replayed is not None
    assert found.replayed.value is not None
    assert found.replayed.accepted == len(kept)  # drawn uniformly, so nothing was thinned
    assert found.replayed.value.value == pytest.approx(np.mean(kept))
    assert "doubly robust" in str(found)


def test_thinning_gives_the_policy_its_own_frequencies(tmp_path: Path, arms: Path) -> None:
    """An ε-greedy log shows "a" far more often than a policy replayed on it may see it."""
    path = write(tmp_path / "log.csv", rows(20_000))
    events = read_log(path, probability="p", agent="who", arm="arm", arms=arms)
    found = evaluate_log(events, "independent", {"alpha": 0.0})  # stays with "a", its first choice
    assert found.replayed is not None
    assert found.replayed.accepted == pytest.approx(20_000 * 0.1, rel=0.1)
    assert found.replayed.value is not None
    assert found.replayed.value.low < THETA[0] < found.replayed.value.high


def test_too_short_to_replay(tmp_path: Path, arms: Path) -> None:
    events = read_log(write(tmp_path / "log.csv", rows(60)), probability="p", arm="arm", arms=arms)
    found = evaluate_log(events, "independent", {"alpha": 2.0})
    assert found.replayed is not None
    assert found.replayed.value is None
    assert "it could learn from" in found.replayed.sentence


def test_calibration() -> None:
    rng, sizes = np.random.default_rng(0), np.full(5000, 4.0)

    def drawn(explore: float, recorded: float) -> Any:
        is_greedy = rng.random(5000) > explore * 0.75
        return np.where(is_greedy, 1.0 - 0.75 * recorded, recorded / 4)

    assert calibration(drawn(0.2, 0.2), sizes).sentence.startswith("Recorded probabilities agree")
    assert "more often than recorded" in calibration(drawn(0.4, 0.2), sizes).sentence
    assert "less often than recorded" in calibration(drawn(0.1, 0.2), sizes).sentence
    assert calibration(np.ones(5000), sizes).sentence == "No decision was left to chance."
    assert calibration(np.ones(3), None).sentence == "Probabilities were not tested."


def test_categories_and_row_numbers_among_features(tmp_path: Path) -> None:
    log = write(tmp_path / "log.csv", [{"arm": "a", "p": 0.5, "reward": 1}])
    words = write(tmp_path / "words.csv", [{"arm": "a", "x": 1, "colour": "red"}])
    with pytest.raises(
        ValueError, match=r"colour must be a number, got 'red'; for a category, .* \(one-hot\)"
    ):
        read_log(log, probability="p", arm="arm", arms=words)
    large = write(tmp_path / "large.csv", [{"arm": "a", "x": "nan"}])
    with pytest.raises(ValueError, match=r"got 'nan'\. Nothing"):
        read_log(log, probability="p", arm="arm", arms=large)
    counted = write(
        tmp_path / "counted.csv", [{"": n, "arm": name, "x": n % 2} for n, name in enumerate("abcde")]
    )
    with pytest.warns(UserWarning, match=r"counted\.csv: column '' is the row's number"):
        read_log(log, probability="p", arm="arm", arms=counted)
