"""Before simulating on real data: fetch it, inspect it, prepare it, compare the fills.

Each function returns a path or a record; the caller prints.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shoal.core import validation
from shoal.lab.environments import letor, movielens
from shoal.lab.environments.ratings import Ratings, held_out_errors
from shoal.lab.environments.sources import MOVIELENS_SHA256, PathLike

KINDS = ("movielens", "letor")

LETOR_LICENCE = """\
A LETOR file does not state its terms of use; ask its publisher. Yahoo! Webscope C14 may only be used by those
who have signed Yahoo!'s agreement, and must not be redistributed."""


@dataclass(frozen=True)
class DataRecord:
    """What a data set holds, before any preparation."""

    kind: str
    """"movielens" or "letor"."""
    path: str
    layout: str
    """Format of the files."""
    files: dict[str, int]
    """Sizes in bytes."""
    n_agents: int
    """Users with a rating, or queries."""
    n_arms: int
    """Movies with a rating, or documents."""
    n_observed: int
    """Pairs of an agent and an arm with a reward."""
    n_features: int
    reward_low: float
    reward_mean: float
    reward_high: float
    licence: str


@dataclass(frozen=True)
class PreparedRecord:
    """What an environment is drawn from."""

    kind: str
    path: str
    arms: str
    fill: str
    n_agents: int
    """Number of agents to draw from."""
    n_arms: int
    dim: int
    n_observed: int
    """Pairs of an agent and a chosen arm with an observed reward; all others are predicted."""
    n_zero_arms: int
    """Chosen arms whose features are all zero."""
    n_distinct_arms: int
    """Number of distinct feature vectors among the chosen arms."""
    seconds: float
    cache_file: str
    from_cache: bool


def kind_of(path: PathLike | None = None) -> str:
    """Kind of the data at a path: "movielens" for None, a name, a zip or its directory, else "letor"."""
    if path is None or str(path) in MOVIELENS_SHA256:
        return "movielens"
    path = Path(path)
    names = {entry.name for entry in path.iterdir()} if path.is_dir() else set()
    is_movielens = any(ratings in names for ratings, _ in movielens.LAYOUTS.values())
    return "movielens" if is_movielens or path.suffix == ".zip" or _starts_like_a_zip(path) else "letor"


def inspect(
    path: PathLike | None = None, *, kind: str | None = None, cache: PathLike | None = None
) -> DataRecord:
    """Count what a data set holds.

    Parameters
    ----------
    path : path, optional
        As for `shoal.MovieLens` and `shoal.LearningToRank`.
    kind : "movielens" or "letor", optional
        What is at the path; by default it is recognised by its files.
    cache : path, optional
        Directory to keep it in; see `cache_directory`.
    """
    kind = _kind(path, kind)
    if kind == "movielens":
        files = movielens.locate(path, cache=cache)
        ratings, features = movielens.read(files)
        return DataRecord(
            kind,
            str(files.path),
            files.layout,
            {file.name: file.stat().st_size for file in files.hashed},
            len(ratings.agent_ids),
            len(ratings.arm_ids),
            len(ratings),
            features.values.shape[1],
            float(ratings.rewards.min()),
            float(ratings.rewards.mean()),
            float(ratings.rewards.max()),
            movielens.licence(files),
        )
    parts = letor.locate(path)
    documents = letor.read(parts)
    n_documents, n_features = documents.features.shape
    return DataRecord(
        kind,
        str(path or parts[0]),
        "letor",
        {part.name: part.stat().st_size for part in parts},
        len(documents.query_ids),
        n_documents,
        n_documents,
        n_features,
        float(documents.relevance.min()),
        float(documents.relevance.mean()),
        float(documents.relevance.max()),
        LETOR_LICENCE,
    )


def prepare(
    path: PathLike | None = None,
    *,
    kind: str | None = None,
    arms: str | None = None,
    fill: str | None = None,
    cache: PathLike | None = None,
    **options: Any,
) -> PreparedRecord:
    """Prepare a data set and cache it, so that environments made from it load at once.

    Parameters
    ----------
    path, kind, cache
        As for `inspect`.
    arms, fill, **options
        As for `shoal.MovieLens` and `shoal.LearningToRank`: `n_arms`, `dim` and, for the latter, `n_groups`.
    """
    kind = _kind(path, kind)
    usual = movielens.LOADERS["shoal"] if kind == "movielens" else {"arms": "first", "fill": "paper"}
    arms, fill = arms or usual["arms"], fill or usual["fill"]
    started = time.perf_counter()
    if kind == "movielens":
        files = movielens.locate(path, cache=cache)
        source = files.path
        prepared = movielens.prepare(files, arms=arms, fill=fill, cache=cache, **options)
    else:
        parts = letor.locate(path)
        source = Path(path or parts[0])
        prepared = letor.prepare(parts, arms=arms, fill=fill, cache=cache, **options)
    filled = prepared.filled
    return PreparedRecord(
        kind,
        str(source),
        arms,
        fill,
        len(filled.agent_ids),
        len(filled.arm_ids),
        filled.features.shape[1],
        int(filled.observed.sum()),
        int((filled.features == 0.0).all(axis=1).sum()),
        len({row.tobytes() for row in filled.features}),
        time.perf_counter() - started,
        str(prepared.cache_file),
        prepared.from_cache,
    )


def errors(
    path: PathLike | None = None,
    *,
    kind: str | None = None,
    n_groups: int = letor.N_GROUPS,
    share: float = 0.2,
    seed: int = 0,
    cache: PathLike | None = None,
) -> dict[str, float]:
    """Held-out errors of the fills on a data set; see `shoal.lab.environments.ratings.held_out_errors`."""
    ratings: Ratings
    if _kind(path, kind) == "movielens":
        ratings = movielens.read_ratings(movielens.locate(path, cache=cache))
    else:
        ratings, _ = letor.group(letor.read(letor.locate(path)), n_groups)
    return held_out_errors(ratings, share=share, seed=seed)


def _starts_like_a_zip(path: Path) -> bool:
    if not path.is_file():
        return False
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def _kind(path: PathLike | None, kind: str | None) -> str:
    return kind_of(path) if kind is None else validation.one_of("kind", kind, KINDS)
