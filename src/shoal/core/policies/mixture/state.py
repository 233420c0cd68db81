"""What a mixture knows, as declared arrays: the model, members, clusters, what change is recognised by."""

from typing import Annotated, NamedTuple

import numpy as np

from shoal.core.fields import (
    AGENTS,
    CLUSTERS,
    COUNT,
    DIM,
    PACKED,
    TRIANGLE,
    Size,
    derived,
    kept,
    rows,
    scratch,
    setting,
)
from shoal.core.jit.compiled import inlined
from shoal.core.kernels.ucb import LANES
from shoal.core.policy.steps import LiveCommon
from shoal.core.statistics import Statistics
from shoal.core.types import Integers, Matrix, Tensor, Vector
from shoal.core.validation import LARGEST, SMALLEST

RECENT = 24
"""Samples of an agent that are kept one by one."""
SCATTERS = (0.0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Scatters to choose from, where it is learned."""
LIFTS = (0.0, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Scatters of the intercept of clicks to choose from, where scatter is learned."""

KINDS = Size("kinds", grows=False)
"""Kinds of members that there are: agents, and where agents may change, ghosts."""
GRID = Size("grid", grows=False)
"""Scatters to choose from; one where it is given."""
SOFT = Size("soft")
"""Agents where what they lend may differ from what they have, else 0."""
CHANGING = Size("changing")
"""Agents that may change: all, or none."""
MOVING = Size("moving")
"""Clusters that may move: all, or none."""
COMPONENTS = Size("components")
"""Clusters that may count in a choice: a cluster with a share of LEAST_SHARE each."""
SOFTENED = Size("softened")
"""Clusters whose softened sums are remembered, and one for a new cluster."""
VOTERS = Size("voters")
"""Agents where the scatter is learned, else 0."""
FEATURES = Size("features", grows=False)
"""Features that describe an agent."""
DESCRIBED = Size("described")
"""Agents where these have features, else 0."""
PROFILED = Size("profiled")
"""Clusters where agents have features, else 0."""
TEMPERS = Size("tempers", grows=False)
"""Tempers to choose from where agents have features, else 0."""

# What the entries of short arrays are.
AGENT, GHOST = range(2)
"""Kinds of members: columns of the arrays of `Members` and of `Clusters.sizes`."""
SLOPES, BASE = range(2)
"""`Model.position` and `Members.lent_at`: the scatter of slopes, and that of the intercept of clicks."""
SQUARES, SAMPLES = range(2)
"""`Model.noise`: a sum of squared errors, and of how many. Their ratio is the noise variance."""
CLUSTER, SEEN = range(2)
"""`Clusters.resummed`: the cluster being summed anew, −1 if none, and the members looked at so far."""
FORM, LOGDET = range(2)
"""`MixtureScratch.alone`: the two terms of the evidence."""
NORM, KNOWN = range(2)
"""`Clusters.scale`: ‖θ̂‖² and d − λ tr A⁻¹, the number of directions that are known."""
TESTS, CHANGES = range(2)
"""`Drift.rate`: tests of agents, and changes found; both fade."""
CENTRE, WITHIN, BETWEEN = range(3)
"""`MixtureScratch.variances`: mean of a feature, its variance within clusters, and between them."""
PULLS, TO_TEND, LAST_TENDED = range(3)
"""`MixtureState.upkeep`: pulls so far, members still to bring up to date, and the one that was last."""
NU, CENTER = range(2)
"""`Model.unequal`: ν, 0 if agents do not differ in noise, and s₀²."""

# What an agent's samples say of units and noise (see `noise`): places in a row of `MixtureState.looks`.
RIDGES, NOISES = 10, 6
"""Ridges that are tried for agents alone, and values of ν."""
AGENTS_SEEN, PULLS_SEEN, TRACE, REWARDS, KNOWN_ERRORS = range(5)
"""1, samples, tr Σ x xᵀ, Σ y² and n − d + λ₀ tr A⁻¹, the number of errors that the samples are good for.

Of clicks, the sum of their weights, and the trace without the intercept."""
FORMS = 5
"""bᵀA⁻¹b under each ridge."""
LOGDETS = FORMS + RIDGES
"""log det A/λ under each ridge."""
PRECISIONS = LOGDETS + RIDGES
"""The agent's expected precision under each ν."""
LIKELIHOODS = PRECISIONS + NOISES
"""How probable its errors are under each ν, as a logarithm."""
LOOK = LIKELIHOODS + NOISES


class Model(NamedTuple):
    """What evidence is measured with."""

    ridge: Annotated[float, setting()]
    clicks: Annotated[bool, setting()]  # whether the last coordinate is their intercept
    slopes: Annotated[int, setting()]  # coordinates but that
    log_concentration: Annotated[float, setting()]
    softens: Annotated[bool, setting()]  # whether what is lent may differ from the samples' sums
    noise: Annotated[Vector, kept(2, low=0.0)]  # at SQUARES and SAMPLES
    grid: Annotated[Vector, derived(GRID)]  # scatters to choose from; behind them, those of an intercept
    position: Annotated[Integers, kept(2, low=0, below=GRID)]  # those that hold now, at SLOPES and BASE
    unit: Annotated[Vector, kept(1, low=SMALLEST, fill=1.0)]  # mean square of arms' entries, as last heeded
    prior: Annotated[Vector, kept(1, low=SMALLEST, fill=1.0)]  # ridge of the clusters
    weights: Annotated[Vector, kept(AGENTS, low=SMALLEST, fill=1.0)]  # s² over the agent's own noise variance
    unequal: Annotated[Vector, kept(2, low=0.0)]  # at NU and CENTER
    temper_tally: Annotated[Vector, kept(TEMPERS)]  # sums of the agents' votes for each temper of features


class Members(NamedTuple):
    """A row for each agent, with a column for itself and, where agents may change, one for its ghost."""

    raw: Annotated[Tensor, kept(SOFT, KINDS, PACKED)]  # packed Σ x xᵀ and b, where not lent as they are
    lent: Annotated[Tensor, kept(AGENTS, KINDS, PACKED)]  # what of them is lent
    labels: Annotated[Integers, kept(AGENTS, KINDS, low=0, below=CLUSTERS, own=True)]  # −1 − row: in none
    lent_at: Annotated[Tensor, kept(AGENTS, KINDS, 2, low=0.0)]  # scatters that `lent` is for
    heeded: Annotated[Integers, kept(AGENTS, KINDS, **COUNT)]  # alarms of its cluster that it has heeded
    features: Annotated[Matrix, kept(DESCRIBED, FEATURES, nan=True, low=-LARGEST)]  # NaN: missing


class Profiles(NamedTuple):
    """What the agents of a cluster are like: of each feature, of those who have it."""

    counts: Annotated[Matrix, kept(PROFILED, FEATURES, low=0.0)]  # how many they are
    means: Annotated[Matrix, kept(PROFILED, FEATURES)]
    squares: Annotated[Matrix, kept(PROFILED, FEATURES, low=0.0)]  # Σ of squared distances from the mean


class Clusters(NamedTuple):
    """One row per cluster; rows in use are listed in `used`. There are as many rows as members."""

    sums: Annotated[Matrix, kept(CLUSTERS, PACKED)]  # packed Σ x xᵀ and b that members lend, removed ones too
    form: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # bᵀA⁻¹b
    logdet: Annotated[Vector, kept(CLUSTERS)]  # log det A
    outdated: Annotated[Integers, kept(CLUSTERS, low=0, below=2)]  # 1 while the two above lack a sample
    sizes: Annotated[Integers, derived(CLUSTERS, KINDS)]  # members; of the agents, active ones
    removed: Annotated[Integers, derived(CLUSTERS)]  # agents that were removed, but not withdrawn
    peak: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # largest entry of the sums since they were last summed
    changes: Annotated[Integers, kept(CLUSTERS, **COUNT)]  # changes since then
    scale: Annotated[Matrix, kept(CLUSTERS, 2)]  # size of θ̂, at NORM and KNOWN; computed now and then
    pending: Annotated[Matrix, kept(CLUSTERS + 1, TRIANGLE)]  # of pending pulls, at 1 + cluster; 0: in none
    waiting: Annotated[Integers, kept(CLUSTERS + 1, **COUNT)]  # how many
    recent: Annotated[Matrix, kept(MOVING, PACKED)]  # packed sums of the latest samples, fading
    cusum: Annotated[Vector, kept(CLUSTERS, low=0.0)]  # evidence that the cluster has moved
    alarms: Annotated[Integers, kept(CLUSTERS, **COUNT)]  # times that it was found to have
    used: Annotated[Integers, derived(CLUSTERS)]  # rows in use, in order
    n_used: Annotated[Integers, derived(1)]  # how many
    profiles: Profiles
    resummed: Annotated[Integers, kept(2, low=-1, below=CLUSTERS + 1)]  # at CLUSTER and SEEN
    fresh: Annotated[Vector, kept(PACKED)]  # the sum over the members seen


class MixtureScratch(NamedTuple):
    """Work space."""

    total: Annotated[Vector, scratch(PACKED)]  # packed sums
    rest: Annotated[Vector, scratch(PACKED)]  # packed sums of a member's cluster without it
    data: Annotated[Vector, scratch(PACKED)]  # packed sums, softened
    part: Annotated[Vector, scratch(PACKED)]  # packed sums of some of an agent's samples
    softened: Annotated[Matrix, scratch(SOFTENED, PACKED)]  # a cluster's sums, softened, at 1 + cluster
    softened_from: Annotated[Matrix, scratch(SOFTENED, PACKED + 3)]  # those sums, ridge and scatters
    L: Annotated[Tensor, scratch(COMPONENTS, DIM, DIM)]  # factors
    y: Annotated[Matrix, scratch(COMPONENTS, DIM)]  # L⁻¹ b
    inverse: Annotated[Tensor, scratch(2, DIM, DIM)]
    lanes: Annotated[Matrix, scratch(DIM + 7, LANES)]  # for the scores
    chances: Annotated[Vector, scratch(CLUSTERS + 1)]  # probability of each cluster in use, then of a new one
    shares: Annotated[Vector, scratch(CLUSTERS + 1)]  # those that count in the choice
    hidden: Annotated[Vector, scratch(CLUSTERS + 1)]  # their ridge bonuses
    forms: Annotated[Vector, scratch(CLUSTERS + 1)]  # bᵀA⁻¹b of the cluster with the member
    logdets: Annotated[Vector, scratch(CLUSTERS + 1)]  # its log det A
    alone: Annotated[Vector, scratch(2)]  # the same of the cluster without the member, at FORM and LOGDET
    variances: Annotated[Matrix, scratch(3, FEATURES)]  # at CENTRE, WITHIN and BETWEEN
    ratios: Annotated[Vector, scratch(PROFILED + 1)]  # log p(z | cluster) / p(z)
    gains: Annotated[Vector, scratch(PROFILED + 1)]  # log-weights of the clusters without features
    priors: Annotated[Vector, scratch(PROFILED + 1)]  # those without samples, too


class Pool(NamedTuple):
    """Members and their clusters."""

    model: Model
    members: Members
    clusters: Clusters
    scratch: MixtureScratch


class Drift(NamedTuple):
    """What change is recognised by; no rows without `drift`."""

    ring: Annotated[Tensor, kept(CHANGING, RECENT, DIM + 2)]  # the last samples: x, y, how improbable it was
    newest: Annotated[Integers, kept(CHANGING, low=-1, below=RECENT, fill=-1)]  # position of the latest
    held: Annotated[Integers, kept(CHANGING, low=0, below=RECENT + 1)]  # how many there are
    past: Annotated[Matrix, kept(CHANGING, PACKED)]  # packed sums of those before
    forgot: Annotated[Integers, kept(CHANGING, low=-1, below=2.0**62, fill=-1)]  # round of its last change
    rate: Annotated[Vector, kept(2, low=0.0)]  # at TESTS and CHANGES


class MixtureState(NamedTuple):
    """State of ClusterMixture."""

    common: LiveCommon
    spread: Annotated[float, setting()]
    redraws: Annotated[int, setting()]
    learns_noise: Annotated[bool, setting()]
    ridge_bonus: Annotated[float, setting()]
    local: Annotated[Statistics, rows(AGENTS)]
    pool: Pool
    drift: Drift
    squares: Annotated[Vector, kept(AGENTS, low=0.0)]  # Σ y² of each agent
    looks: Annotated[Matrix, kept(AGENTS, LOOK)]  # what its samples say of units and noise, now and then
    looked: Annotated[Vector, kept(LOOK)]  # the sum over those who lend
    centers: Annotated[Vector, kept(NOISES, low=0.0)]  # s₀² under each ν; 0: not known yet
    votes: Annotated[Matrix, kept(VOTERS, GRID)]  # log evidence of each agent's samples under each scatter
    tally: Annotated[Vector, kept(GRID)]  # their sums
    temper_votes: Annotated[Matrix, kept(DESCRIBED, TEMPERS)]  # the same under each temper of features
    scale: Annotated[Vector, kept(1, low=0.0)]  # size of a parameter's entries, squared, over all clusters
    upkeep: Annotated[Integers, kept(3, **COUNT)]  # at PULLS, TO_TEND and LAST_TENDED

    @property
    def labels(self) -> Integers:
        """(N,) cluster of each agent; −1 − agent while it has none."""
        return np.asarray(self.pool.members.labels[:, AGENT])


@inlined
def can_change(state: MixtureState) -> bool:
    """Whether agents and clusters may change."""
    return bool(state.drift.held.shape[0] > 0)


@inlined
def are_described(members: Members) -> bool:
    """Whether agents have features."""
    return bool(members.features.shape[0] > 0)


@inlined
def scatter_of(model: Model) -> float:
    """κ, the scatter that holds now."""
    return scatter_at(model, model.position[SLOPES])


@inlined
def scatter_at(model: Model, position: int) -> float:
    """A scatter of the grid; where it is learned, in units of one over the arms' mean square."""
    return float(model.grid[position] / (model.unit[0] if model.grid.shape[0] > 1 else 1.0))


@inlined
def lift_of(model: Model) -> float:
    """κ₀, the scatter of the intercept of clicks that holds now."""
    return lift_at(model, model.position[BASE])


@inlined
def lift_at(model: Model, position: int) -> float:
    """A scatter of the intercept, in units of its prior variance; 0 where none is learned."""
    return float(model.grid[len(SCATTERS) + position] / model.ridge) if learns_lift(model) else 0.0


@inlined
def learns_lift(model: Model) -> bool:
    """Whether the scatter of an intercept is learned."""
    return bool(model.grid.shape[0] > len(SCATTERS))


@inlined
def is_scattered(model: Model) -> bool:
    """Whether members of a cluster differ, as far as is known now."""
    return scatter_of(model) > 0.0 or lift_of(model) > 0.0


@inlined
def base_of(model: Model) -> float:
    """Ridge of the last coordinate; for clicks that of the intercept, which is the one given."""
    return float(model.ridge if model.clicks else model.prior[0])


@inlined
def noise_of(model: Model) -> float:
    """The noise variance."""
    return float(model.noise[SQUARES] / model.noise[SAMPLES])


@inlined
def precision_of(model: Model) -> float:
    """Half of one over the noise variance."""
    return float(0.5 * model.noise[SAMPLES] / model.noise[SQUARES])
