"""Which policy, with which parameters, for this data? Played, compared and written down."""

from shoal.recommendation.playing import Recommendation, recommend

__all__ = ["Recommendation", "recommend"]
