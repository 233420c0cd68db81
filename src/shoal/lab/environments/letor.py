"""Learning to rank as a bandit: queries are agents, groups of documents are arms, relevance is the reward.

Reads any file in LETOR or SVMlight format, such as set 1 or set 2 of the Yahoo! Learning to Rank Challenge
(Webscope C14, on request and under an agreement with Yahoo!). Documents are grouped by k-means on their
features; an arm is the centre of a group, and its reward for a query is the mean relevance of the query's own
documents in it, or the first one's.
"""

import gzip
import itertools
import os
import warnings
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Unpack

import numpy as np

from shoal.core import validation
from shoal.core.types import Integers, Vector
from shoal.lab.environments import sources
from shoal.lab.environments.ratings import (
    FIT_SEED,
    ArmFeatures,
    Numbering,
    Prepared,
    PrepareOptions,
    RatedEnvironment,
    RatedOptions,
    Ratings,
    Repeated,
    prepare_ratings,
)
from shoal.lab.environments.sources import DataUnavailable, PathLike

PARTS = ("train", "vali", "valid", "test")
"""Names of the parts that a data set may be split into."""

N_GROUPS = 100
"""Groups of documents, by default."""

REPEATED: dict[str, Repeated] = {"shoal": "mean", "authors": "first"}
"""What counts of a query's documents in one group, by loader."""

LARGEST_INDEX = 2**20
"""Larger feature indices are refused: the centres of the groups are dense, 8 MB each at this size."""


class LearningToRank(RatedEnvironment):
    """Queries that look for relevant groups of documents.

    Parameters
    ----------
    path : path, optional
        A file in LETOR or SVMlight form, `relevance qid:query feature:value …  # comment`, gzipped or not;
        or what precedes `.train.txt`, `.valid.txt` and `.test.txt` in the names of the parts of a set
        (`…/set1`); or a directory with `train.txt`, `vali.txt`, `test.txt`. Where lines have no `qid:`, a
        file of the same name and `.group` or `.query` holds the number of documents of each query in turn.
        By default the environment variable SHOAL_LETOR.
    n_agents : int
        Number N of queries, drawn from all.
    n_groups : int
        Number of groups into which k-means puts the documents.
    n_arms : int
        Number K of groups that are arms.
    dim : int
        Number of entries of a group's centre, counting from the first feature.
    loader : "shoal" or "authors"
        The reward of a query with several documents in a group: their mean relevance, or that of the first,
        as in the authors' package.
    arms : "first" or "most-rated"
        The first groups, in the order of their first documents in the file; or those in which the most
        queries have a document.
    fill : "paper" or "tuned"
        How missing rewards are predicted; see `shoal.lab.environments.ratings.FILLS`.
    noise, noise_scale
        As for `Environment`.
    param_norm : float
        Used in place of the largest norm of a true parameter, which real data does not have.
    seed : int or None
        Seed of the draw of queries. Everything else, groups included, is the same for every seed.
    cache : path, optional
        Directory for prepared data; by default the environment variable SHOAL_CACHE or the user's cache
        directory.

    Raises
    ------
    DataUnavailable
        If there is no file at the path, or the `data` extra is not installed.

    Examples
    --------
    >>> world = shoal.LearningToRank("rank.train", n_agents=50, seed=0)  # doctest: +SKIP

    Notes
    -----
    Features that a line leaves out are zero. They are numbered from 1, unless the file has a feature 0.
    With fewer distinct documents than groups, k-means leaves some groups empty; those are not arms.
    """

    def __init__(
        self,
        path: PathLike | None = None,
        *,
        n_agents: int = 100,
        n_groups: int = N_GROUPS,
        n_arms: int = 30,
        dim: int = 10,
        loader: str = "shoal",
        arms: str = "first",
        fill: str = "paper",
        cache: PathLike | None = None,
        **options: Unpack[RatedOptions],
    ) -> None:
        files = locate(path)
        prepared = prepare(
            files, n_groups=n_groups, loader=loader, n_arms=n_arms, dim=dim, arms=arms, fill=fill, cache=cache
        )
        source = ", ".join(map(str, files))
        super().__init__(prepared.filled, n_agents=n_agents, source=source, **options)
        self.data_files = tuple(files)


@dataclass(frozen=True, eq=False)
class Documents:
    """Documents with their features, relevance and query."""

    query_ids: list[str]
    queries: Integers
    """(documents,) positions in `query_ids`."""
    relevance: Vector
    """(documents,)"""
    features: Any
    """(documents, features) a SciPy array; column j is feature j + 1, or j if the file counts from 0."""


def locate(path: PathLike | None = None) -> list[Path]:
    """The files of a data set, in the order of `PARTS`."""
    given = path or os.environ.get("SHOAL_LETOR")
    if not given:
        raise DataUnavailable(
            "path must be a file in LETOR or SVMlight form (also as SHOAL_LETOR), got none. The paper's data "
            "is Yahoo! Webscope C14, which Yahoo! gives to researchers who sign its agreement; it cannot be "
            "downloaded without one"
        )
    given = os.fspath(given)
    if os.path.isfile(given):
        return [Path(given)]
    stem = os.path.join(given, "") if os.path.isdir(given) else f"{given}."
    files = [Path(f"{stem}{part}.txt{end}") for part in PARTS for end in ("", ".gz")]
    files = [file for file in files if file.is_file()]
    if not files:
        raise DataUnavailable(
            f"path must be a file in LETOR or SVMlight form, there is none at {given} nor at {stem}train.txt"
        )
    return files


def prepare(
    files: list[Path], *, n_groups: int = N_GROUPS, loader: str = "shoal", **how: Unpack[PrepareOptions]
) -> Prepared:
    """Read the files, group the documents and fill in missing rewards, or load the result from the cache."""
    n_groups = validation.positive_int("n_groups", n_groups)
    repeated = REPEATED[validation.one_of("loader", loader, tuple(REPEATED))]
    hashed = [file for part in files for file in (part, _group_file(part)) if file is not None]

    def grouped() -> tuple[Ratings, ArmFeatures]:
        return group(read(files), n_groups, repeated=repeated, source=str(files[0]))

    return prepare_ratings("letor", hashed, grouped, **how, n_groups=n_groups, repeated=repeated)


def group(
    documents: Documents, n_groups: int, *, repeated: Repeated = "mean", source: str = "documents"
) -> tuple[Ratings, ArmFeatures]:
    """Group documents by k-means: each query's relevance in each group, and the groups' centres.

    `repeated` is for several documents of a query in a group, see `Ratings.collect`.
    """
    n_documents = len(documents.relevance)
    if n_groups > n_documents:
        raise ValueError(f"n_groups must be at most {n_documents}, the documents in {source}, got {n_groups}")
    k_means = sources.need("sklearn.cluster").KMeans(n_groups, n_init=1, random_state=FIT_SEED)
    # One thread: otherwise the order of summation, and so the last digits, would depend on the machine.
    one_thread = sources.need("threadpoolctl").threadpool_limits(limits=1)
    duplicates = sources.need("sklearn.exceptions").ConvergenceWarning
    with one_thread, warnings.catch_warnings():
        warnings.simplefilter("ignore", duplicates)  # fewer distinct documents than groups: some stay empty
        labels = k_means.fit_predict(documents.features)
    # K-means numbers groups arbitrarily. Number them by their first documents instead, without empty ones:
    # `order[r]` is the position in `used` of the group that comes r-th, `rank` the inverse permutation.
    used, first, members = np.unique(labels, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.argsort(order)
    ratings = Ratings.collect(
        documents.query_ids,
        range(len(used)),
        documents.queries,
        rank[members],
        documents.relevance,
        repeated=repeated,
    )
    return ratings, ArmFeatures(np.arange(len(used)), k_means.cluster_centers_[used[order]], source)


def read(files: list[Path]) -> Documents:
    """Read documents; a query that occurs in several files is one query."""
    from scipy.sparse import csr_array

    # Three flat arrays that grow line by line make a sparse matrix in CSR form: the features of document n
    # are `indices[starts[n] : starts[n + 1]]`. Lists would take several times the memory.
    query_codes = Numbering()
    queries, relevance = array("q"), array("d")
    starts, indices, values = array("i", [0]), array("i"), array("d")
    for file in files:
        for label, query, features in _documents(file):
            queries.append(query_codes[query])
            relevance.append(label)
            indices.extend(features)
            values.extend(features.values())
            starts.append(len(indices))
    if not indices:
        raise ValueError(f"{files[0]}: no documents with features")
    columns = np.asarray(indices)
    columns = columns - min(1, int(columns.min()))  # numbered from 1, unless there is a feature 0
    shape = (len(relevance), int(columns.max()) + 1)
    matrix = csr_array((np.asarray(values), columns, np.asarray(starts)), shape=shape)
    return Documents(list(query_codes), np.asarray(queries), np.asarray(relevance), matrix)


def _documents(file: Path) -> Iterator[tuple[float, str, dict[int, float]]]:
    """Relevance, query and features of each document.

    The first document decides where queries are named: `qid:` on every line, or counts in a second file.
    """
    by_count: Iterator[str] | None = None
    is_first = True
    with sources.reading_file(file), _open(file) as lines:
        for number, line in enumerate(lines, start=1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            try:
                label, query, features = _parse(words)
            except ValueError:
                form = "'relevance qid:query feature:value …'"
                found = line.strip() if len(line) < 80 else f"{line[:80]}…"
                raise ValueError(f"{file}:{number}: expected {form}, got {found!r}") from None
            if (largest := max(features, default=0)) > LARGEST_INDEX:
                raise ValueError(
                    f"{file}:{number}: feature {largest} is too large: indices must be at most "
                    f"{LARGEST_INDEX}"
                )
            if is_first and query is None:
                by_count = _queries_by_count(file, number)
            is_first = False
            if (query is None) != (by_count is not None):
                raise ValueError(f"{file}:{number}: expected 'qid:' on every line or on none")
            if by_count is not None:
                query = next(by_count, None)
                if query is None:
                    raise ValueError(f"{file}:{number}: more documents than {_group_file(file)} counts")
            assert query is not None  # one or the other gave it
            yield label, query, features
    if by_count is not None and next(by_count, None) is not None:
        raise ValueError(f"{file}: fewer documents than {_group_file(file)} counts")


def _parse(words: list[str]) -> tuple[float, str | None, dict[int, float]]:
    """Relevance, query (None if missing) and features of one line; a bare ValueError if it is malformed."""
    label = float(words[0])
    query = None
    pairs = words[1:]
    if pairs and pairs[0].startswith("qid:"):
        query = pairs[0].removeprefix("qid:")
        pairs = pairs[1:]
    features = {}
    for pair in pairs:
        index, _, value = pair.partition(":")
        features[int(index)] = float(value)
    are_numbers = all(abs(value) <= validation.LARGEST for value in (label, *features.values()))
    # Fewer features than pairs: an index occurs twice.
    if query == "" or not are_numbers or len(features) < len(pairs) or min(features, default=0) < 0:
        raise ValueError
    return label, query, features


def _queries_by_count(file: Path, number: int) -> Iterator[str]:
    """The query of each document, by the counts in the file beside `file`."""
    beside = _group_file(file)
    if beside is None:
        raise ValueError(
            f"{file}:{number}: no 'qid:', and no {file.name}.group or {file.name}.query beside the file "
            "with the number of documents of each query"
        )
    with sources.reading_file(beside):
        lines = beside.read_text(encoding="utf-8").splitlines()
    runs = []
    for line_number, line in enumerate(lines, start=1):
        if count := line.strip():
            if not count.isdecimal() or len(count) > 18:
                found = line if len(line) < 80 else f"{line[:80]}…"
                raise ValueError(f"{beside}:{line_number}: expected a number of documents, got {found!r}")
            # Lazily, because a count may be wrong and larger than the memory.
            runs.append(itertools.repeat(f"{file.name}:{line_number}", int(count)))
    return itertools.chain.from_iterable(runs)


def _group_file(file: Path) -> Path | None:
    stems = [str(file), str(file).removesuffix(".gz")]
    beside = (Path(f"{stem}{end}") for stem in stems for end in (".group", ".query"))
    return next((path for path in beside if path.is_file()), None)


def _open(file: Path) -> IO[str]:
    with open(file, "rb") as start:
        is_gzip = start.read(2) == b"\x1f\x8b"
    if is_gzip:
        return gzip.open(file, "rt", encoding="utf-8", errors="replace")
    return open(file, encoding="utf-8", errors="replace")
