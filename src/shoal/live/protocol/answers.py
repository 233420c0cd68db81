"""What a population answers, as plain data. Importing this loads neither Numba nor a policy."""

from typing import Any

import msgspec


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for an agent.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> first.agent, first.id, first.arm in (0, 1)
    ('ada', 'first', True)
    """

    id: str
    agent: str
    arm: str | int
    """The chosen arm, by its name, or by its position if arms have no names."""
    ranking: tuple[str | int, ...]
    """All chosen arms, the best first; more than one if `top` was asked for."""
    probability: float | None
    """The exact probability with which this arm was chosen; None for rankings."""
    greedy: str | int
    """The arm that the policy prefers."""
    own: float
    """Reward of the chosen arm that the agent's own samples predict."""
    pooled: float
    """Reward of the chosen arm that the policy predicts."""
    sequence: int
    """Its number in the journal."""
    scores: "dict[str | int, Score] | None" = None


class Score(msgspec.Struct, frozen=True):
    """How the policy sees an arm: it prefers the largest index, mean plus width."""

    mean: float
    width: float
    index: float


class Lender(msgspec.Struct, frozen=True):
    """Someone whose samples an agent uses."""

    agent: str
    samples: float
    """How many; where the policy is not sure that they belong together, times the probability of that."""


class Stopped(msgspec.Struct, frozen=True):
    """Someone with whom an agent stopped sharing for good."""

    agent: str
    sequence: int | None
    """Number of the record that separated them."""
    at: float | None
    """Its time, in seconds since 1970."""
    margin: float
    """The test's statistic over its threshold, from their present samples: above 1 they separate."""
    distance: float
    """How much their estimates differ now."""
    allowed: float | None
    """How much they may differ before the test takes it for more than chance; None if they do not differ."""


class Explanation(msgspec.Struct, frozen=True):
    """Whose samples an agent uses, and with whom it stopped sharing. `str()` says it in words."""

    agent: str
    sharing: str
    samples: int
    """Its own."""
    borrowed: float
    """Others' that it uses."""
    lenders: list[Lender]
    """The most helpful first."""
    stopped: list[Stopped]
    """The latest first."""
    text: str

    def __str__(self) -> str:
        return self.text


class PairExplanation(msgspec.Struct, frozen=True):
    """Whether two agents share, and why. `str()` says it in words."""

    agent: str
    other: str
    together: bool
    lent_by_agent: float
    lent_by_other: float
    sequence: int | None
    """Number of the record that separated them."""
    at: float | None
    """Its time, in seconds since 1970."""
    test: dict[str, Any]
    """Whatever else the policy says of the two: statistic, threshold, radii, probabilities."""
    text: str

    def __str__(self) -> str:
        return self.text
