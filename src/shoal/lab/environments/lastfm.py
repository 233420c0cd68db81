"""LastFM as a bandit: listeners are agents, artists are arms described by their tags, friends are the graph.

I. Cantador, P. Brusilovsky and T. Kuflik, "Second Workshop on Information Heterogeneity and Fusion in
Recommender Systems (HetRec 2011)", RecSys 2011. The protocol is that of Cesa-Bianchi, Gentile and Zappella
2013: of 25 artists on offer the user has listened to one, which is the click.

What sharing is worth here turns on how tags become features (`RECIPES`).
"""

from pathlib import Path

import numpy as np

from shoal.core import validation
from shoal.core.types import AnyArray, Integers, Matrix
from shoal.lab.environments.offers import OfferedArms, PersonalOffers, given_path, read_columns
from shoal.lab.environments.ratings import Numbering
from shoal.lab.environments.sources import PathLike, cached

LISTENED, TAGGED, FRIENDS = "user_artists.dat", "user_taggedartists.dat", "user_friends.dat"
CONSTANT = 0.5
"""The last feature of every artist."""
TINY = 1e-12

RECIPES = ("log", "unit", "counts")
"""From counts of tags to features; idf is ln(artists / artists with the tag).

- "log": ln(1 + count) × idf, the leading components, each artist scaled to length 1;
- "unit": shares of an artist's tags × idf, the leading components, each artist scaled to length 1;
- "counts": ln(1 + count) × idf, the leading components, divided by the largest entry.
"""


class LastFM(PersonalOffers):
    """Users who are offered artists, one of which they have listened to.

    Parameters
    ----------
    path : path, optional
        The directory of hetrec2011-lastfm-2k: `user_artists.dat`, `user_taggedartists.dat` and
        `user_friends.dat`; by default the environment variable SHOAL_LASTFM.
    n_agents : int
        Number of users, drawn from those with at least `least` artists.
    n_arms : int ≥ 2
        Number of artists on offer.
    dim : int ≥ 2
        Number of features: the leading components of the tags, and a constant.
    recipe : "log", "unit" or "counts"
        How tags become features; see `shoal.lab.environments.lastfm.RECIPES`.
    least : int
        How many tagged artists a user must have listened to.
    param_norm : float
        Used in place of the largest norm of a true parameter, which real data does not have.
    seed : int or None
        Seed of the users and of the offers.
    cache : path, optional
        Directory for prepared features; by default the environment variable SHOAL_CACHE or the user's cache
        directory.

    Attributes
    ----------
    graph : (N, N)
        Who is a friend of whom.
    agent_ids : (N,)
        Ids of the users in the data.

    Raises
    ------
    DataUnavailable
        If one of the files is not there.

    Examples
    --------
    >>> world = shoal.LastFM("hetrec2011-lastfm-2k", n_agents=300, seed=0)  # doctest: +SKIP

    Notes
    -----
    Rewards are 0 or 1 and not linear in the features. The other artists on offer are drawn from all those
    that the user has not listened to, one from each of 24 equal slices of them.
    """

    has_graph = True

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        n_agents: int = 100,
        n_arms: int = 25,
        dim: int = 20,
        recipe: str = "log",
        least: int = 20,
        param_norm: float = 1.0,
        seed: int | None = None,
        cache: PathLike | None = None,
    ) -> None:
        n_agents = validation.positive_int("n_agents", n_agents)
        n_arms, dim = validation.positive_int("n_arms", n_arms), validation.positive_int("dim", dim)
        least = validation.positive_int("least", least)
        validation.one_of("recipe", recipe, RECIPES)
        for name, value in (("n_arms", n_arms), ("dim", dim)):
            if value < 2:
                raise ValueError(f"{name} must be at least 2, got {value}")
        folder = given_path(path, "SHOAL_LASTFM")
        files = [folder / name for name in (LISTENED, TAGGED, FRIENDS)]
        data = prepare(files, dim=dim, recipe=recipe, cache=cache)
        counts = np.bincount(data["listeners"], minlength=len(data["users"]))
        able = np.flatnonzero(counts >= least)
        if n_agents > len(able):
            raise ValueError(
                f"n_agents must be at most {len(able)}, the users of {files[0]} with at least {least} tagged "
                f"artists, got {n_agents}"
            )
        if n_arms - 1 > len(data["features"]) - counts[able].max():
            raise ValueError(
                f"n_arms must leave other artists to offer: there are {len(data['features'])} with tags in "
                f"{files[1]}, got {n_arms}"
            )
        rng = np.random.default_rng(validation.seed_or_none("seed", seed))
        drawn = rng.choice(able, size=n_agents, replace=False)
        self.agent_ids, self._features, self._n_arms = data["users"][drawn], data["features"], n_arms
        order = np.argsort(data["listeners"], kind="stable")
        ends = np.cumsum(counts)
        self._listened = [np.sort(data["artists"][order[ends[i] - counts[i] : ends[i]]]) for i in drawn]
        place = {user: agent for agent, user in enumerate(drawn.tolist())}
        self.graph = np.zeros((n_agents, n_agents), dtype=np.bool_)
        for one, other in data["friends"].tolist():
            if one in place and other in place:
                self.graph[place[one], place[other]] = self.graph[place[other], place[one]] = True
        np.fill_diagonal(self.graph, False)
        self.graph.flags.writeable = False
        super().__init__(n_agents, draws=n_arms + 1, param_norm=param_norm, seed=seed)
        self.data_files = tuple(files)

    def offers(self, rounds: Integers, agents: Integers) -> OfferedArms:
        """For each pull, one artist that the user has listened to, among others."""
        drawn, others = self._uniform(rounds), self._n_arms - 1
        offered = np.empty((len(rounds), self._n_arms), dtype=np.int64)
        means = np.zeros((len(rounds), self._n_arms))
        at = (drawn[:, 1] * self._n_arms).astype(np.int64)
        means[np.arange(len(rounds)), at] = 1.0
        for agent in np.unique(agents).tolist():
            rows = np.flatnonzero(agents == agent)
            heard = self._listened[agent]
            slices = (np.arange(others) + drawn[rows, 2:]) / others
            rank = (slices * (len(self._features) - len(heard))).astype(np.int64)
            # The artist of this rank among those not heard: skip the heard ones that come before it.
            unheard = rank + np.searchsorted(heard - np.arange(len(heard)), rank, side="right")
            clicked = heard[(drawn[rows, 0] * len(heard)).astype(np.int64)]
            offered[rows] = np.insert(unheard, 0, clicked, axis=1)
        # The click is in the first place so far; swap it with the one it was drawn for.
        everyone = np.arange(len(rounds))
        offered[everyone, 0], offered[everyone, at] = offered[everyone, at], offered[everyone, 0].copy()
        return OfferedArms(self._features[offered], means)


def prepare(
    files: list[Path], *, dim: int, recipe: str, cache: PathLike | None = None
) -> dict[str, AnyArray]:
    """Read the files and reduce the tags, or load the result from the cache.

    Artists without a tag are left out, and with them who listened to them.
    """

    def compute() -> dict[str, AnyArray]:
        users, artists, tags = Numbering(), Numbering(), Numbering()
        tagged = [(artists[artist], tags[tag]) for artist, tag in _integers(files[1], ("artistID", "tagID"))]
        heard = [
            (users[user], artists[artist])
            for user, artist in _integers(files[0], ("userID", "artistID"))
            if artist in artists
        ]
        friends = [
            (users[user], users[friend])
            for user, friend in _integers(files[2], ("userID", "friendID"))
            if user in users and friend in users
        ]
        for file, rows in ((files[1], tagged), (files[0], heard)):
            if not rows:
                raise ValueError(f"{file}: no rows that can be used")
        pairs = np.unique(np.array(heard), axis=0)
        return {
            "users": np.array(list(users)),
            "listeners": pairs[:, 0],
            "artists": pairs[:, 1],
            "friends": np.array(friends, dtype=np.int64).reshape(-1, 2),
            "features": _features(np.array(tagged), dim, recipe, str(files[1])),
        }

    for file in files:  # before their content is hashed
        next(read_columns(file, (), "\t"), None)
    return cached("lastfm", files, {"dim": dim, "recipe": recipe}, compute, cache=cache).arrays


def _integers(file: Path, columns: tuple[str, ...]) -> list[tuple[int, ...]]:
    found = []
    for where, row in read_columns(file, columns, "\t"):
        if not all(value.isascii() and value.isdigit() and len(value) <= 18 for value in row):
            raise ValueError(f"{where}: expected whole numbers as {' and '.join(columns)}, got {row}")
        found.append(tuple(map(int, row)))
    return found


def _features(tagged: Integers, dim: int, recipe: str, source: str) -> Matrix:
    """(artists, dim) the leading components of the artists' tags, and a constant."""
    from scipy.sparse import csr_array
    from scipy.sparse.linalg import svds

    n_artists, n_tags = tagged.max(axis=0) + 1
    if dim > min(n_artists, n_tags):
        raise ValueError(f"dim must be at most {min(n_artists, n_tags)} for the tags in {source}, got {dim}")
    counts = csr_array((np.ones(len(tagged)), (tagged[:, 0], tagged[:, 1])), shape=(n_artists, n_tags))
    counts.sum_duplicates()
    idf = np.log(n_artists / np.maximum(np.bincount(counts.indices, minlength=n_tags), 1))
    weights = counts.multiply(1.0 / counts.sum(axis=1)[:, None]) if recipe == "unit" else counts.log1p()
    table = weights.multiply(idf[None, :]).tocsr()
    left, values, _ = svds(table, k=dim - 1, v0=np.ones(min(n_artists, n_tags)))
    found = (left * values)[:, ::-1]
    # A component's sign is arbitrary: its largest entry is positive.
    found *= np.sign(found[np.abs(found).argmax(axis=0), np.arange(dim - 1)])
    if recipe == "counts":
        found /= max(float(np.abs(found).max()), TINY)
    else:
        found /= np.maximum(np.linalg.norm(found, axis=1, keepdims=True), TINY)
    return np.hstack([found, np.full((n_artists, 1), CONSTANT)])
