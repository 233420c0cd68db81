"""What requests and answers hold. Importing this loads neither Numba nor a policy."""

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from shoal.live.protocol.answers import Alarm, ContestStanding, Decision, Switch

MOST_AT_ONCE = 1_000
"""Requests in a batch."""
LARGEST_DIM = 1_024

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Id = Annotated[str, Meta(min_length=1, max_length=128)]
Number = Annotated[float, Meta(ge=-1e30, le=1e30)]
Features = Annotated[list[Number], Meta(min_length=1, max_length=LARGEST_DIM)]
When = Literal["surely better"]
Range = Annotated[list[Number], Meta(min_length=2, max_length=2)]
if TYPE_CHECKING:  # where requests are made in Python, arrays and other mappings, too
    Arms = Any
    Row = Any
    Known = Any
else:
    Row = Features | None
    Known = Annotated[list[Number | None], Meta(max_length=LARGEST_DIM)] | None
    Arms = dict[Name, Features] | list[str | Features] | None
Sharing = Literal["both", "borrow", "none"]
CHOICES = {"sharing": get_args(Sharing), "when": get_args(When)}
"""What a field of a request may be, for messages."""


class Request(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base of what clients send: unknown fields are refused."""


Asked = TypeVar("Asked", bound=Request)


def request_of(kind: type[Asked], given: Any, noun: str = "request") -> Asked:
    """A request from a mapping of its fields; ValueError names a field that is missing or not known."""
    if isinstance(given, kind):
        return given
    if not isinstance(given, Mapping):
        raise ValueError(f"each {noun} must be a mapping, got {given!r:.200}")
    for key in given:
        if key not in kind.__struct_fields__:
            known = ", ".join(sorted(kind.__struct_fields__))
            raise ValueError(f"a {noun} has no {key!r:.100}; it may have {known}")
    for key in _required(kind):
        if key not in given:
            raise ValueError(f"each {noun} must have {key!r}, got {dict(given)!r:.200}")
    return kind(**given)


@functools.cache
def _required(kind: type[Request]) -> list[str]:
    return [one.name for one in msgspec.structs.fields(kind) if one.required]


# Populations


class NewPopulation(Request, frozen=True):
    """A population to make, or to find. A setting that is left out has its default, or its recorded value."""

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
    holdout: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Share of agents for whom decisions take the caller's `baseline`."""
    apprentice: bool | None = None
    """Whether all decisions take the caller's `baseline`, while the policy learns."""
    parameters: dict[str, bool | int | float | str | None] = {}
    """The policy's."""


class PopulationFacts(Struct, frozen=True):
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
    holdout: float
    apprentice: bool
    agents: int
    pending: int
    """Decisions that await rewards."""
    sequence: int
    """Number of the last record."""


class Candidate(Request, frozen=True):
    """Another policy, or other parameters of the same one.

    Parameters that are not named stay as they are; those of another policy have its defaults.
    """

    policy: Annotated[str, Meta(max_length=100)] | None = None
    parameters: dict[str, Any] = {}


class NewContest(Request, frozen=True):
    """Candidates to compete with the present policy, in the shadow."""

    candidates: Annotated[list[Candidate], Meta(min_length=1, max_length=8)]
    when: When | None = None
    """When one may take over by itself."""
    share: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    """Share of decisions to explore meanwhile, if not that of the population."""


class ContestNow(Struct, frozen=True):
    """The contest that is on; null if there is none."""

    contest: ContestStanding | None


class Switches(Struct, frozen=True):
    """The policies and parameters so far, in order; the last are in force."""

    settings: list[Switch]


class Alarms(Struct, frozen=True):
    """What is wrong with a population, or settled in it."""

    alarms: list[Alarm]


class Populations(Struct, frozen=True):
    """The populations that the key may see."""

    populations: list[str]


class CatalogueChange(Request, frozen=True):
    """Arms to add to the catalogue, or whose features to change."""

    arms: Annotated[dict[Name, Features], Meta(min_length=1)]


class CatalogueContent(Struct, frozen=True):
    """The arms that the population keeps."""

    arms: dict[str, list[float]]
    sequence: int


# Decisions and rewards


class Offer(Request, frozen=True):
    """An agent, and the arms to choose from."""

    agent: Name
    """Joins if it is new."""
    arms: Arms = None
    """Names with features, rows of features, or names from the catalogue; the whole catalogue by default."""


class NewDecision(Offer, frozen=True, kw_only=True):
    """A decision to make. With an `id`, the same request again gets the same decision."""

    id: Id | None = None
    top: Annotated[int, Meta(ge=1, le=100_000)] = 1
    """How many arms to choose, as a ranking."""
    scores: bool = False
    """Whether to return mean, width and index of every arm."""
    sharing: Sharing | None = None
    """How the agent shares, if it should be different from before."""
    agent_features: Known = None
    """What is known of the agent, null where nothing is, if it should be different from before."""
    baseline: str | int | Sequence[str | int] | None = None
    """The arm, or the ranking, that the caller would have shown, for `holdout` and `apprentice`."""


class DecisionStanding(Struct, frozen=True):
    """What is recorded of a decision."""

    decision: Decision
    at: float
    """Seconds since 1970."""
    rewards: list[float | None]
    """The reward in force of each arm of the ranking."""
    missed: bool
    """Whether a reward was late."""
    cancelled: bool


class Correction(Request, frozen=True, kw_only=True):
    """What a reward may say besides its value."""

    replaces: Number | None = None
    """The reward that is recorded, if this one corrects it."""
    arm: str | int | None = None
    """Which arm of a ranking the reward is for."""


class Reward(Correction, frozen=True):
    """The reward of a decision; with `replaces` a correction."""

    reward: Number


class NamedReward(Correction, frozen=True):
    """The reward of one decision of several."""

    id: Id
    reward: Number


class NewObservation(Request, frozen=True):
    """A sample that was not decided here. With an `id`, the same one again is counted once."""

    agent: Name
    reward: Number
    x: Row = None
    """Features of the arm that was tried; by default, those that the catalogue has for `arm`."""
    arm: Name | None = None
    """Its name, which exports keep."""
    id: Id | None = None


class Learned(Struct, frozen=True):
    """Whether an observation was new."""

    new: bool


class Decisions(Request, frozen=True):
    """Decisions to make together, in one commit."""

    requests: Annotated[list[NewDecision], Meta(max_length=MOST_AT_ONCE)]


class Rewards(Request, frozen=True):
    """Rewards to record together, in one commit."""

    rewards: Annotated[list[NamedReward], Meta(max_length=MOST_AT_ONCE)]


class Problem(Struct, frozen=True, omit_defaults=True):
    """What went wrong (RFC 9457); `type` is stable."""

    type: str
    title: str
    status: int
    detail: str
    request: str | UnsetType = UNSET
    """The request's id, which is in the server's log."""
    recorded: Any = UNSET
    """What is recorded, if that is the reason."""
    limit: str | UnsetType = UNSET
    """Name of the limit that is reached, if that is the reason."""


class DecisionResult(Struct, frozen=True, omit_defaults=True):
    """One of several: a decision or a problem."""

    decision: Decision | UnsetType = UNSET
    problem: Problem | UnsetType = UNSET


class DecisionResults(Struct, frozen=True):
    """For each request, in order, a decision or a problem."""

    results: list[DecisionResult]


class RewardResult(Struct, frozen=True, omit_defaults=True):
    """One of several: empty if it is recorded, or a problem."""

    problem: Problem | UnsetType = UNSET


class RewardResults(Struct, frozen=True):
    """For each reward, in order, nothing or a problem."""

    results: list[RewardResult]


# Agents


class SharingMode(Request, frozen=True):
    """How an agent shares."""

    sharing: Sharing = "both"


class AgentFeatures(Request, frozen=True):
    """What is known of an agent: `agent_dim` numbers, null where nothing is."""

    agent_features: Known


class Agent(Struct, frozen=True):
    """An agent."""

    name: str
    sharing: str
    rewards: int
    """How many it has had."""
    sequence: int
    """Number of the population's last record."""


class GraphContent(Struct, frozen=True):
    """Who shares with whom."""

    sequence: int
    agents: list[str]
    edges: list[list[int]]
    """For each agent the positions of later ones that share with it."""


# The journal


class Event(Struct, frozen=True, omit_defaults=True):
    """A record of the journal."""

    sequence: int
    at: float
    """Seconds since 1970."""
    kind: str
    agent: str | None = None
    """The agent that it is about; none if there is none, or it has been forgotten."""
    id: str | None = None
    arms: list[str | int] | None = None
    """Those that were shown."""
    probability: float | None = None
    own: float | None = None
    pooled: float | None = None
    reward: float | None = None
    replaces: float | None = None
    place: int | None = None
    """Position in the ranking of the arm that it is about."""
    cut: list[str] | None = None
    """With whom the agent stopped sharing."""
    sharing: str | None = None
    agent_features: list[float | None] | None = None
    other: str | None = None
    by: str | None = None
    """Who changed the settings or the catalogue."""


class Events(Struct, frozen=True):
    """Records in order, without archived ones; ask again with `after` = `last` for the next ones."""

    events: list[Event]
    last: int


# The service itself


class Session(Request, frozen=True):
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
