"""Components and the shared-neighbour shortcut against a naive search."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests import reference

from shoal.core.kernels import bits, graphs
from shoal.core.types import Booleans, Integers


@st.composite
def random_graphs(draw: st.DrawFn) -> Booleans:
    n = draw(st.one_of(st.integers(1, 12), st.integers(60, 70)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    upper = np.triu(rng.random((n, n)) < draw(st.floats(0.0, 0.6)), 1)
    return np.asarray(upper | upper.T)


def as_sets(table: Booleans) -> Integers:
    return np.array([bits.as_set(row) for row in table])


@given(random_graphs())
def test_components(graph: Booleans) -> None:
    labels = np.empty(len(graph), dtype=np.int64)
    graphs.component_labels(as_sets(~graph), labels)
    for component in reference.connected_components(graph):
        assert (labels[component] == component[0]).all()


@given(random_graphs())
def test_shared_neighbor(graph: Booleans) -> None:
    apart = as_sets(~graph)
    for i in range(0, len(graph), 1 + len(graph) // 20):
        for j in range(len(graph)):
            naive = any(graph[i, k] and graph[j, k] for k in range(len(graph)) if k not in (i, j))
            assert graphs.share_a_neighbor(apart, len(graph), i, j) == naive


@given(st.integers(0, 10**9))
def test_confidence_width(pulls: int) -> None:
    assert abs(graphs.confidence_width(pulls) - reference.F(pulls)) < 1e-15


@given(random_graphs(), st.integers(0, 2**32), st.integers(1, 5))
def test_edges_are_counted_some_rows_at_a_time(graph: Booleans, seed: int, rows: int) -> None:
    labels = np.random.default_rng(seed).integers(3, size=len(graph))
    i, j = np.nonzero(np.triu(graph, 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "ROWS", rows)
        assert graphs.count_edges(graph, labels) == (len(i), int((labels[i] == labels[j]).sum()))
        assert graphs.count_edges(graph | np.eye(len(graph), dtype=bool), None) == (len(i), 0)
