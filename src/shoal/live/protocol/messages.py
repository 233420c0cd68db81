"""What requests and answers hold. Importing this loads neither Numba nor a policy."""

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from shoal.live.protocol.answers import Decision

MOST_AT_ONCE = 1_000
"""Requests in a batch."""
LARGEST_DIM = 1_024

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Features = Annotated[list[Number], Meta(min_length=1, max_length=LARGEST_DIM)]
Range = Annotated[list[Number], Meta(min_length=2, max_length=2)]
Arms = dict[Name, Features] | list[str | Features] | None
Sharing = Literal["both", "borrow", "none"]


class Request(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what clients send: a field that is not known is refused."""


# Populations


class NewPopulation(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A population to make, or to find. What is left out has its default, or what is recorded."""

    policy: str
    """Name of a policy that the server knows, such as `bass`."""
    dim: Annotated[int, Meta(ge=1, le=LARGEST_DIM)]
    """Dimension of the arms."""
    explore: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Share of decisions that are drawn uniformly; 0.02 by default."""
    reward_range: Range | None = None
    """Rewards outside of it are refused."""
    reward_window: Annotated[float, Meta(gt=0.0, le=1e9)] | None = None
    """Seconds after which a reward counts as missing."""
    default_reward: Number | None = None
    """What a missing reward is taken to be."""
    lend_after: Annotated[int, Meta(ge=0, le=1_000_000_000)] | None = None
    """Rewards that a new agent must have before others use its samples."""
    harm_guard: bool | None = None
    """Whether agents to whom borrowing does harm stop."""
    holdout: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Share of decisions that take the caller's `baseline`."""
    apprentice: bool | None = None
    """Whether all decisions take the caller's `baseline`, while the policy learns."""
    parameters: dict[str, bool | int | float | str | None] = {}
    """Of the policy."""


class Population(Struct, frozen=True):
    """A population: what it is, and how large."""

    name: str
    policy: str
    dim: int
    parameters: dict[str, Any]
    explore: float
    reward_range: Range | None
    reward_window: float | None
    default_reward: float | None
    lend_after: int
    harm_guard: bool
    holdout: float
    apprentice: bool
    agents: int
    pending: int
    """Decisions that await rewards."""
    sequence: int
    """Number of the last record."""


class Candidate(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Another policy, or other parameters of the same one; those that are not named stay as they are.

    Those of another policy that are not named have its defaults.
    """

    policy: Annotated[str, Meta(max_length=100)] | None = None
    parameters: dict[str, Any] = {}


class Switch(Struct, frozen=True):
    """Policy and parameters that a population has, or had."""

    sequence: int
    """The record from which they are, or were, in force."""
    policy: str
    parameters: dict[str, Any]
    by: str
    """Who made it so: the id of a key, or what a program said; empty if nobody is known."""
    at: float | None
    """Seconds since 1970; none if the record is in an archive."""


class Switches(Struct, frozen=True):
    """In order; the last are in force."""

    settings: list[Switch]


class Populations(Struct, frozen=True):
    """The populations that the key may see."""

    populations: list[str]


class Catalogue(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Arms to add to the catalogue, or whose features to change."""

    arms: Annotated[dict[Name, Features], Meta(min_length=1)]


class CatalogueContent(Struct, frozen=True):
    """The arms that the population keeps."""

    arms: dict[str, list[float]]
    sequence: int


# Decisions and rewards


class NewDecision(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A decision to make. With an `id`, the same request again gets the same decision."""

    agent: Name
    """Joins if it is new."""
    arms: Arms = None
    """Names with features, rows of features, or names from the catalogue; the whole catalogue by default."""
    id: Id | None = None
    top: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """How many arms to choose, as a ranking."""
    scores: bool = False
    """Whether to return mean, width and index of every arm."""
    sharing: Sharing | None = None
    """How the agent shares, if it should be different from before."""
    baseline: str | int | None = None
    """The arm that the caller would have shown, for `holdout` and `apprentice`."""


class DecisionStanding(Struct, frozen=True):
    """What is recorded of a decision."""

    decision: Decision
    at: float
    """Seconds since 1970."""
    rewards: list[float | None]
    """Of each arm of the ranking, the reward in force."""
    missed: bool
    """Whether a reward did not come in time."""
    cancelled: bool


class Reward(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The reward of a decision; with `replaces` a correction."""

    reward: Number
    replaces: Number | None = None
    """The reward that is recorded, if this one corrects it."""
    arm: str | int | None = None
    """Of a ranking, which arm the reward is for."""


class NamedReward(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The reward of one decision of several."""

    id: Id
    reward: Number
    replaces: Number | None = None
    arm: str | int | None = None


class NewObservation(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A sample that was not decided here. With an `id`, the same one again is counted once."""

    agent: Name
    reward: Number
    x: Features | None = None
    """Features of the arm that was tried, or …"""
    arm: Name | None = None
    """… its name in the catalogue."""
    id: Id | None = None


class Learned(Struct, frozen=True):
    """Whether an observation was new."""

    new: bool


class Decisions(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Decisions to make together, in one commit."""

    requests: Annotated[list[NewDecision], Meta(max_length=MOST_AT_ONCE)]


class Rewards(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Rewards to record together, in one commit."""

    rewards: Annotated[list[NamedReward], Meta(max_length=MOST_AT_ONCE)]


class Problem(Struct, frozen=True, omit_defaults=True):
    """What went wrong, as RFC 9457 has it; `type` is stable."""

    type: str
    title: str
    status: int
    detail: str
    request: str | UnsetType = UNSET
    """The request's id, which is in the server's log."""
    recorded: Any = UNSET
    """What is recorded, if that is the reason."""


class DecisionResult(Struct, frozen=True, omit_defaults=True):
    """One of several: a decision or a problem."""

    decision: Decision | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class DecisionResults(Struct, frozen=True):
    """Of each request, in order, its decision or its problem."""

    results: list[DecisionResult]


class RewardResult(Struct, frozen=True, omit_defaults=True):
    """One of several: nothing if it is recorded, or a problem."""

    problem: Problem | UnsetType = UNSET


class RewardResults(Struct, frozen=True):
    """Of each reward, in order, nothing or its problem."""

    results: list[RewardResult]


# Agents


class SharingMode(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How an agent shares."""

    sharing: Sharing = "both"


class Agent(Struct, frozen=True):
    """An agent."""

    name: str
    sharing: str
    rewards: int
    """That it has had."""
    sequence: int
    """Of the population."""


class GraphContent(Struct, frozen=True):
    """Who shares with whom."""

    sequence: int
    agents: list[str]
    edges: list[list[int]]
    """For each agent the positions of later ones that share with it."""


# Whether it pays


class Dividend(Struct, frozen=True):
    """What sharing pays per reward: squared error of own predictions minus that of the policy's."""

    count: int
    """Rewards of decisions."""
    mean: float | None
    low: float | None
    """A 95% confidence sequence; none while there are too few rewards."""
    high: float | None
    guarded: bool
    text: str


class Estimate(Struct, frozen=True):
    """Mean reward per decision, with its 95% interval."""

    name: str
    value: float | None
    low: float | None
    high: float | None


class Evaluation(Struct, frozen=True):
    """What another policy would have earned, from explored decisions."""

    policy: str
    decisions: int
    logged: Estimate
    """What was earned."""
    estimates: list[Estimate]
    """Of the policy's value; none if the journal cannot tell."""
    difference: Estimate | None
    agreement: float | None
    text: str


class Uplift(Struct, frozen=True):
    """What the policy earns more, per decision, than the product's own rule."""

    how: str
    """`holdout` or `apprentice`."""
    policy: float | None
    """Mean reward of the policy's decisions; as an apprentice, of what it would have chosen."""
    baseline: float | None
    """Mean reward of the rule's decisions."""
    uplift: float | None
    low: float | None
    """Its 95% interval; none while there is not enough to tell."""
    high: float | None
    n_policy: int
    n_baseline: int
    text: str


class WhatIf(Struct, frozen=True):
    """A population as it would be under other settings, beside what it is."""

    policy: str
    parameters: dict[str, Any]
    gained: list[tuple[str, str]]
    """Pairs of agents that would share, and do not; the first thousand."""
    n_gained: int
    lost: list[tuple[str, str]]
    """Pairs that share, and would not; the first thousand."""
    n_lost: int
    present: Dividend
    other: Dividend
    """The dividend of the same decisions, had predictions been those of the other settings."""
    improvement: Dividend
    """Squared error of the recorded predictions minus that of the other ones."""
    text: str


# The journal


class Event(Struct, frozen=True, omit_defaults=True):
    """A record of the journal."""

    sequence: int
    at: float
    """Seconds since 1970."""
    kind: str
    agent: str | None = None
    """Whose it is; none if it is nobody's, or has been forgotten."""
    id: str | None = None
    arms: list[str | int] | None = None
    """Those that were shown."""
    probability: float | None = None
    own: float | None = None
    pooled: float | None = None
    reward: float | None = None
    replaces: float | None = None
    place: int | None = None
    """Of a ranking, which arm it is about."""
    cut: list[str] | None = None
    """With whom the agent stopped sharing."""
    sharing: str | None = None
    other: str | None = None
    by: str | None = None
    """Who changed the settings or the catalogue."""


class Events(Struct, frozen=True):
    """Records in order; ask again with `after` = `last` for what comes next."""

    events: list[Event]
    last: int


# The service itself


class Session(Request, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A key to sign in with."""

    key: Annotated[str, Meta(max_length=256)]


class Who(Struct, frozen=True):
    """Who is signed in."""

    id: str
    scopes: list[str]
    populations: list[str] | None


class Health(Struct, frozen=True):
    """Whether the service lives, or is ready."""

    status: str
    detail: str = ""


encoder = msgspec.json.Encoder()
