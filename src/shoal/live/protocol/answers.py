"""What a population answers, as plain data. Importing this loads neither Numba nor a policy."""

import math
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import force_setattr

if TYPE_CHECKING:
    Figure = float
else:
    Figure = float | None
"""A number that may be unknown: NaN in Python, null in JSON, which has no NaN."""


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


class NamedLender(msgspec.Struct, frozen=True):
    """An agent whose samples another one uses."""

    agent: str
    samples: float
    """How many; times the probability that the two belong together, if the policy has one."""


class Stopped(msgspec.Struct, frozen=True):
    """An agent with which another one stopped sharing for good."""

    agent: str
    sequence: int | None
    """Number of the record that cut the pair."""
    at: float | None
    """Its time, in seconds since 1970."""
    margin: float
    """The test's statistic over its threshold, from their present samples: above 1 the pair is cut."""
    distance: float
    """How much their estimates differ now."""
    allowed: float | None
    """How much the test allows them to differ; None if they do not differ."""


class Explanation(msgspec.Struct, frozen=True):
    """Whose samples an agent uses, and with whom it stopped sharing. `str()` says it in words."""

    agent: str
    sharing: str
    samples: int
    """Its own."""
    borrowed: float
    """Samples of others that it uses."""
    lenders: list[NamedLender]
    """The most helpful first."""
    stopped: list[Stopped]
    """The latest first."""
    text: str
    n_lenders: int
    """How many there are; a service lists the first 1,000 of each."""
    n_stopped: int

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
    """Number of the record that cut the pair."""
    at: float | None
    """Its time, in seconds since 1970."""
    test: dict[str, Any]
    """What else the policy says of the two: statistic, threshold, radii, probabilities."""
    text: str

    def __str__(self) -> str:
        return self.text


# Whether it pays


class Findings(msgspec.Struct, frozen=True):
    """Base of results with figures. Those that are null in JSON are NaN here, as where they were computed.

    `str()` says them in words.
    """

    def __post_init__(self) -> None:
        for name, kind in type(self).__annotations__.items():
            if kind == Figure and getattr(self, name) is None:
                force_setattr(self, name, math.nan)


Verdict = Literal["pays", "harms", "too early", "no difference"]


class Dividend(Findings, frozen=True):
    """What sharing pays per reward: squared error of own predictions minus that of the policy's."""

    count: int
    """Rewards of decisions."""
    mean: Figure
    """NaN if there are none."""
    low: Figure
    """A 95% confidence sequence; not finite while there are too few rewards."""
    high: Figure
    verdict: Verdict
    """Too early while the confidence sequence holds 0."""
    text: str

    def __str__(self) -> str:
        return self.text


class Alarm(Findings, frozen=True):
    """Something about a population that somebody should know. `str()` says it in words."""

    name: str
    """Its kind, one of `alarms.ALARMS`."""
    severity: str
    """"fault" if something is to be done, "note" if not."""
    sentence: str
    """What was found, with the numbers that say so."""
    advice: str
    """What to do."""
    value: Figure
    """The number it is about."""
    low: Figure
    """Its confidence sequence; NaN if it is a count."""
    high: Figure

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence} {self.advice}"


class Estimate(Findings, frozen=True):
    """Mean reward per decision, with its 95% interval."""

    name: str
    value: Figure
    """NaN if it is outside of what rewards were."""
    low: Figure
    """NaN if there is no interval: the direct method's error is the model's, which is unknown."""
    high: Figure
    clipped: float
    """Share of decisions whose weight was clipped, or for which the model's prediction was used instead."""


class Calibration(Findings, frozen=True):
    """Whether arms were drawn with the probabilities that are recorded."""

    mean_weight: Figure
    """Mean of 1 / (K p) over decisions among K arms: 1, up to chance, if so and each arm had a chance."""
    low: Figure
    """Its 99% interval."""
    high: Figure
    sentence: str
    """What that means."""


class Replayed(msgspec.Struct, frozen=True):
    """A policy that learned from those decisions of a log that it would have made itself."""

    accepted: int
    value: Estimate | None
    """Mean reward of these; None if they are too few."""
    sentence: str
    """Why they are, and how large a log would have to be; empty if they are enough."""


class Evaluation(Findings, frozen=True):
    """What another policy would have earned, from explored decisions."""

    source: str
    """Where the decisions are from."""
    policy: str
    parameters: dict[str, Any]
    decisions: int
    """That have a probability and a reward."""
    logged: Estimate
    """Their mean reward."""
    agreement: Figure
    """Share of them in which the policy would have chosen the same arm."""
    effective_size: float
    """How many decisions, made by the policy itself, would tell as much."""
    estimates: list[Estimate]
    """Of the policy's value; none if the log cannot tell."""
    difference: Estimate | None
    """The policy's value minus what was earned."""
    sentence: str
    """Why the log cannot tell, and how large one would have to be; empty if it can."""
    calibration: Calibration
    replayed: Replayed | None
    text: str

    @property
    def best(self) -> Estimate:
        """The doubly robust estimate; SNIPS, if that has no value. Only if there are estimates."""
        by_name = {one.name: one for one in self.estimates if not math.isnan(one.value)}
        return by_name.get("doubly robust") or by_name["SNIPS"]

    def __str__(self) -> str:
        return self.text


class Uplift(Findings, frozen=True):
    """What the policy earns more, per decision, than the product's own rule."""

    how: str
    """`holdout` or `apprentice`."""
    policy: Figure
    """Mean reward of the policy's decisions; as an apprentice, of what it would have chosen."""
    baseline: Figure
    """Mean reward of the rule's decisions."""
    uplift: Figure
    """NaN, as are its bounds, if there is not enough to tell: see `sentence`."""
    low: Figure
    """Its 95% interval."""
    high: Figure
    n_policy: int
    """Decisions of the policy; as an apprentice, explored ones that agree with it."""
    n_baseline: int
    """Decisions of the rule."""
    text: str

    @property
    def sentence(self) -> str:
        """Why there is not enough to tell; empty if there is."""
        return self.text if math.isnan(self.uplift) else ""

    def __str__(self) -> str:
        return self.text


class WhatIf(msgspec.Struct, frozen=True):
    """A population as it would be under other settings, beside what it is."""

    policy: str
    parameters: dict[str, Any]
    gained: list[tuple[str, str]]
    """Pairs of agents that would share, and do not; the service sends the first thousand."""
    n_gained: int
    lost: list[tuple[str, str]]
    """Pairs that share, and would not; the service sends the first thousand."""
    n_lost: int
    present: Dividend
    other: Dividend
    """The dividend of the same decisions, had predictions been those of the other settings."""
    improvement: Dividend
    """Squared error of the recorded predictions minus that of the other ones."""
    text: str

    def __str__(self) -> str:
        return self.text


class Contender(Findings, frozen=True):
    """A candidate in a contest. `str()` says how it stands."""

    name: str
    """Its policy, and the parameters that are not the present ones, or not the policy's defaults."""
    policy: str
    parameters: dict[str, Any]
    decisions: int
    """Since the contest began, with a reward, and drawn by chance."""
    differs: int
    """Those in which it would have chosen another arm than the present policy."""
    seen: int
    """Those of them in which chance chose its arm."""
    difference: Figure
    """Reward per decision that its choices earn more; NaN if there are no decisions."""
    low: Figure
    """Confidence sequence of the difference; not finite while there are too few decisions."""
    high: Figure
    verdict: str
    """"surely better", "surely worse", "too early to say", or "out": it cannot learn a reward (`text`)."""
    text: str

    def __str__(self) -> str:
        return self.text


class ContestStanding(msgspec.Struct, frozen=True):
    """How the candidates of a contest stand against the present policy. `str()` says it in words."""

    sequence: int
    """The record that began it."""
    policy: str
    """The present one."""
    when: str
    """"surely better": such a candidate takes over by itself; empty: none does."""
    share: float
    """Share of decisions that are explored."""
    by: str
    """Who began it."""
    level: float
    """Of each confidence sequence, so that all of them hold together with 95%."""
    candidates: list[Contender]
    switched: int | None
    """The record by which the best one has just taken over."""
    text: str

    def __str__(self) -> str:
        return self.text


class Switch(msgspec.Struct, frozen=True):
    """Policy and parameters that a population has, or had."""

    sequence: int
    """The record from which they are, or were, in force."""
    policy: str
    parameters: dict[str, Any]
    by: str
    """Who made it so: the id of a key, or what a program gave; empty if unknown."""
    at: float | None
    """Seconds since 1970; None if the record is in an archive."""
