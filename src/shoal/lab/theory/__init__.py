"""The confidence radius, gains, separation times and regret bounds of BASS as functions, by theorem.

Reference: H. Cherkaoui, M. Barlier, I. Colin, "Adaptive Sample Sharing for Multi Agent Linear Bandits",
ICML 2025.

A bound is the single-agent bound ``nu`` times a gain (``gain_*``), plus a bias paid for sharing with agents
that differ. Where the paper's statement and its own proof disagree, or where a proof step fails, the function
has a ``reading``: ``"printed"`` is the statement, ``"derived"`` what follows once the step is repaired.
`docs/theory.md` lists every such step. Functions broadcast over arrays; scalars give a ``float``.
"""

from shoal.lab.theory.clusters import Asymptotic as Asymptotic
from shoal.lab.theory.clusters import asymptotics as asymptotics
from shoal.lab.theory.clusters import communication_bound as communication_bound
from shoal.lab.theory.clusters import misassigned_bound as misassigned_bound
from shoal.lab.theory.clusters import misassigned_rate as misassigned_rate
from shoal.lab.theory.confidence import beta as beta
from shoal.lab.theory.confidence import optimistic_parameter as optimistic_parameter
from shoal.lab.theory.gains import gain_cluster as gain_cluster
from shoal.lab.theory.gains import gain_individual as gain_individual
from shoal.lab.theory.gains import gain_network as gain_network
from shoal.lab.theory.gains import gamma_max as gamma_max
from shoal.lab.theory.hierarchy import regret_bound_hierarchy as regret_bound_hierarchy
from shoal.lab.theory.overview import Forecast as Forecast
from shoal.lab.theory.overview import predictions as predictions
from shoal.lab.theory.regret import nu as nu
from shoal.lab.theory.regret import regret_bound_clustered as regret_bound_clustered
from shoal.lab.theory.regret import regret_bound_individual as regret_bound_individual
from shoal.lab.theory.regret import regret_bound_network as regret_bound_network
from shoal.lab.theory.regret import regret_bound_oracle as regret_bound_oracle
from shoal.lab.theory.regret import regret_lower as regret_lower
from shoal.lab.theory.separation import SEPARATION_FACTOR as SEPARATION_FACTOR
from shoal.lab.theory.separation import separation_time_lower as separation_time_lower
from shoal.lab.theory.separation import separation_time_upper as separation_time_upper
from shoal.lab.theory.sharing import ClusteringAssumption as ClusteringAssumption
from shoal.lab.theory.sharing import EuclideanTest as EuclideanTest
from shoal.lab.theory.sharing import clustering_assumptions as clustering_assumptions
from shoal.lab.theory.sharing import complexity as complexity
from shoal.lab.theory.sharing import euclidean_test as euclidean_test
from shoal.lab.theory.sharing import instantaneous_regret_bound as instantaneous_regret_bound
from shoal.lab.theory.sharing import pair_error_bound as pair_error_bound
from shoal.lab.theory.sharing import separation_delta as separation_delta
from shoal.lab.theory.sharing import sharing_gap as sharing_gap
