"""BASS: what users call (`policy`), what both engines share (`common`), and the two engines."""

from shoal.core.policies.bass.policy import BASS, CutExplanation

__all__ = ["BASS", "CutExplanation"]
