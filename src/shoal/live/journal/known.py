"""Which ids a journal may hold, in two bytes an id: a new id needs no look at the store.

A Bloom filter never denies an id that it was given; of the others it takes fewer than one in a hundred for
known, and those are looked up. It grows by layers, each twice as large as the one before, because ids cannot
be read back out of a full layer.
"""

import hashlib

import msgspec

FIRST = 12
"""The first layer has room for 2**12 ids."""
HASHES = 6
"""Bits set for an id, of 16 that a layer has per id: a full layer matches one other id in a thousand."""


class KnownIds(msgspec.Struct, array_like=True):
    """The ids of decisions and observations in a journal, up to false positives."""

    layers: list[bytearray] = []
    count: int = 0
    """Ids in all layers."""

    def add(self, id: str, key: bytes) -> None:
        """Take in an id; `key` is the journal's own, so that nobody can choose ids that collide."""
        if self.count == (2 ** len(self.layers) - 1) << FIRST:  # the room of all layers together
            self.layers.append(bytearray(2 << (FIRST + len(self.layers))))
        self.count += 1
        layer = self.layers[-1]
        for bit in self._bits(id, key):
            bit %= 8 * len(layer)
            layer[bit >> 3] |= 1 << (bit & 7)

    def may_hold(self, id: str, key: bytes) -> bool:
        """False if an id was certainly never added."""
        bits = self._bits(id, key)
        return any(
            all(layer[(bit % (8 * len(layer))) >> 3] >> (bit & 7) & 1 for bit in bits)
            for layer in reversed(self.layers)
        )

    def _bits(self, id: str, key: bytes) -> memoryview:
        digest = hashlib.blake2b(id.encode(), key=key, digest_size=8 * HASHES).digest()
        return memoryview(digest).cast("Q")
