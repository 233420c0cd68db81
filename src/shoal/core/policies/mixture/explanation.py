"""What a mixture says of two agents: whether they belong together, and what they lend each other."""

from typing import NamedTuple

from shoal.core.policy.explanations import Name, When, belonging, chance, in_round, numbered, pair_text


class MembershipExplanation(NamedTuple):
    """What is known of whether two agents belong together, and what they lend each other."""

    same_cluster: bool
    """Whether both are in one cluster now."""
    probability: float
    """That the agent belongs to the cluster that the other is in now."""
    by_rewards: float
    """The same by rewards alone, without the agent's features."""
    alone: float
    """Probability that the agent belongs to no cluster there is."""
    pulls_agent: int
    pulls_other: int
    """Samples each has."""
    lent_by_agent: float
    lent_by_other: float
    """Samples of each that the other uses: pulls times the probability that it belongs to their cluster."""
    scatter: float
    """κ: variance of members' parameters around their cluster's, in units of the noise's."""
    forgot_agent: int
    forgot_other: int
    """Round in which each was last found to have changed, −1 if never."""
    agent: int
    other: int

    @property
    def together(self) -> bool:
        """Whether both are in one cluster now."""
        return self.same_cluster

    @property
    def separation_time(self) -> int:
        """Not recorded."""
        return -1

    def text(self, name: Name = numbered, when: When = in_round) -> str:
        """The same in words."""
        reason = belonging(name(self.agent), name(self.other), self.probability)
        if self.by_rewards != self.probability:
            reason += f" ({chance(self.by_rewards)} without features)"
        changed = [
            f" {name(who)} was found to have changed {when(changed)}."
            for who, changed in ((self.agent, self.forgot_agent), (self.other, self.forgot_other))
            if changed >= 0
        ]
        return pair_text(self, name, when, reason) + "".join(changed)

    def __str__(self) -> str:
        return self.text()
