"""The arms on offer: named or numbered, with features given per call or kept in a catalogue."""

import hashlib
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np

from shoal.core import validation
from shoal.core.types import Matrix
from shoal.live.protocol.errors import UnknownError

MOST_ARMS = 100_000
LONGEST_NAME = 256
BIDIRECTIONAL = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text around them."""


class Stored(msgspec.Struct, frozen=True, array_like=True):
    """A set of arms as the store keeps it: with features, or as a part of another set."""

    names: tuple[str, ...] | None
    features: bytes
    whole: bytes | None = None
    """Digest of the set that these arms are a part of."""
    positions: bytes = b""
    """Where in that set they stand (32-bit integers)."""


class ArmSet:
    """Arms in order, each with features and perhaps a name.

    Parameters
    ----------
    features : array of shape (K, d)
    names : sequence of str, optional
        Without names, an arm is known by its position.
    """

    def __init__(self, features: Matrix, names: Sequence[str] | None = None) -> None:
        self.features = features
        self.names = None if names is None else tuple(names)
        self.whole: bytes | None = None
        """Digest of the set that these arms are a part of."""
        self._part = b""

    @classmethod
    def of(cls, arms: Any, dim: int) -> "ArmSet":
        """Arms from what a caller gave: names with features, or rows of features."""
        if isinstance(arms, ArmSet):
            return arms
        if isinstance(arms, Mapping):
            names = [checked_name("arm", name) for name in arms]
            return cls(_features(list(arms.values()), dim), names)
        return cls(_features(arms, dim))

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def digest(self) -> bytes:
        """Names the set: 16 bytes of a hash of names and features."""
        hasher = hashlib.blake2b(self.features.data, digest_size=16)
        if self.names is not None:
            hasher.update(msgspec.msgpack.encode(self.names))
        return hasher.digest()

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: position for position, name in enumerate(self.names or ())}

    def name(self, position: int) -> str | int:
        """What the caller knows an arm by."""
        return position if self.names is None else self.names[position]

    def position(self, arm: Any) -> int:
        """Where an arm stands that the caller names."""
        if self.names is None:
            if not isinstance(arm, int | np.integer) or not 0 <= arm < len(self):
                raise UnknownError(f"no arm {validation.show(arm)}: the arms are 0, …, {len(self) - 1}")
            return int(arm)
        if not isinstance(arm, str) or arm not in self._positions:
            raise UnknownError(f"no arm {validation.show(arm)} among those on offer")
        return self._positions[arm]

    def subset(self, names: Iterable[str]) -> "ArmSet":
        """The arms of these names, in the order of this set."""
        positions = np.array(sorted({self.position(name) for name in names}), dtype=np.int32)
        if not len(positions):
            raise ValueError("arms must name at least one arm, got none")
        if len(positions) == len(self):
            return self
        chosen = None if self.names is None else [self.names[position] for position in positions]
        part = ArmSet(np.ascontiguousarray(self.features[positions]), chosen)
        part.whole, part._part = self.digest, positions.tobytes()
        return part

    def answers(self, arms: Any) -> bool:
        """Whether a request for `arms` may have been answered with these."""
        if arms is None:  # the catalogue, which may have changed since
            return True
        if are_names(arms):
            return set(arms) == set(self.names or ())
        return ArmSet.of(arms, self.features.shape[1]).digest == self.digest

    def stored(self) -> bytes:
        """The bytes to keep."""
        if self.whole is not None:
            return msgspec.msgpack.encode(Stored(None, b"", self.whole, self._part))
        return msgspec.msgpack.encode(Stored(self.names, self.features.tobytes()))


def restored(data: bytes, dim: int, find: Any) -> ArmSet:
    """The set of arms from its bytes; `find` gives the bytes of another digest."""
    stored = msgspec.msgpack.decode(data, type=Stored)
    if stored.whole is not None:
        whole = restored(find(stored.whole), dim, find)
        positions = np.frombuffer(stored.positions, dtype=np.int32)
        return whole.subset([whole.name(int(position)) for position in positions])  # type: ignore[misc]
    # Copied once: compiled code takes no read-only array, and every decision would copy it.
    features = np.frombuffer(stored.features, dtype=np.float64).reshape(-1, dim).copy()
    return ArmSet(features, stored.names)


def are_names(arms: Any) -> bool:
    """Whether arms are given by names from the catalogue, not with features."""
    return isinstance(arms, list | tuple | set | frozenset) and all(isinstance(one, str) for one in arms)


def checked_name(what: str, name: Any) -> str:
    """A name of an agent, arm or population, or an error."""
    if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
        raise ValueError(
            f"{what} must be a text of 1 to {LONGEST_NAME} characters, got {validation.show(name)}"
        )
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} must be valid Unicode, got {validation.show(name)}") from None
    if "\0" in name:
        raise ValueError(f"{what} must not hold a null character, got {validation.show(name)}")
    if not name.isascii():
        # Two names that look the same would be two agents, and a control can make one look like another.
        if not unicodedata.is_normalized("NFC", name):
            raise ValueError(f"{what} must be in Unicode normal form C (NFC), got {validation.show(name)}")
        if not BIDIRECTIONAL.isdisjoint(name):
            raise ValueError(f"{what} must not hold bidirectional controls, got {validation.show(name)}")
    return name


def checked_by(by: Any) -> str:
    """Who does something, for the record: a name, or nothing."""
    return "" if by == "" else checked_name("by", by)


def _features(rows: Any, dim: int) -> Matrix:
    features = validation.matrix("arms", rows, columns=dim)
    if len(features) > MOST_ARMS:
        raise ValueError(f"arms must be at most {MOST_ARMS:,}, got {len(features):,}")
    return features
