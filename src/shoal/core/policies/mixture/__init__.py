"""ClusterMixture: a posterior over clusters whose uncertainty is explored."""

from shoal.core.policies.mixture.policy import ClusterMixture

__all__ = ["ClusterMixture"]
