"""obp's dictionary of logged feedback in and out, and the Open Bandit Dataset that it is made from.

Y. Saito, S. Aihara, M. Matsutani and Y. Narita, "Open Bandit Dataset and Pipeline", NeurIPS 2021 Datasets and
Benchmarks. A log here is a frame of decisions and the features of the arms, as evaluation and import read
them. Nothing of obp is needed.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from shoal.core import validation
from shoal.core.logs import LogTable, number
from shoal.lab.environments.offers import read_columns
from shoal.lab.environments.ratings import Numbering
from shoal.lab.environments.sources import PathLike

NEEDED = ("action", "reward", "pscore", "action_context")


class LoggedFrames(NamedTuple):
    """A log, ready for `read_log(log, probability="probability", agent="agent", arm="arm", arms=arms)`."""

    log: dict[str, list[Any]]
    """`agent`, `arm`, `reward`, `probability`; a row for each decision, in order."""
    arms: dict[str, list[float]]
    """The features of each arm, by name."""


def from_obp(feedback: Mapping[str, Any], *, agents: Sequence[Any] | None = None) -> LoggedFrames:
    """Frames from obp's `BanditFeedback`.

    Parameters
    ----------
    feedback : mapping
        With `action` (n,), `reward` (n,), `pscore` (n,) and `action_context` (K, d).
    agents : sequence, optional
        Whose decision each is (n,): obp does not know agents. By default there is one.

    Examples
    --------
    >>> feedback = dict(action=[1, 0], reward=[0, 1], pscore=[0.5, 0.5], action_context=[[1.0], [2.0]])
    >>> from_obp(feedback).log["arm"]
    ['1', '0']
    """
    for key in NEEDED:
        if feedback.get(key) is None:
            found = ", ".join(map(repr, feedback)) or "none"
            raise ValueError(f"feedback must have {key!r}, as obp's has; it has {found}")
    features = validation.matrix("feedback['action_context']", feedback["action_context"])
    action = np.asarray(feedback["action"])
    if not (n := action.size):
        raise ValueError("feedback has no rounds: feedback['action'] is empty")
    if not np.issubdtype(action.dtype, np.integer) or not 0 <= action.min() <= action.max() < len(features):
        raise ValueError(
            f"feedback['action'] must be integers in 0, …, {len(features) - 1}, the rows of action_context"
        )
    reward, pscore = (
        validation.vector(f"feedback[{key!r}]", feedback[key], n) for key in ("reward", "pscore")
    )
    if not 0.0 < pscore.min() <= pscore.max() <= 1.0:
        raise ValueError(f"feedback['pscore'] must be in (0, 1], got {pscore.min():g} to {pscore.max():g}")
    names = ["all"] * n if agents is None else [str(agent) for agent in agents]
    if len(names) != n:
        raise ValueError(f"agents must have {n} entries, one per decision, got {len(names)}")
    log = {"agent": names, "arm": [str(k) for k in action.tolist()]}
    return LoggedFrames(
        {**log, "reward": reward.tolist(), "probability": pscore.tolist()},
        {str(k): row for k, row in enumerate(features.tolist())},
    )


def to_obp(log: Any, arms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """obp's `BanditFeedback` from a log (file, mapping of columns or data frame) and its arms.

    The log has the columns `arm`, `reward` and `probability`. Actions are numbered in the order of `arms`.
    There is one position, and no context.

    Examples
    --------
    >>> feedback = dict(action=[1, 0], reward=[0, 1], pscore=[0.5, 0.5], action_context=[[1.0], [2.0]])
    >>> to_obp(*from_obp(feedback))["action"]
    array([1, 0])
    """
    features = validation.matrix("arms", list(arms.values()))
    places = {str(name): place for place, name in enumerate(arms)}
    rows: list[tuple[int, float, float]] = []

    def take(line: int, row: list[Any]) -> None:
        if str(row[0]) not in places:
            raise ValueError(f"arm {row[0]!r} is not among the arms")
        rows.append((places[str(row[0])], number("reward", row[1]), number("probability", row[2])))

    LogTable(log).read(["arm", "reward", "probability"], take, "read")
    actions, rewards, scores = zip(*rows, strict=True)
    return {
        "n_rounds": len(rows),
        "n_actions": len(features),
        "action": np.array(actions),
        "position": np.zeros(len(rows), dtype=np.int64),
        "reward": np.array(rewards),
        "pscore": np.array(scores),
        "context": np.zeros((len(rows), 1)),
        "action_context": features,
    }


def read_open_bandit(path: PathLike, campaign: str = "men") -> LoggedFrames:
    """The log of one behaviour policy of the Open Bandit Dataset, with its real propensities.

    Parameters
    ----------
    path : path
        A directory with `{campaign}.csv` and `item_context.csv`, such as that of obp's sample.
    campaign : str
        "men", "women" or "all".

    Notes
    -----
    An agent is a segment of users: the four user features together. An arm has `item_feature_0` and a flag
    for each value of the other item features. Rows are sorted by time.

    Examples
    --------
    >>> log, arms = read_open_bandit("obd/random", "men")  # doctest: +SKIP
    """
    folder = Path(path)
    categories = [f"item_feature_{k}" for k in (1, 2, 3)]
    items: dict[str, list[Any]] = {}
    for where, (item, value, *rest) in read_columns(
        folder / "item_context.csv", ("item_id", "item_feature_0", *categories), ","
    ):
        items[item] = [_finite(where, value), *rest]
    flags = Numbering()
    for row in items.values():
        for pair in enumerate(row[1:]):
            flags[pair]
    features = np.zeros((len(items), 1 + len(flags)))
    for line, row in enumerate(items.values()):
        features[line, 0] = row[0]
        features[line, [1 + flags[pair] for pair in enumerate(row[1:])]] = 1.0
    columns = ("timestamp", "item_id", "click", "propensity_score", *(f"user_feature_{k}" for k in range(4)))
    rows, segments = [], Numbering()
    for where, (when, item, click, score, *user) in read_columns(folder / f"{campaign}.csv", columns, ","):
        if item not in items or click not in ("0", "1") or not 0.0 < _finite(where, score) <= 1.0:
            raise ValueError(f"{where}: expected a known item, a click of 0 or 1 and a propensity in (0, 1]")
        rows.append((when, f"segment {segments[tuple(user)]}", item, float(click), float(score)))
    rows.sort(key=lambda row: row[0])
    if not rows:
        raise ValueError(f"{folder / campaign}.csv has no rows")
    _, agents, arms, clicks, scores = map(list, zip(*rows, strict=True))
    log = {"agent": agents, "arm": arms, "reward": clicks, "probability": scores}
    return LoggedFrames(log, dict(zip(items, features.tolist(), strict=True)))


def _finite(where: str, text: str) -> float:
    try:
        return number("value", text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None
