"""ClusterMixture: a posterior over clusters whose uncertainty is explored.

From the top: `policy` is what users call; `choice` and `learning` are the steps of a round, `corrections` is
what happens between rounds; `drift` finds agents and clusters that have changed; `evidence` says how
probable a cluster is, and `features` what agents' descriptions say of it; `clusters` keeps their sums and who
is in which, `profiles` what their agents are like; `members` are the agents and ghosts that lend to them;
`state` declares all arrays, and `kernels` computes with packed sums.
"""

from shoal.core.policies.mixture.policy import ClusterMixture

__all__ = ["ClusterMixture"]
