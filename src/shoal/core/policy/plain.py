"""What can be asked of any object with `select` and `update`, be it a `Policy` or not."""

import math
from typing import Any

from shoal.core.policy.base import Choice
from shoal.core.types import Matrix


def choose(policy: Any, agent: int, arms: Matrix) -> Choice:
    """`Policy.choose`; of a plain policy, what `select` and, where it has that method, `predict` say.

    Without `predict(agent, x)`, which returns the own and the pooled prediction, both are nan.
    """
    if hasattr(policy, "choose"):
        return Choice(*policy.choose(agent, arms))
    arm = int(policy.select(agent, arms))
    own, pooled = policy.predict(agent, arms[arm]) if hasattr(policy, "predict") else (math.nan, math.nan)
    return Choice(arm, float(own), float(pooled))
