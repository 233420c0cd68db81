"""What RCLUMB and RSCLUMB share (Wang, Xie, Liu, Li and Lui 2023): rewards may be off linear by up to ε*.

A sample z that is off by ε* moves the prediction of arm x by at most `ε* |xᵀA⁻¹z|`. The sum over the pool's
samples joins the bonus, so samples themselves have to be kept: each different arm once, with who played it
and how often. Where the arms are the same in every round that is a short list.
"""

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from shoal.core.fields import COUNT, DIM, kept, log
from shoal.core.jit.compiled import compiled, inlined
from shoal.core.policy import memory
from shoal.core.policy.base import Policy
from shoal.core.policy.exploring import choose_in_row
from shoal.core.policy.steps import SCORED
from shoal.core.statistics import Statistics
from shoal.core.types import Booleans, Integers, Matrix, Vector
from shoal.core.validation import LARGEST
from shoal.lab.rivals.clustered import ReleasedParameters, first_best

ROOM = 2**10
"""Least room for samples."""


class PlayedArms(NamedTuple):
    """The arms that were played: for each, a list of the agents that played it, and how often."""

    arms: Annotated[Matrix, log(DIM, count="different")]
    first: Annotated[Integers, log(count="different", **COUNT)]  # entry of each list
    different: Annotated[Integers, kept(1, **COUNT)]
    entries: Annotated[Integers, log(3, count="listed", low=-1, below=COUNT["below"])]
    """Agent, times and next entry of the list, −1 at its end; a list's later entries are the older ones."""
    listed: Annotated[Integers, kept(1, **COUNT)]


class MisspecifiedParameters(ReleasedParameters, frozen=True, kw_only=True):
    """Parameters of RCLUMB and RSCLUMB."""

    gamma: Annotated[float, Meta(ge=0.0, le=LARGEST, description="Scale α₁ of the widths F.")] = 1.0
    tolerance: Annotated[float, Meta(ge=0.0, le=LARGEST, description="α₂: the threshold grows by α₂ε*.")] = (
        1.5
    )
    misspecification: Annotated[
        float, Meta(ge=0.0, le=LARGEST, description="ε*: how far mean rewards may be from linear.")
    ] = 0.2


class MisspecifiedRival(Policy):
    """Base of rivals whose state has `played`, `slack`, `misspecification` and `lanes` (scratch)."""

    @classmethod
    def typical(cls, world: Any) -> dict[str, Any]:
        return {}

    def _settings(self) -> dict[str, Any]:
        own = self._parameters
        return {**super()._settings(), "slack": own.tolerance * own.misspecification}

    def reserve(self, pulls: int) -> None:
        super().reserve(pulls)
        played = self.state.played
        least = int(played.listed[0]) + pulls  # there are no more different arms than entries
        if least > len(played.entries):
            room = max(2 * least, ROOM)
            memory.refuse(
                type(self).__name__, 8 * (self.dim + 4) * room, f"{room:,} samples", self.n_agents, self.dim
            )
            more = (np.zeros((room, *log.shape[1:]), log.dtype) for log in (played[0], played[1], played[3]))
            arms, first, entries = more
            for new, old in ((arms, played.arms), (first, played.first), (entries, played.entries)):
                new[: len(old)] = old
            self.state = self.state._replace(
                played=PlayedArms(arms, first, played.different, entries, played.listed)
            )
            self.pinned_state()  # lets go of the old arrays

    def _problem(self, state: Any) -> str:
        played = state.played
        agent, times, following = played.entries[: played.listed[0]].T
        first, pulls = played.first[: played.different[0]], np.zeros(len(state.local.pulls), np.int64)
        if (agent < 0).any() or (agent >= len(pulls)).any() or (first >= len(agent)).any():
            return "played names agents or entries that there are not"
        if (following >= np.arange(len(following))).any():
            return "played.entries do not lead to older ones"
        np.add.at(pulls, agent, times)
        if not np.array_equal(pulls, state.local.pulls):
            return "played does not add up to local.pulls"
        return super()._problem(state)


@compiled
def remember(played: PlayedArms, agent: int, x: Vector) -> None:
    """Note that an agent played an arm."""
    place, d = 0, x.shape[0]
    while place < played.different[0]:
        m = 0
        while m < d and played.arms[place, m] == x[m]:
            m += 1
        if m == d:
            break
        place += 1
    entry, new = -1, played.listed[0]
    if place < played.different[0]:
        entry = played.first[place]
        while entry >= 0 and played.entries[entry, 0] != agent:
            entry = played.entries[entry, 2]
    if entry >= 0:
        played.entries[entry, 1] += 1
        return
    if new >= played.entries.shape[0]:
        raise IndexError("no room for samples: call reserve(pulls) before observe")
    played.entries[new, 0] = agent
    played.entries[new, 1] = 1
    if place < played.different[0]:
        played.entries[new, 2] = played.first[place]
    else:
        played.entries[new, 2] = -1
        for m in range(d):
            played.arms[place, m] = x[m]
        played.different[0] += 1
    played.first[place] = new
    played.listed[0] = new + 1


@inlined
def select_in_doubt(
    state: Any, pool: Statistics, row: int, members: Booleans, arms: Matrix, agent: int, t: int
) -> int:
    """Choose by a row of statistics of the `members`; the bonus includes what ε* may have done to it."""
    common, choice, highest = state.common, 0, -np.inf
    # From the last arms to the first, so that the scores of the first ones remain.
    for start in range((arms.shape[0] - 1) // SCORED * SCORED, -1, -SCORED):
        here = arms[start : start + SCORED]
        choose_in_row(common, pool, row, here, agent, t, 1.0)
        add_doubt(
            state.played, members, pool.A_inv[row], here, state.misspecification, state.lanes, common.scored
        )
        k = first_best(common.scored, here.shape[0])
        if common.scored[0, k] + common.scored[1, k] >= highest:
            highest = common.scored[0, k] + common.scored[1, k]
            choice = start + k
    return choice


@compiled
def add_doubt(
    played: PlayedArms,
    members: Booleans,
    A_inv: Matrix,
    arms: Matrix,
    scale: float,
    lanes: Matrix,
    out: Matrix,
) -> None:
    """Add `scale · Σ_z |xᵀA⁻¹z|` over the members' samples z to each arm's bonus in `out`.

    `lanes` is scratch of shape (d + 2, SCORED): arms side by side.
    """
    n, d = arms.shape
    doubt, product = lanes[d], lanes[d + 1]
    for k in range(n):
        doubt[k] = 0.0
        for m in range(d):
            lanes[m, k] = 0.0
            for column in range(d):
                lanes[m, k] += A_inv[m, column] * arms[k, column]
    for place in range(played.different[0]):
        times, entry = 0, played.first[place]
        while entry >= 0:
            if members[played.entries[entry, 0]]:
                times += played.entries[entry, 1]
            entry = played.entries[entry, 2]
        if times > 0:
            for k in range(n):
                product[k] = 0.0
            for m in range(d):
                z = played.arms[place, m]
                for k in range(n):
                    product[k] += lanes[m, k] * z
            for k in range(n):
                doubt[k] += times * abs(product[k])
    for k in range(n):
        out[1, k] += scale * doubt[k]
