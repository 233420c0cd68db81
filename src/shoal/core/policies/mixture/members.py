"""Members of clusters: agents, and the ghosts of agents.

When an agent has changed (see `drift`), what it was before stays behind as its *ghost*: a member of a cluster
with the samples of before, which never chooses. Every member has a number: agents come first, then their
ghosts in the same order. Only this file knows how a number is made.
"""

from shoal.core.jit.compiled import compiled, inlined, spliced
from shoal.core.policies.mixture.kernels import soften_with_base
from shoal.core.policies.mixture.state import BASE, GHOST, SLOPES, Members, Pool, base_of, lift_of, scatter_of
from shoal.core.types import Matrix, Vector


@inlined
def ghost_of(members: Members, agent: int) -> int:
    """The ghost of an agent, as a member."""
    return int(members.labels.shape[0] + agent)


@inlined
def is_ghost(members: Members, member: int) -> bool:
    """Whether a member is a ghost."""
    return bool(member >= members.labels.shape[0])


@inlined
def place_of(members: Members, member: int) -> tuple[int, int]:
    """Where a member is in the arrays of `Members`: the row of its agent, the column of its kind."""
    n = members.labels.shape[0]
    return member % n, member // n


@inlined
def cluster_of(members: Members, member: int) -> int:
    """A member's cluster; negative if it is in none."""
    return int(members.labels[place_of(members, member)])


@inlined
def has_ghost(members: Members, agent: int) -> bool:
    """Whether an agent has left a ghost behind that is still in a cluster."""
    return bool(members.labels.shape[1] > GHOST and members.labels[agent, GHOST] >= 0)


@spliced
def raw_of(pool: Pool, member: int) -> Vector:
    """Packed sums of a member's own samples; a view. Without `softens` lent as they are."""
    at = place_of(pool.members, member)
    found: Vector = pool.members.raw[at] if pool.model.softens else pool.members.lent[at]
    return found


@compiled
def lend(pool: Pool, member: int) -> None:
    """Compute what a member lends from its own samples; clusters are the caller's."""
    model, members, work = pool.model, pool.members, pool.scratch
    at = place_of(members, member)
    lent, weight, scatter, lift = members.lent[at], model.weights[at[0]], scatter_of(model), lift_of(model)
    if model.softens:
        # (I + κwS)⁻¹wS: what w samples for each would tell
        soften_with_base(
            members.raw[at],
            0.0,
            0.0,
            scatter * weight,
            lift * weight,
            model.slopes,
            lent,
            work.L[0],
            work.y[0],
            work.inverse,
        )
        for m in range(lent.shape[0]):
            lent[m] *= weight
    members.lent_at[at[0], at[1], SLOPES] = scatter
    members.lent_at[at[0], at[1], BASE] = lift


@inlined
def soften_cluster(pool: Pool, sums: Vector, out: Vector, L: Matrix, y: Vector) -> None:
    """Write what sums of members tell of a further member; `L` and `y` are scratch."""
    model = pool.model
    soften_with_base(
        sums, model.prior[0], base_of(model), scatter_of(model), lift_of(model), model.slopes, out, L, y,
        pool.scratch.inverse,
    )  # fmt: skip


@inlined
def is_lent_as_known(pool: Pool, member: int) -> bool:
    """Whether what a member lends is for the scatters that hold now."""
    agent, kind = place_of(pool.members, member)
    lent_at = pool.members.lent_at[agent, kind]
    return bool(lent_at[SLOPES] == scatter_of(pool.model) and lent_at[BASE] == lift_of(pool.model))


@inlined
def weighted(pool: Pool, agent: int, out: Vector) -> None:
    """Write an agent's own sums, by its weight."""
    raw, weight = raw_of(pool, agent), pool.model.weights[agent]
    for m in range(out.shape[0]):
        out[m] = weight * raw[m]
