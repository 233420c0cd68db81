"""Golden traces: what every policy does on a fixed run. `python tests/golden/make.py` adds missing ones.

With names it writes the traces of these anew: only when a change is meant to change decisions, and say so in
CHANGELOG.md.
"""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.core.policies.registry import BUILT_IN, RIVALS, policy_class
from shoal.lab.benchmark import typical

PATH = Path(__file__).with_name("traces.json")
OWN: dict[str, dict[str, Any]] = {
    "club": {"gamma": 0.3},
    "sclub": {"gamma": 0.4},
    "cmlb": {"gamma": 0.5, "exploration_rounds": 300},
    "locb": {"n_seeds": 6, "gamma": 1.0},
    "cab": {"gamma": 1.0},
}
"""Where something else than what is typical of a policy makes it decide more."""
CLASSES: dict[str, Any] = {name: policy_class(name) for name in (*BUILT_IN, *RIVALS)}


VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    # ClusterMixture without scatter, change and ridge bonus
    "cluster_mixture-plain": ("cluster_mixture", {"scatter": 0, "drift": False, "ridge_bonus": 0}),
    "bass-sample": ("bass", {"exploration": "sample"}),
    "club-as-released": ("club", {"gamma": 0.3, "bonus": "as-released"}),
}


def golden(name: str) -> dict[str, Any]:
    """A digest of the choices and cuts of one policy, with the figures a reader can compare."""
    environment = shoal.SyntheticClusters(20, 6, 3, 1.3, seed=11)
    kind, chosen = VARIANTS.get(name, (name, OWN.get(name, {})))
    own = typical(CLASSES[kind], environment) | chosen
    policy = shoal.make_policy(kind, 20, 6, alpha=0.4, epsilon=0.02, seed=11, **own)
    trace = shoal.simulate(policy, environment, horizon=4000, seed=11, points=20)
    decisions = [trace.agents, trace.choices, trace.edges, trace.communication]
    if trace.separation_time is not None:
        decisions.append(trace.separation_time)
    content = b"".join(np.ascontiguousarray(array, dtype="<i8").tobytes() for array in decisions)
    return {
        "digest": hashlib.sha256(content).hexdigest()[:32],
        "regret": round(trace.final_regret, 6),
        "edges": int(trace.edges[-1]),
        "communication": int(trace.communication[-1]),
    }


if __name__ == "__main__":
    saved, anew = json.loads(PATH.read_text()), sys.argv[1:]
    traces = {
        name: golden(name) if name in anew or name not in saved else saved[name]
        for name in (*CLASSES, *VARIANTS)
    }
    PATH.write_text(json.dumps(traces, indent=2) + "\n")
