"""Memory is counted before it is taken: all of it, and for every policy."""

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.core.attack.common import run
from tests.core.contracts.test_policies import OWN, every_live_policy, every_policy, make, play, snapshot

import shoal
from shoal.core import fields
from shoal.core.policy import memory


@every_policy
@pytest.mark.parametrize(("n_agents", "dim"), [(1, 1), (9, 3), (150, 7), (700, 12)])
def test_the_check_counts_what_the_state_takes(
    name: str, n_agents: int, dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {"labels": np.arange(n_agents) % 40} if name == "oracle" else {}
    if name in ("goblin", "colin"):
        own = {"graph": np.eye(n_agents, k=1) + np.eye(n_agents, k=-1)}
    checked: list[float] = []
    refuse = memory.refuse

    def note(owner: str, needed: float, *more: Any) -> None:
        checked.append(needed)
        refuse(owner, needed, *more)

    monkeypatch.setattr(memory, "refuse", note)
    policy = shoal.make_policy(name, n_agents, dim, **{"alpha": 0.5, **OWN.get(name, {}), **own})
    sizes = policy._sizes(n_agents)
    arrays = [leaf.used(policy.state, sizes) for leaf in fields.leaves(type(policy.state))]
    assert checked == [sum(getattr(value, "nbytes", 0) for value in arrays)] == [policy.nbytes]


def test_labels_far_apart_take_no_more_than_labels_close_by() -> None:
    far, near = (shoal.Oracle(2, 3, alpha=0.5, labels=labels) for labels in ([0, 2 * 10**7], [0, 1]))
    assert far.nbytes == near.nbytes
    assert list(far.labels) == [0, 2 * 10**7]
    far.add_agents(2, labels=[10**15, 0])
    assert list(far.labels) == [0, 2 * 10**7, 10**15, 0]
    far.update(0, np.ones(3), 1.0)
    assert list(far.neighbors(3)) == [0, 3]
    assert far.graph.sum() == 2


@every_live_policy
def test_a_refusal_for_want_of_memory_changes_nothing(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    policy = make(name)
    play(policy, 50)
    before, labels = snapshot(policy), {"labels": [0, 1, 77]} if name == "oracle" else {}
    monkeypatch.setattr(memory, "physical_memory", lambda: 1.05 * policy.nbytes)
    with pytest.raises(MemoryError, match=rf"{type(policy).__name__} with n_agents=12, dim=3 needs at least"):
        policy.add_agents(3, **labels)
    monkeypatch.undo()
    assert snapshot(policy) == before
    policy.save(tmp_path / "p")
    assert shoal.load_policy(tmp_path / "p").n_agents == 9
    policy.add_agents(3, **labels)
    assert policy.n_agents == 12
    play(policy, 30)


@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="pages are of one size here")
def test_agents_without_samples_take_no_memory_of_arrays_that_are_large() -> None:
    taken = """
import numpy as np, resource, shoal
policy = shoal.ClusterMixture(200_000, 10)
policy.update(0, np.ones(10), 1.0)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for agent in range(0, 200_000, 400):  # 500 agents, all over the arrays
    policy.update(agent, np.ones(10), 1.0)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = run("-c", taken)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 150_000  # kilobytes; in pages of two megabytes it would be all of them, 800,000
