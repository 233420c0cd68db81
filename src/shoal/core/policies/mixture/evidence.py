"""How probable each cluster is for a member, by the evidence for pooling their samples.

Gaussian evidence of packed sums is bᵀA⁻¹b over twice the noise variance, less ½ log det A, up to terms that
cancel: yᵀy is in both hypotheses, and so never kept.
"""

import math

from shoal.core.jit.compiled import compiled, inlined
from shoal.core.policies.mixture.clusters import count_members, evaluate, take_out
from shoal.core.policies.mixture.features import heed_features
from shoal.core.policies.mixture.kernels import factor_with_base, normalise, soften_with_base
from shoal.core.policies.mixture.members import place_of
from shoal.core.policies.mixture.state import (
    AGENT,
    FORM,
    LOGDET,
    Model,
    Pool,
    are_described,
    base_of,
    precision_of,
)
from shoal.core.types import Vector

NONE = -1
"""In place of a cluster."""


@inlined
def log_prior(model: Model, d: int) -> float:
    """log det of the prior's precision."""
    return float(d * math.log(model.prior[0]) + (math.log(base_of(model)) - math.log(model.prior[0])))


@compiled
def refresh(pool: Pool, but: int) -> None:
    """Bring the evidence of all clusters but one up to date with their sums."""
    clusters, work = pool.clusters, pool.scratch
    for n in range(clusters.n_used[0]):
        k = clusters.used[n]
        if k != but and clusters.outdated[k]:
            evaluate(clusters, work, pool.model.prior[0], base_of(pool.model), k)


@compiled
def weigh(pool: Pool, member: int, samples: int) -> int:
    """Leave the probability of each cluster in use, and then of a new one, in `scratch.chances`; count them.

    The member is taken out of its own cluster first; `scratch.rest` and `scratch.alone` are what is left of
    it, `forms` and `logdets` what each cluster's evidence is with the member in it. Changes no more than
    that. `samples` is how many it has.
    """
    model, members, clusters, work = pool.model, pool.members, pool.clusters, pool.scratch
    at = place_of(members, member)
    own, count, lent = members.labels[at], clusters.n_used[0], members.lent[at]
    ridge, base = model.prior[0], base_of(model)
    precision, prior = precision_of(model), log_prior(model, work.y.shape[1])
    form, logdet = 0.0, prior
    if samples > 0:
        form, logdet = factor_with_base(lent, ridge, base, work.L[0], work.y[0])
    for n in range(count):
        k = clusters.used[n]
        others, form_k, logdet_k = count_members(clusters, k), clusters.form[k], clusters.logdet[k]
        work.forms[n] = form_k
        work.logdets[n] = logdet_k
        if k == own:
            others -= 1
            if others == 0 and clusters.removed[k] == 0:
                work.chances[n] = -math.inf
                continue
            if clusters.outdated[k]:
                work.forms[n], work.logdets[n] = factor_with_base(
                    clusters.sums[k], ridge, base, work.L[0], work.y[0]
                )
            # Leave-one-out: evidence for staying must not count the member's samples twice.
            take_out(pool, member, k)
            form_k, logdet_k = factor_with_base(work.rest, ridge, base, work.L[0], work.y[0])
            work.alone[FORM] = form_k
            work.alone[LOGDET] = logdet_k
        elif samples > 0:  # without samples only the cluster's size speaks
            for m in range(work.total.shape[0]):
                work.total[m] = clusters.sums[k, m] + lent[m]
            work.forms[n], work.logdets[n] = factor_with_base(work.total, ridge, base, work.L[0], work.y[0])
        gain = precision * (work.forms[n] - form_k - form) - 0.5 * (
            work.logdets[n] - logdet_k - logdet + prior
        )
        work.chances[n] = gain + math.log(max(others, 1))
    work.forms[count] = form
    work.logdets[count] = logdet
    work.chances[count] = model.log_concentration
    if are_described(members):
        heed_features(pool, member)
    normalise(work.chances, count + 1)
    return int(count)


@compiled
def log_evidence(pool: Pool, raw: Vector, scatter: float, lift: float, agent: int) -> float:
    """Log evidence of samples with packed sums `raw`, as one agent's in place of this one, after `weigh`.

    The clusters are as they stand, the agent's own without it.
    """
    model, clusters, work, ridge = pool.model, pool.clusters, pool.scratch, pool.model.prior[0]
    own, count = pool.members.labels[agent, AGENT], clusters.n_used[0]
    precision, prior, base = precision_of(model), log_prior(model, work.y.shape[1]), base_of(model)
    data, L, y = work.data, work.L[0], work.y[0]
    # Integrating out the agent's deviation from its cluster leaves softened sums and two terms of their own.
    scattered = soften_with_base(raw, 0.0, 0.0, scatter, lift, model.slopes, data, L, y, work.inverse)
    terms = factor_with_base(data, ridge, base, L, y)
    work.chances[count] = model.log_concentration + precision * terms[0] - 0.5 * (terms[1] - prior)
    n_others = 0
    for n in range(count):
        k = clusters.used[n]
        others, form, logdet = count_members(clusters, k), clusters.form[k], clusters.logdet[k]
        rest = clusters.sums[k]
        if k == own:
            others -= 1
            form, logdet, rest = work.alone[FORM], work.alone[LOGDET], work.rest
            if others == 0 and clusters.removed[k] == 0:
                work.chances[n] = -math.inf
                continue
        for m in range(data.shape[0]):
            work.total[m] = rest[m] + data[m]
        terms = factor_with_base(work.total, ridge, base, L, y)
        gain = precision * (terms[0] - form) - 0.5 * (terms[1] - logdet)
        work.chances[n] = gain + math.log(max(others, 1))
        n_others += others
    found = normalise(work.chances, count + 1) - math.log(n_others + math.exp(model.log_concentration))
    return float(found + precision * scattered[0] - 0.5 * scattered[1])
