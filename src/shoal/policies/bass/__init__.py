"""BASS, as a small package: what users call (`policy`), what both engines share (`common`), the two engines."""

from shoal.policies.bass.policy import BASS, Explanation

__all__ = ["BASS", "Explanation"]
