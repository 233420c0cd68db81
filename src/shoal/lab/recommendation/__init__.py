"""Which policy, with which parameters, for this data? Played, compared and written down."""

from shoal.lab.recommendation.logs import recommend
from shoal.lab.recommendation.playing import Recommendation

__all__ = ["Recommendation", "recommend"]
