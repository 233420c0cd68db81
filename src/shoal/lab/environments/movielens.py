"""MovieLens as a bandit: users are agents, movies are arms, genre flags are features, ratings are rewards.

F. M. Harper and J. A. Konstan, "The MovieLens Datasets: History and Context", ACM TiiS 5(4), 2015. Their
terms allow research, forbid commercial use without permission, and ask for this citation; the text comes
with the data.
"""

import contextlib
import csv
import itertools
import os
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import IO, Unpack

import numpy as np

from shoal.core import validation
from shoal.lab.environments import sources
from shoal.lab.environments.ratings import (
    ArmFeatures,
    Numbering,
    Prepared,
    PrepareOptions,
    RatedEnvironment,
    RatedOptions,
    Ratings,
    prepare_ratings,
)
from shoal.lab.environments.sources import DataUnavailable, PathLike

DEFAULT = "ml-latest-small"
"""The data set used if no path is given."""

GENRES = (
    "Action",
    "Adventure",
    "Animation",
    "Children",
    "Comedy",
    "Crime",
    "Documentary",
    "Drama",
    "Fantasy",
    "Film-Noir",
    "Horror",
    "IMAX",
    "Musical",
    "Mystery",
    "Romance",
    "Sci-Fi",
    "Thriller",
    "War",
    "Western",
)
"""One feature each, in this order in every format, so that the first ten are always the same genres."""

FALLBACK_LICENCE = """\
There is no README beside the data. MovieLens data sets may be used for research, with acknowledgement and
without implying endorsement; commercial use needs permission. See
https://grouplens.org/datasets/movielens/."""

NOT_GENRES = ("(no genres listed)", "unknown", "")
"""What the files write for a movie without a genre; all its flags are zero."""

GENRES_100K = ("unknown", *(genre for genre in GENRES if genre != "IMAX"))
"""The order of the flags in `u.item`."""


LOADERS = {
    "shoal": {"arms": "most-rated", "fill": "tuned"},
    "authors": {"arms": "first", "fill": "paper"},
}
"""Ways to read the data: the most informative one, and that of the paper's authors, with their `arms` and
`fill`."""


class MovieLens(RatedEnvironment):
    """Users who rate movies.

    Parameters
    ----------
    path : path, optional
        The directory or the zip of a MovieLens data set, or the name of one to download: ml-latest-small,
        ml-100k, ml-1m, ml-20m or ml-25m. By default the environment variable SHOAL_MOVIELENS, or else
        ml-latest-small.
    n_agents : int
        Number N of users, drawn from all those with a rating.
    n_arms : int
        Number K of movies, chosen from those with a rating.
    dim : int
        Number of genre flags, in the order of `GENRES`; in that of the file with `loader="authors"`.
    loader : "shoal" or "authors"
        "authors" reads the files as the authors' package does (see Notes). Sets `arms` and `fill` where they
        are not given: the most-rated movies and the tuned fill, or the first movies and the paper's fill.
    arms : "first" or "most-rated"
        The first movies of the movie file, which is sorted by id; or those with the most ratings.
    fill : "paper" or "tuned"
        How missing ratings are predicted; see `shoal.lab.environments.ratings.FILLS`.
    noise, noise_scale
        As for `Environment`.
    param_norm : float
        Used in place of the largest norm of a true parameter, which real data does not have.
    seed : int or None
        Seed of the draw of users. Everything else is the same for every seed.
    cache : path, optional
        Directory for downloads and prepared data; by default the environment variable SHOAL_CACHE or the
        user's cache directory.

    Raises
    ------
    DataUnavailable
        If the data is not there and cannot be downloaded, or the `data` extra is not installed.

    Examples
    --------
    >>> world = shoal.MovieLens("ml-latest-small", n_agents=50, seed=0)  # doctest: +SKIP

    Notes
    -----
    A movie whose genres all come after the first `dim` has zero features; see `RatedEnvironment`.

    With `loader="authors"` arm k = 0, …, K − 1 has the ratings of the movie with id k, but the genres of the
    one with id k + 1: ids start at 1, and the authors' package counts arms from 0. No movie has id 0, so all
    rewards of arm 0 are predicted. Genres are numbered in the order in which the file first names them.
    """

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        n_agents: int = 100,
        n_arms: int = 30,
        dim: int = 10,
        loader: str = "shoal",
        arms: str | None = None,
        fill: str | None = None,
        cache: PathLike | None = None,
        **options: Unpack[RatedOptions],
    ) -> None:
        own = LOADERS[validation.one_of("loader", loader, tuple(LOADERS))]
        arms, fill = arms or own["arms"], fill or own["fill"]
        files = locate(path, cache=cache)
        prepared = prepare(files, loader=loader, n_arms=n_arms, dim=dim, arms=arms, fill=fill, cache=cache)
        source = str(files.ratings)
        super().__init__(prepared.filled, n_agents=n_agents, source=source, **options)
        self.data_files = tuple(files.hashed)


@dataclass(frozen=True)
class Files:
    """The files of one MovieLens data set, in a directory or a zip."""

    path: Path
    """The directory or zip that was given."""
    layout: str
    """"csv", "dat" or "100k"."""
    ratings: Traversable
    movies: Traversable
    readme: Traversable | None

    @property
    def hashed(self) -> list[Path]:
        """The files on disk whose content determines what is read."""
        if self.path.is_file():
            return [self.path]
        return [self.path / self.ratings.name, self.path / self.movies.name]


LAYOUTS = {
    "csv": ("ratings.csv", "movies.csv"),
    "dat": ("ratings.dat", "movies.dat"),
    "100k": ("u.data", "u.item"),
}


def locate(path: PathLike | None = None, *, cache: PathLike | None = None) -> Files:
    """Find the files and the layout of a data set, downloading it if `path` is the name of one."""
    if path is None:
        path = os.environ.get("SHOAL_MOVIELENS") or DEFAULT
    if os.fspath(path) in sources.MOVIELENS_SHA256 and not Path(path).exists():
        path = sources.fetch(os.fspath(path), cache=cache)
    path = Path(path)
    if not path.exists():
        names = ", ".join(sources.MOVIELENS_SHA256)
        raise DataUnavailable(
            f"path must be the directory or the zip of a MovieLens data set, or one of {names} "
            f"to download it; there is no {path}"
        )
    with sources.reading_archive(path):
        root: Traversable = path if path.is_dir() else zipfile.Path(zipfile.ZipFile(path))
        folders = [root]
        if not path.is_dir():
            folders += [folder for folder in root.iterdir() if folder.is_dir()]
        listings = [{entry.name: entry for entry in folder.iterdir()} for folder in folders]
    for names_here in listings:
        readme = names_here.get("README.txt", names_here.get("README"))
        for layout, (ratings, movies) in LAYOUTS.items():
            if ratings in names_here and movies in names_here:
                return Files(path, layout, names_here[ratings], names_here[movies], readme)
    expected = "; ".join(" and ".join(pair) for pair in LAYOUTS.values())
    raise ValueError(f"{path}: not a MovieLens data set, which has {expected}")


def prepare(files: Files, *, loader: str = "shoal", **how: Unpack[PrepareOptions]) -> Prepared:
    """Read the files and fill in missing ratings, or load the result from the cache."""
    n_arms = how.get("n_arms")
    if loader == "authors" and (n_arms is None or how.get("arms") != "first"):
        raise ValueError(
            f"arms must be 'first' and n_arms a number with loader='authors', got {how.get('arms')!r} and "
            f"{n_arms}"
        )

    def table() -> tuple[Ratings, ArmFeatures]:
        return read(files) if n_arms is None or loader == "shoal" else read_as_authors(files, n_arms)

    return prepare_ratings("movielens", files.hashed, table, **how, loader=loader)


def licence(files: Files) -> str:
    """The terms, from the README of the data set."""
    if files.readme is None:
        return FALLBACK_LICENCE
    with sources.reading_archive(files.path):
        lines = files.readme.read_bytes().decode("utf-8", errors="replace").splitlines()
    headings = [i for i in range(len(lines) - 1) if lines[i].strip() and set(lines[i + 1].strip()) == {"="}]
    for start, stop in itertools.pairwise([*headings, len(lines)]):
        if "license" in lines[start].lower():
            return "\n".join(lines[start + 2 : stop]).strip()
    return "\n".join(lines).strip()


def read(files: Files) -> tuple[Ratings, ArmFeatures]:
    """All ratings, in file order, and the genre flags of all movies."""
    return read_ratings(files), read_movies(files)


def read_as_authors(files: Files, n_arms: int) -> tuple[Ratings, ArmFeatures]:
    """The same with arms 0, …, `n_arms` − 1 first: arm k has movie k's ratings and movie k + 1's genres."""
    ratings, movies = read_ratings(files), read_movies(files, names=None)
    flags = dict(zip(movies.ids.tolist(), movies.values, strict=True))
    missing = [movie for movie in range(1, n_arms + 1) if movie not in flags]
    if missing:
        raise ValueError(f"{movies.source}: loader='authors' needs movies 1 to {n_arms}, no {missing[0]}")
    unrated = sorted({*range(n_arms)} - {*ratings.arm_ids.tolist()})
    ids = np.array([*ratings.arm_ids.tolist(), *unrated])
    none = np.zeros(movies.values.shape[1])  # of movies far behind the first ones, which are no arms
    following = [flags.get(movie + 1, none) for movie in sorted(ids.tolist())]
    return replace(ratings, arm_ids=ids), ArmFeatures(np.sort(ids), np.array(following), movies.source)


def read_ratings(files: Files) -> Ratings:
    """The ratings, read line by line: 16 bytes of memory for each."""
    separator = {"csv": ",", "dat": "::", "100k": "\t"}[files.layout]
    header = "userId,movieId,rating,timestamp"
    form = header.replace(",", separator)
    user_codes, movie_codes = Numbering(), Numbering()
    users, movies, rewards = array("i"), array("i"), array("d")
    with _open(files, files.ratings) as lines:
        first = 1
        if files.layout == "csv":
            first = 2
            found = lines.readline().strip()
            if found != header:
                raise ValueError(f"{files.ratings}:1: expected the header {header!r}, got {found!r}")
        for number, line in enumerate(lines, start=first):
            try:
                user, movie, text, _ = line.split(separator)
                reward = float(text)
                if not abs(reward) <= validation.LARGEST:
                    raise ValueError
                users.append(user_codes[_id(user)])
                movies.append(movie_codes[_id(movie)])
                rewards.append(reward)
            except ValueError:
                if line.isspace():
                    continue
                found = line.rstrip("\n")
                raise ValueError(f"{files.ratings}:{number}: expected {form!r}, got {found!r}") from None
    if not rewards:
        raise ValueError(f"{files.ratings}: no ratings")
    return Ratings.collect(list(user_codes), list(movie_codes), users, movies, rewards)


def read_movies(files: Files, names: Sequence[str] | None = GENRES) -> ArmFeatures:
    """The genre flags of every movie, in file order; columns in the order of `names`, or of the file if None.

    Genres that are not among the names come after them, in alphabetical order.
    """
    with _open(files, files.movies) as lines:
        movies = list(_read_genres(lines, files))
    found = dict.fromkeys(genre for _, genres in movies for genre in genres if genre not in NOT_GENRES)
    names = list(found) if names is None else [*names, *sorted(found.keys() - {*names})]
    column = {name: j for j, name in enumerate(names)}
    flags = np.zeros((len(movies), len(names)))
    for row, (_, genres) in enumerate(movies):
        for genre in genres:
            if genre not in NOT_GENRES:
                flags[row, column[genre]] = 1.0
    return ArmFeatures(np.array([movie for movie, _ in movies]), flags, str(files.movies))


@contextlib.contextmanager
def _open(files: Files, file: Traversable) -> Iterator[IO[str]]:
    """The lines of one of the files."""
    if files.path.is_file():
        # Damage in a zip may show at any point, even at the very end, when its checksum is compared. Reading
        # the file once in advance keeps such errors apart from those about a line.
        with sources.reading_archive(files.path), file.open("rb") as content:
            while content.read(2**20):
                pass
    # The older sets are in Latin-1, but only titles, which are not used, have more than ASCII.
    with sources.reading_file(files.path), file.open(encoding="utf-8", errors="replace") as lines:
        yield lines


def _id(text: str) -> int:
    number = int(text)
    if not -(2**63) <= number < 2**63:  # does not fit into an array of ids
        raise ValueError
    return number


def _read_genres(lines: IO[str], files: Files) -> Iterator[tuple[int, list[str]]]:
    separator, expected = {
        "csv": (",", "'movieId,title,genre|genre|…'"),
        "dat": ("::", "'movieId::title::genre|genre|…'"),
        "100k": ("|", f"'movie id|title|date|date|address|' and {len(GENRES_100K)} flags, 0 or 1"),
    }[files.layout]
    reader = csv.reader(lines)
    if files.layout == "csv" and (found := next(reader, [])) != ["movieId", "title", "genres"]:
        header = "movieId,title,genres"
        raise ValueError(f"{files.movies}:1: expected the header {header!r}, got {','.join(found)!r}")
    rows = reader if files.layout == "csv" else (line.strip().split(separator) for line in lines)
    for number, row in enumerate(rows, start=1):
        if row in ([], [""]):
            continue
        try:
            yield _id(row[0]), (_flagged if files.layout == "100k" else _split_genres)(row[1:])
        except ValueError:
            place = f"{files.movies}:{reader.line_num or number}"
            raise ValueError(f"{place}: expected {expected}, got {separator.join(row)!r}") from None


def _flagged(rest: list[str]) -> list[str]:
    flags = dict(zip(GENRES_100K, rest[-len(GENRES_100K) :], strict=True))
    if len(rest) != 4 + len(GENRES_100K) or not set(flags.values()) <= {"0", "1"}:
        raise ValueError
    return [genre for genre, flag in flags.items() if flag == "1"]


def _split_genres(rest: list[str]) -> list[str]:
    _, text = rest
    return ["Children" if genre == "Children's" else genre for genre in text.split("|")]
