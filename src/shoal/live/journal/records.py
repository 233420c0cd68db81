"""The rows of a population's journal, and their bytes.

The state of a population is what these records, applied in order, make of nothing (`fold`).
Their bytes are MessagePack arrays that start with the record's tag. A released record never changes: fields
are added at its end, with a default, and tags are never used twice.
"""

from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from shoal.core.policy.living import Sharing
from shoal.core.types import Vector

Mode = Literal["", "holdout", "apprentice"]
"""Who chose: the policy; or the product's rule, for some agents or, while the policy learns, for all."""
SWITCHES = "\x01settings"
"""What rows of `Settings` after the first are found by; no decision can have this id."""


class Keyed:
    """A struct with a secret key, which its repr leaves out."""

    __slots__ = ()

    def __rich_repr__(self, /) -> list[tuple[str, Any]]:
        fields: tuple[str, ...] = type(self).__struct_fields__  # type: ignore[attr-defined]
        return [(name, getattr(self, name)) for name in fields if name != "key"]

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r}" for name, value in self.__rich_repr__())
        return f"{type(self).__name__}({shown})"


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of all records. None can refer to itself, so the garbage collector need not look at them."""


class Settings(Keyed, Record, frozen=True, array_like=True, gc=False, tag=0):
    """What a population is; its first record, and again when it is switched to other settings."""

    policy: str
    dim: int
    parameters: dict[str, Any]
    explore: float
    reward_low: float | None
    reward_high: float | None
    reward_window: float | None
    """Seconds after which a reward counts as missing."""
    default_reward: float | None
    """What a missing reward is taken to be; None: nothing is learned."""
    lend_after: int
    """Rewards after which a new agent's samples are lent to others."""
    key: bytes
    """Keys the hashes from which exploration is drawn."""
    stamp: str
    holdout: float
    """Share of agents for whom the product's own rule decides."""
    apprentice: bool
    """Whether that rule decides for all, and the policy only learns."""
    by: str
    """Who made them so, if that was told: a key of the service, or a person."""


class Joined(Record, frozen=True, array_like=True, gc=False, tag=1):
    """A new agent, the next index."""

    agent: int
    name: str
    sharing: Sharing


class Decided(Record, frozen=True, array_like=True, gc=False, tag=2):
    """An arm, or a ranking of several, was chosen for an agent."""

    id: str
    agent: int
    arms: bytes
    """Digest of the arms on offer."""
    shown: tuple[int, ...]
    """Positions of the chosen arms among those on offer."""
    greedy: int
    """Position of the arm that the policy prefers."""
    probability: float | None
    """Of choosing what was chosen; None for rankings."""
    own: float
    """Reward that the agent's own samples predict for the first chosen arm."""
    pooled: float
    """Reward that the policy predicts for it."""
    x: bytes
    """Features of the chosen arms."""
    mode: Mode
    baseline: tuple[int, ...]
    """Positions of the arms that the product's own rule prefers; none if it was not told."""


class Rewarded(Record, frozen=True, array_like=True, gc=False, tag=3):
    """A reward has come; the sample has been learned in the policy's round `round`."""

    id: str
    place: int
    reward: float
    round: int
    cuts: tuple[int, ...] = ()
    """Agents that the rewarded one was separated from by it."""
    agent: int = -1
    """Whose reward it is, and the features of the arm, if it was no longer awaited."""
    x: bytes = b""
    own: float | None = None
    """What the decision had predicted, if it was no longer awaited and this is its first arm's reward."""
    pooled: float | None = None
    moments: tuple[float, float] | None = None
    """Mean and variance of the logit that a click was learned with, where rewards are clicks."""


class Missed(Record, frozen=True, array_like=True, gc=False, tag=4):
    """No reward came within the window; the default, if there is one, has been learned instead."""

    id: str
    place: int
    reward: float | None
    round: int
    cuts: tuple[int, ...] = ()
    moments: tuple[float, float] | None = None


class Corrected(Record, frozen=True, array_like=True, gc=False, tag=5):
    """A reward that was learned in the policy's round `round` has been replaced by another."""

    id: str
    place: int
    old: float
    new: float
    agent: int
    x: bytes
    round: int
    own: float | None
    """What the decision had predicted of its first arm, if the reward is that one's."""
    pooled: float | None
    moments: tuple[float, float] | None = None


class Cancelled(Record, frozen=True, array_like=True, gc=False, tag=6):
    """A decision was never shown."""

    id: str


class Observed(Record, frozen=True, array_like=True, gc=False, tag=7):
    """A sample that was not decided here."""

    agent: int
    x: bytes
    reward: float
    round: int
    id: str | None
    cuts: tuple[int, ...] = ()
    arm: str | None = None
    """The arm's name, if it was told."""
    moments: tuple[float, float] | None = None


class Shares(Record, frozen=True, array_like=True, gc=False, tag=8):
    """Another sharing mode for an agent."""

    agent: int
    sharing: Sharing


class Renamed(Record, frozen=True, array_like=True, gc=False, tag=9):
    """Another name for an agent; the old one is free again."""

    agent: int
    name: str


class Merged(Record, frozen=True, array_like=True, gc=False, tag=10):
    """Two agents turned out to be one: `other` is from now on another name of `agent`."""

    agent: int
    other: int


class Forgotten(Record, frozen=True, array_like=True, gc=False, tag=11):
    """Agents were forgotten: all their records before this one are tombstones."""

    agents: tuple[int, ...]


class Tombstone(Record, frozen=True, array_like=True, gc=False, tag=12):
    """Where a forgotten agent's record was. `agent` is its index if it was the one that joined, or −1."""

    agent: int


class Catalogue(Record, frozen=True, array_like=True, gc=False, tag=13):
    """Another version of the catalogue of arms, by its digest."""

    arms: bytes
    by: str
    """Who changed it, if that was told."""
    retired: tuple[str, ...] = ()
    """Arms that are no longer in it."""


class Opened(Record, frozen=True, array_like=True, gc=False, tag=14):
    """From here on a version or machine wrote that may compute other last digits."""

    stamp: str


class Contested(Record, frozen=True, array_like=True, gc=False, tag=15):
    """Candidates begin to compete with the present policy, in the shadow; none: they cease to.

    The next `Settings`, whoever made them, end it, too.
    """

    candidates: tuple[tuple[str, dict[str, Any]], ...]
    """Policies and their parameters."""
    when: str
    """When to switch by itself: "surely better", or never."""
    share: float
    """Share of decisions that are explored meanwhile."""
    by: str


class Profiled(Record, frozen=True, array_like=True, gc=False, tag=16):
    """What is known of an agent from here on."""

    agent: int
    features: bytes
    """As many as the policy takes, NaN where nothing is known."""


AnyRecord = (
    Settings
    | Joined
    | Decided
    | Rewarded
    | Missed
    | Corrected
    | Cancelled
    | Observed
    | Shares
    | Renamed
    | Merged
    | Forgotten
    | Tombstone
    | Catalogue
    | Opened
    | Contested
    | Profiled
)


class Row(NamedTuple):
    """A record with its place in the journal."""

    seq: int
    at: int
    """Microseconds since 1970."""
    agent: int | None
    """Whose it is, for forgetting."""
    decision: str | None
    """The decision it is about."""
    body: bytes


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(AnyRecord)
encode = _encoder.encode
decode = _decoder.decode


def vector(data: bytes) -> Vector:
    """Features of one arm, shape (d,), from their bytes; writable, as compiled code wants it."""
    return np.frombuffer(bytearray(data), dtype=np.float64)
