"""The words of OFREP, OpenFeature's remote evaluation protocol: a population is a flag, its arms variants."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from shoal.live.protocol.messages import Arms, Id

Reason = Literal["TARGETING_MATCH", "SPLIT"]
ErrorCode = Literal["PARSE_ERROR", "TARGETING_KEY_MISSING", "INVALID_CONTEXT", "GENERAL", "FLAG_NOT_FOUND"]


class EvaluationContext(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Whom a flag is evaluated for. Other attributes are allowed, and neither used nor recorded."""

    targeting_key: str | None = None
    """The agent; it joins if it is new."""
    decision_id: Id | None = None
    """An id for the decision: a new one for each exposure. Without it, see `ofrep.py`."""
    arms: Arms = None
    """Names from the catalogue, or names with features; the whole catalogue by default. Not in bulk."""
    baseline: str | None = None
    """The arm that the caller would have shown, for `holdout` and `apprentice`."""


class EvaluationRequest(Struct, frozen=True):
    """A flag, or all of them, to be evaluated."""

    context: EvaluationContext = EvaluationContext()


class FlagMetadata(Struct, frozen=True):
    """What is known of an evaluation besides its value."""

    decision: str
    """Id of the decision, to report its reward with."""
    probability: float
    """With which this variant was chosen."""


class FlagEvaluation(Struct, frozen=True):
    """The value of a flag."""

    key: str
    value: bool | str | int
    """The arm: its name, true or false if that is its name, or its position if it has none."""
    variant: str
    """The same as text."""
    reason: Reason
    """TARGETING_MATCH if it is the arm that the policy prefers, SPLIT if it was drawn or is the baseline."""
    metadata: FlagMetadata


class EvaluationFailure(Struct, frozen=True, rename="camel", omit_defaults=True):
    """Why a flag, or in bulk all of them, could not be evaluated."""

    error_code: ErrorCode
    error_details: str
    key: str | UnsetType = UNSET


class FlagResult(Struct, frozen=True, rename="camel", omit_defaults=True):
    """One of several flags: a `FlagEvaluation` or an `EvaluationFailure`."""

    key: str
    value: bool | str | int | UnsetType = UNSET
    variant: str | UnsetType = UNSET
    reason: Reason | UnsetType = UNSET
    metadata: FlagMetadata | UnsetType = UNSET
    error_code: ErrorCode | UnsetType = UNSET
    error_details: str | UnsetType = UNSET


class FlagEvaluations(Struct, frozen=True):
    """All flags that the key may evaluate."""

    flags: list[FlagResult]
