"""What is measured in what: the size of arms, the noise of all and of each agent, the clusters' ridge.

Nothing that is learned has a unit of its own, so that rewards and arms may come in any. Arms are measured by
the mean square of their entries, u; rewards by theirs, v; ridges are multiples of d·u, the mean square of
arms' lengths (so that a ridge of 1 expects as much signal as noise), and scatters of 1/u. The noise is
estimated from agents' own samples: however they are clustered, these are of one parameter.

An agent *looks* at its samples now and then, and leaves in its row of `looks` what they say: sums, of which
`looked` is the total over all who lend. So no round looks at everybody, and whoever leaves can be taken out.
"""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.policies.mixture.choice import measure
from shoal.core.policies.mixture.clusters import LOSSY, add_lent, count_members, sum_anew
from shoal.core.policies.mixture.kernels import factor_packed, trace_of_inverse
from shoal.core.policies.mixture.members import cluster_of, lend, raw_of
from shoal.core.policies.mixture.state import (
    AGENTS_SEEN,
    CENTER,
    FORMS,
    KNOWN,
    KNOWN_ERRORS,
    LIKELIHOODS,
    LOGDETS,
    LOOK,
    NOISES,
    NORM,
    NU,
    PRECISIONS,
    PULLS_SEEN,
    REWARDS,
    RIDGES,
    SAMPLES,
    SQUARES,
    TO_TEND,
    TRACE,
    MixtureState,
    noise_of,
)
from shoal.core.policy.clicks import INTERCEPT

PRIOR_SAMPLES = 10.0
"""Samples of mean square v that the estimate of the noise starts from."""
LEAST_RIDGE, RIDGE_STEP = 4.0**-7, 4.0
"""The smallest ridge tried for agents alone, over d·u times the ridge given, and the step to the next."""
SLACK = 3.0
"""Nats within which of the best of them the largest one is taken."""
ENOUGH = 0.5
"""Errors per sample from which on they alone give the noise."""
UNIT_STEP = 1.5
"""Least change of the size of arms that is heeded."""
PRIOR_STEP, PRIOR_LEAST, PRIOR_MOST = 1.15, 0.01, 100.0
"""Least change of the clusters' ridge that is heeded; its bounds, over d·u times the ridge given."""
UNEQUAL = 3.0
"""Nats that noises of their own have to bring."""
WEIGHT_STEP = 1.03
"""Least change of an agent's weight that is heeded."""
FEW, OFTEN, MANY, SELDOM = 4, 4, 64, 32
"""An agent looks at each of its first 4 pulls, at every 4th up to the 64th, then at every 32nd."""


@inlined
def is_look_due(pulls: int) -> bool:
    """Whether an agent with so many samples looks at them."""
    return bool(pulls <= FEW or pulls % (OFTEN if pulls <= MANY else SELDOM) == 0)


@compiled
def look(state: MixtureState, agent: int) -> None:
    """Look at an agent's samples; heed what that says of the units and of the noise, its own too."""
    model, looked = state.pool.model, state.looked
    is_first, trace, rewards = looked[PULLS_SEEN] == 0.0, looked[TRACE], looked[REWARDS]
    count(state, agent, -1.0)
    describe(state, agent)
    count(state, agent, 1.0)
    is_rescaled = heed_unit(state, is_first)
    if state.common.clicks:  # the noise of what they are learned as is 1
        if is_rescaled:
            relend(state, agent)
        return
    count(state, agent, -1.0)
    fit(state, agent)
    count(state, agent, 1.0)
    if looked[TRACE] * LOSSY < trace or looked[REWARDS] * LOSSY < rewards:
        sum_looks(state)  # an outlier has gone, and what it rounded off must not stay away
    estimate_noise(state)
    count(state, agent, -1.0)
    judge_noise(state, agent)
    count(state, agent, 1.0)
    wanted = weight_of(state, agent)
    is_reweighed = wanted > model.weights[agent] * WEIGHT_STEP or wanted * WEIGHT_STEP < model.weights[agent]
    if is_reweighed:
        model.weights[agent] = wanted
    if is_reweighed or is_rescaled:
        relend(state, agent)


@inlined
def count(state: MixtureState, agent: int, sign: float) -> None:
    """Let an agent's row count in the total, or no longer; that of who does not lend never does."""
    if state.common.lends[agent]:
        for m in range(LOOK):
            state.looked[m] += sign * state.looks[agent, m]


@compiled
def sum_looks(state: MixtureState) -> None:
    """Sum the rows anew."""
    state.looked[:] = 0.0
    for agent in range(state.looks.shape[0]):
        count(state, agent, 1.0)


@inlined
def relend(state: MixtureState, agent: int) -> None:
    """Compute what an agent lends anew, also to its cluster."""
    members, clusters = state.pool.members, state.pool.clusters
    is_member = cluster_of(members, agent) >= 0
    if is_member:
        add_lent(members, clusters, agent, -1.0)
    lend(state.pool, agent)
    if is_member:
        add_lent(members, clusters, agent, 1.0)


@inlined
def describe(state: MixtureState, agent: int) -> None:
    """Write down what needs no unit."""
    row, raw, pulls = state.looks[agent], raw_of(state.pool, agent), state.local.pulls[agent]
    trace, diagonal = 0.0, -1
    for m in range(state.pool.model.slopes):
        diagonal += m + 1
        trace += raw[diagonal]
    row[AGENTS_SEEN] = 1.0 if pulls > 0 else 0.0
    row[PULLS_SEEN] = pulls
    if state.common.clicks:  # their weights, by which they count in the trace
        row[PULLS_SEEN] = max(raw[raw.shape[0] - state.local.b.shape[1] - 1], 0.0) / INTERCEPT**2
    row[TRACE] = trace
    row[REWARDS] = state.squares[agent]


@inlined
def heed_unit(state: MixtureState, is_first: bool) -> bool:
    """Measure arms by their mean square so far, if that is another than before; say so."""
    model, looked, d = state.pool.model, state.looked, state.pool.model.slopes
    if not looked[TRACE] > 0.0:
        return False
    wanted = looked[TRACE] / (d * looked[PULLS_SEEN])
    if not (is_first or wanted > UNIT_STEP * model.unit[0] or wanted * UNIT_STEP < model.unit[0]):
        return False
    model.unit[0] = wanted
    state.upkeep[TO_TEND] = state.pool.members.labels.size
    if is_first:
        set_prior(state, model.ridge * wanted * d)
    return True


@inlined
def fit(state: MixtureState, agent: int) -> None:
    """Write down how well an agent's samples are explained alone, under each ridge."""
    model, work, row = state.pool.model, state.pool.scratch, state.looks[agent]
    raw, d = raw_of(state.pool, agent), work.y.shape[1]
    if row[PULLS_SEEN] == 0.0:
        row[:] = 0.0
        return
    ridge = LEAST_RIDGE * model.ridge * model.unit[0] * d
    for g in range(RIDGES):
        row[FORMS + g], logdet = factor_packed(raw, ridge, work.L[0], work.y[0])
        row[LOGDETS + g] = logdet - d * math.log(ridge)
        if g == 0:
            unknown = ridge * trace_of_inverse(work.L[0], d, work.y[0])
            row[KNOWN_ERRORS] = max(row[PULLS_SEEN] - d + unknown, 0.0)
        ridge *= RIDGE_STEP


@inlined
def judge_noise(state: MixtureState, agent: int) -> None:
    """Write down how probable an agent's errors are under each ν."""
    model, row = state.pool.model, state.looks[agent]
    if row[PULLS_SEEN] == 0.0:
        return
    number, errors = row[KNOWN_ERRORS], errors_of(state, agent)
    for j in range(NOISES):
        nu = nu_at(j)
        center = state.centers[j] if state.centers[j] > 0.0 else noise_of(model)
        row[PRECISIONS + j] = (nu + number) / (nu * center + errors)
        value = math.lgamma(0.5 * (nu + number)) - math.lgamma(0.5 * nu)
        value += 0.5 * nu * math.log(0.5 * nu * center)
        value -= 0.5 * (nu + number) * math.log(0.5 * (nu * center + errors))
        row[LIKELIHOODS + j] = value


@inlined
def nu_at(j: int) -> float:
    """The values of ν that are tried: 2, 4, 8, …"""
    return 2.0 ** (j + 1)


@inlined
def errors_of(state: MixtureState, agent: int) -> float:
    """Squared errors of an agent's samples, for as many as KNOWN_ERRORS says."""
    return float(max(state.looks[agent, REWARDS] - state.looks[agent, FORMS], 0.0))


@compiled
def estimate_noise(state: MixtureState) -> None:
    """Estimate the noise from what those who lend have seen; as given, where it is.

    From errors, once they are half as many as samples. Before, for each ridge, that under which all samples
    are most probable; of these the one of the largest ridge that explains them nearly as well as the best.
    """
    noise, looked = state.pool.model.noise, state.looked
    if not state.learns_noise:
        return
    number, size = looked[PULLS_SEEN], 1.0
    if looked[REWARDS] > 0.0:
        size = looked[REWARDS] / number
    noise[SQUARES] = PRIOR_SAMPLES * size
    noise[SAMPLES] = PRIOR_SAMPLES
    if looked[KNOWN_ERRORS] > ENOUGH * number:
        noise[SQUARES] += max(looked[REWARDS] - looked[FORMS], 0.0)
        noise[SAMPLES] += looked[KNOWN_ERRORS]
        return
    noise[SAMPLES] += number
    best = -math.inf
    for turn in range(2):
        for g in range(RIDGES):
            squares = PRIOR_SAMPLES * size + max(looked[REWARDS] - looked[FORMS + g], 0.0)
            value = -0.5 * (noise[SAMPLES] * math.log(squares) + looked[LOGDETS + g])
            if turn == 0:
                best = max(best, value)
            elif value >= best - SLACK:
                noise[SQUARES] = squares


@inlined
def weight_of(state: MixtureState, agent: int) -> float:
    """The noise variance of all over what is expected of the agent's own."""
    model = state.pool.model
    nu, center = model.unequal[NU], model.unequal[CENTER]
    if nu == 0.0:
        return 1.0
    number = nu + state.looks[agent, KNOWN_ERRORS]
    return float(noise_of(model) * number / (nu * center + errors_of(state, agent)))


@compiled
def learn_noises(state: MixtureState) -> None:
    """Learn how much agents differ in noise: precisions are Gamma(ν/2, ν s₀²/2), by likelihood.

    Nothing is learned where the noise is given: it is then that of everybody.
    """
    model, looked = state.pool.model, state.looked
    if not state.learns_noise:
        return
    variance = noise_of(model)
    errors = max(looked[REWARDS] - looked[FORMS], 0.0)
    best = -0.5 * (looked[KNOWN_ERRORS] * math.log(variance) + errors / variance)  # all alike
    model.unequal[NU] = 0.0
    model.unequal[CENTER] = 0.0
    for j in range(NOISES):
        if looked[PRECISIONS + j] > 0.0:  # 1/s₀² is the mean of the agents' precisions
            state.centers[j] = looked[AGENTS_SEEN] / looked[PRECISIONS + j]
            if looked[LIKELIHOODS + j] - UNEQUAL > best:
                best = looked[LIKELIHOODS + j] - UNEQUAL
                model.unequal[NU] = nu_at(j)
                model.unequal[CENTER] = state.centers[j]


# The clusters' ridge


@inlined
def set_prior(state: MixtureState, ridge: float) -> None:
    """Let the clusters have another ridge."""
    clusters = state.pool.clusters
    state.pool.model.prior[0] = ridge
    for n in range(clusters.n_used[0]):
        clusters.outdated[clusters.used[n]] = 1


@inlined
def wanted_prior(state: MixtureState) -> float:
    """The ridge `s²/τ²`, with τ² the mean square of parameters' entries, by the clusters' estimates.

    `τ² = (d s²/λ + Σ n_k ‖θ̂_k‖²) / (d + Σ n_k d_k)`: its fixed point is where the evidence is largest. For
    clicks, entries that are not known count, too, as large as expected at the start: arms are chosen where
    logits are large, so that the known ones are the large ones.
    """
    clusters, model = state.pool.clusters, state.pool.model
    variance, known = noise_of(model), float(model.slopes)
    ridge = model.ridge * model.unit[0] * known
    norms = known * variance / ridge
    for n in range(clusters.n_used[0]):
        k = clusters.used[n]
        norms += count_members(clusters, k) * clusters.scale[k, NORM]
        known += count_members(clusters, k) * clusters.scale[k, KNOWN]
        if state.common.clicks:
            unknown = count_members(clusters, k) * (model.slopes - clusters.scale[k, KNOWN])
            norms += unknown / ridge
            known += unknown
    return float(min(max(variance * known / norms, PRIOR_LEAST * ridge), PRIOR_MOST * ridge))


@inlined
def learn_prior(state: MixtureState) -> None:
    """Heed what the clusters' estimates say of their ridge."""
    wanted, prior = wanted_prior(state), state.pool.model.prior[0]
    if wanted > PRIOR_STEP * prior or wanted * PRIOR_STEP < prior:
        set_prior(state, wanted)


# Starting over, where somebody's samples must not count any more


@compiled
def measure_all(state: MixtureState) -> None:
    """Compute how large the estimates of all clusters are."""
    for turn in range(state.pool.clusters.n_used[0]):
        state.scale[0] = measure(state.pool, turn)


@compiled
def learn_anew(state: MixtureState) -> None:
    """Learn units, noises, weights and the ridge anew from the samples of all who lend."""
    model, members, clusters = state.pool.model, state.pool.members, state.pool.clusters
    n, kinds = members.labels.shape
    state.looks[:] = 0.0
    state.centers[:] = 0.0
    model.unit[0] = 1.0
    set_prior(state, model.ridge)
    for agent in range(n):
        describe(state, agent)
    sum_looks(state)
    heed_unit(state, True)
    if not state.common.clicks:
        for agent in range(n):
            fit(state, agent)
        sum_looks(state)
        estimate_noise(state)
        for agent in range(n):
            judge_noise(state, agent)
        sum_looks(state)
        learn_noises(state)
    for agent in range(n):
        model.weights[agent] = weight_of(state, agent) if state.local.pulls[agent] > 0 else 1.0
        for kind in range(kinds):
            lend(state.pool, kind * n + agent)
    for m in range(clusters.n_used[0]):
        sum_anew(state.pool, clusters.used[m])
    measure_all(state)
    set_prior(state, wanted_prior(state))
    for m in range(clusters.n_used[0]):
        sum_anew(state.pool, clusters.used[m])
    measure_all(state)
    state.upkeep[TO_TEND] = 0
