"""LinUCB on the true clusters: the bound that no policy without labels can expect to reach.

The labels are given, each cluster pools the samples of all its agents from the first round on.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta
from msgspec.structs import replace

from shoal.core import validation
from shoal.core.fields import AGENTS, CLUSTERS, derived, rows, scratch
from shoal.core.policy.base import Sharing
from shoal.core.policy.clustered import ClusteredPolicy, observe_in_cluster, select_from_cluster
from shoal.core.policy.parameters import Parameters
from shoal.core.policy.steps import Common, step
from shoal.core.statistics import Statistics, start_rows
from shoal.core.styles import LineStyle
from shoal.core.types import Booleans, Integers, Matrix, Vector


class OracleState(NamedTuple):
    """State of Oracle. Clusters are numbered in the order in which their labels first appear."""

    common: Common
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Annotated[Statistics, rows(CLUSTERS)]
    labels: Annotated[Integers, derived(AGENTS)]
    sizes: Annotated[Integers, derived(CLUSTERS)]  # active members
    members: Annotated[Booleans, scratch(AGENTS)]


class OracleParameters(Parameters, frozen=True, kw_only=True):
    """Parameters of Oracle."""

    labels: Annotated[Any, Meta(description="The true cluster of each agent, integers of at least 0.")]


class Oracle(ClusteredPolicy):
    """LinUCB with the samples of all agents of the same label pooled.

    Examples
    --------
    >>> import shoal
    >>> policy = shoal.Oracle(n_agents=4, dim=2, labels=[0, 1, 0, 1])
    >>> policy.update(0, [0.0, 1.0], reward=1.0)
    >>> policy.select(2, [[1.0, 0.0], [0.0, 1.0]])  # learns from agent 0
    1
    """

    name = "oracle"
    label = "Oracle"
    line_style = LineStyle("#3a3a3a", "+")
    in_paper = True

    Parameters = OracleParameters
    State = OracleState

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {"labels": world.labels}

    def __init__(self, n_agents: int, dim: int, **parameters: Any) -> None:
        if "labels" in parameters:
            _check_labels(parameters["labels"], validation.natural("n_agents", n_agents))
        super().__init__(n_agents, dim, **parameters)

    def _configure(self, dim: int, parameters: Mapping[str, Any]) -> None:
        if "labels" in parameters:
            parameters = {
                **parameters,
                "labels": _check_labels(parameters["labels"], len(parameters["labels"])),
            }
        super()._configure(dim, parameters)
        self._clusters: dict[int, int] = {}
        self._number(self._parameters.labels)

    def _number(self, labels: Integers) -> Integers:
        """The clusters of some agents, new labels getting new numbers."""
        return np.array(
            [self._clusters.setdefault(label, len(self._clusters)) for label in labels.tolist()], int
        )

    @property
    def labels(self) -> Integers:
        """Label of each agent, as given, shape (N,); a copy."""
        return np.array(self._parameters.labels)

    def _sizes(self, n_agents: int) -> dict[str, int]:
        return {**super()._sizes(n_agents), "clusters": len(self._clusters)}

    def _sizes_ahead(self, n_agents: int, present: int) -> dict[str, int]:
        clusters = -(-len(self._clusters) * n_agents // max(present, 1))
        return {**super()._sizes(n_agents), "clusters": clusters}

    def add_agents(
        self, n: int = 1, *, sharing: Sharing = "both", labels: Sequence[int] | Integers | None = None
    ) -> Integers:
        """Add `n` agents with the given true labels and return their ids."""
        if labels is None:
            raise ValueError("labels must be given for the agents added to Oracle")
        checked = _check_labels(labels, validation.positive_int("n", n))
        with self.lock:
            before = self._parameters, dict(self._clusters)
            self._parameters = replace(before[0], labels=np.concatenate([before[0].labels, checked]))
            self._number(checked)
            try:
                return super().add_agents(n, sharing=sharing)
            except BaseException:
                self._parameters, self._clusters = before
                raise

    def _join(self, state: OracleState, first: int) -> None:
        start_rows(state.pool, len(self.state.sizes) if first else 0, state.common.ridge)
        state.labels[first:] = self._number(self._parameters.labels[first:])
        np.add.at(state.sizes, state.labels[first:], 1)

    def _problem(self, state: OracleState) -> str:
        if len(self._parameters.labels) != len(state.labels):
            return f"there are {len(self._parameters.labels)} labels for {len(state.labels)} agents"
        self._derive(state)
        return super()._problem(state)

    def _derive(self, state: OracleState) -> None:
        state.labels[:] = self._number(self._parameters.labels)
        super()._derive(state)


def _check_labels(labels: Any, n_agents: int) -> Integers:
    array = np.asarray(labels, dtype=None if n_agents else np.int64)  # an empty list is one of floats
    if array.shape != (n_agents,) or not np.issubdtype(array.dtype, np.integer) or (array < 0).any():
        raise ValueError(f"labels must be {n_agents} integers of at least 0, got {labels!r:.200}")
    return array.astype(np.int64)


@step("select", OracleState)
def select(state: OracleState, agent: int, arms: Matrix, t: int) -> int:
    return select_from_cluster(state, agent, arms, t)


@step("observe", OracleState)
def observe(state: OracleState, agent: int, x: Vector, reward: float, t: int) -> None:
    observe_in_cluster(state, agent, x, reward)


@step("revise", OracleState)
def revise(state: OracleState, agent: int, t: int) -> None:
    pass
