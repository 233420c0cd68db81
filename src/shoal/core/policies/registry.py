"""Policies by name: the built-in ones, and other packages' through the entry point `shoal.policies`."""

import os
from pathlib import Path
from typing import Any

from shoal.core.policy import files
from shoal.core.policy.base import Policy, restore
from shoal.core.policy.files import PolicyFileError
from shoal.core.policy.living import LivePolicy
from shoal.core.registry import Registry

GROUP = "shoal.policies"
# Named, not imported: a process loads the policies that it uses, and core does not depend on lab.
_registered: dict[str, Any] = {
    "independent": "shoal.core.policies.independent:Independent",
    "oracle": "shoal.core.policies.oracle:Oracle",
    "dynucb": "shoal.lab.rivals.dynucb:DynUCB",
    "club": "shoal.lab.rivals.club:CLUB",
    "sclub": "shoal.lab.rivals.sclub:SCLUB",
    "cmlb": "shoal.lab.rivals.cmlb:CMLB",
    "bass": "shoal.core.policies.bass:BASS",
    "cluster_mixture": "shoal.core.policies.mixture:ClusterMixture",
}
BUILT_IN = tuple(_registered)
_registered |= {
    "lints": "shoal.lab.rivals.lints:LinTS",
    "hier_ts": "shoal.lab.rivals.hierarchical:HierTS",
    "hier_ucb": "shoal.lab.rivals.hierarchical:HierUCB",
    "codband": "shoal.lab.rivals.codband:CoDBand",
    "dyclu": "shoal.lab.rivals.dyclu:DyClu",
    "locb": "shoal.lab.rivals.locb:LOCB",
    "rclumb": "shoal.lab.rivals.rclumb:RCLUMB",
    "rsclumb": "shoal.lab.rivals.rsclumb:RSCLUMB",
    "cab": "shoal.lab.rivals.cab:CAB",
    "goblin": "shoal.lab.rivals.goblin:GOBLin",
    "colin": "shoal.lab.rivals.colin:CoLin",
}
RIVALS = tuple(_registered)[len(BUILT_IN) :]
"""What the field has beside the paper's methods: compiled when first used, not ahead of time."""


def _problem(found: Any) -> str | None:
    methods = (getattr(found, name, None) for name in ("select", "update"))
    if isinstance(found, type) and all(map(callable, methods)):
        return None
    return "a class with the methods select and update"


_registry = Registry("policy", GROUP, _registered, _problem)


def register_policy(name: str, policy: type) -> None:
    """Make a policy class known by name. A name can be given once.

    Examples
    --------
    >>> class First:
    ...     "Always the first arm."
    ...     def __init__(self, n_agents, dim): ...
    ...     def select(self, agent, arms): return 0
    ...     def update(self, agent, x, reward): ...
    >>> register_policy("first", First)
    >>> make_policy("first", 3, 2).select(0, [[1.0, 0.0], [0.0, 1.0]])
    0
    """
    _registry.register(name, policy)


def policy_names() -> tuple[str, ...]:
    """The names that `make_policy` knows, other packages' included.

    Examples
    --------
    >>> policy_names()[:3]
    ('independent', 'oracle', 'dynucb')
    """
    return _registry.names()


def policy_class(name: str) -> type:
    """The policy class of that name."""
    found: type = _registry.named(name)
    return found


def find_policy(reference: str) -> type:
    """The policy class of that name, or the one at `module:Class`; see `shoal.core.registry.Registry`."""
    found: type = _registry.find(reference)
    return found


def find_live_policy(reference: str) -> type[LivePolicy]:
    """`find_policy` for populations and for what is evaluated for them: these take live policies only."""
    found = find_policy(reference)
    if issubclass(found, LivePolicy):
        return found
    raise ValueError(
        f"policy must be {for_live_use()}, got {reference!r}: {found.__name__} cannot forget a person, nor "
        "take a correction"
    )


def for_live_use() -> str:
    """What a population's policy may be, for error messages."""
    live = [name for name in BUILT_IN if issubclass(policy_class(name), LivePolicy)]
    return f"one for live use ({', '.join(live)}, or a shoal.LivePolicy of your own)"


def make_policy(name: str, n_agents: int, dim: int, **parameters: Any) -> Any:
    """Build a policy from its name, e.g. `make_policy("bass", 100, 10, alpha=0.3, delta=0.1)`.

    A class that is not registered is named as `module:Class`.

    Examples
    --------
    >>> make_policy("club", 100, 10, gamma=0.5).parameters["gamma"]
    0.5
    """
    return find_policy(name)(n_agents, dim, **parameters)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read back whatever policy a file holds.

    Examples
    --------
    >>> import tempfile
    >>> policy = make_policy("bass", 3, 2)
    >>> policy.update(0, [0.0, 1.0], reward=1.0)
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     policy.save(f"{directory}/policy.npz")
    ...     again = load_policy(f"{directory}/policy.npz")
    >>> again.pulls
    array([1, 0, 0])
    """
    return _from_contents(path, files.read(Path(path)))


def policy_from_bytes(content: bytes, source: str) -> Policy:
    """The policy in the bytes of a file; `source` is what errors call it."""
    return _from_contents(source, files.parse(Path(source), content))


def _from_contents(path: str | os.PathLike[str], contents: files.Contents) -> Policy:
    try:
        kind = policy_class(contents.policy)
    except ValueError as error:
        raise PolicyFileError(f"{path}: {error}") from error
    if not issubclass(kind, Policy):
        raise PolicyFileError(f"{path}: policies of the kind {contents.policy!r} are not saved in files")
    return restore(kind, Path(path), contents)
