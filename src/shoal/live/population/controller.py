"""A controller: the populations of one store, and the thread that commits for them."""

import contextlib
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import msgspec

from shoal.core import validation
from shoal.live.journal.arms import checked_by, checked_name
from shoal.live.journal.committer import Committer, uptime
from shoal.live.journal.fold import check_default, current_stamp, policy_parameters
from shoal.live.journal.records import Opened, Settings
from shoal.live.journal.stores import open_store
from shoal.live.journal.stores.base import LEASE, Lease, Store
from shoal.live.journal.stores.memory import MemoryStore
from shoal.live.journal.stores.sqlite import SQLiteStore
from shoal.live.population.forgetting import forget_again, rebuild_soon
from shoal.live.population.owner import Owner
from shoal.live.population.population import Population
from shoal.live.population.retention import needs_cleaning
from shoal.live.population.snapshotter import EVERY, Process
from shoal.live.protocol.errors import (
    ConflictError,
    ControllerError,
    JournalError,
    NotOwnerError,
    UnknownError,
)

MOST_NAMED = 10
"""Populations that an error lists."""
NEARLY_FULL = 10e6
"""Bytes left on disk below which it is tried whether the store can commit."""


def open(
    url: str | os.PathLike[str],
    *,
    sync: str = "full",
    read_only: bool = False,
    lease: float = LEASE,
    forgotten: str | os.PathLike[str] | None = None,
    snapshot_every: int = EVERY,
) -> "Controller":
    """Open the populations in a store.

    Parameters
    ----------
    url : str or path
        Of an SQLite file, which is made if need be; `postgresql://…` for a server (extra `postgres`);
        `:memory:` to keep nothing.
    sync : {"full", "normal"}
        What an acknowledged change survives: "full" a power failure, "normal" only a crash of the process.
    read_only : bool
        Look on while another process writes.
    lease : float
        Seconds after which another process may take over from one that is silent (PostgreSQL).
    forgotten : path, optional
        File that remembers, as hashes, who was forgotten, so that restoring a backup forgets them again.
        Beside an SQLite file unless given; none for PostgreSQL unless given.
    snapshot_every : int
        Rows after which a second process writes a snapshot of a population, so that opening it next time is
        quick; 0 for never.

    Examples
    --------
    >>> controller = open(":memory:")
    >>> shop = controller.population("shop", policy="bass", dim=2, seed=1)
    >>> decision = shop.decide("ada", arms={"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}, id="first")
    >>> shop.reward("first", 1.0)
    >>> shop.agents
    ['ada']
    """
    validation.one_of("sync", sync, ("full", "normal"))
    validation.number("lease", lease, low=0.1, high=3600.0)
    validation.natural("snapshot_every", snapshot_every)
    text = os.fspath(url)
    store = open_store(text, sync=sync, read_only=read_only, lease=lease)
    if isinstance(store, SQLiteStore):
        text = str(store.path.absolute())
        forgotten = f"{text}.forgotten" if forgotten is None else forgotten
    return Controller(
        store,
        read_only=read_only,
        lease=lease,
        forgotten=forgotten,
        snapshot_every=0 if isinstance(store, MemoryStore) else snapshot_every,
        url=text,
    )


class Controller:
    """The populations of one store. Use it as a context manager, or call `close`.

    Examples
    --------
    >>> import shoal
    >>> with shoal.open(":memory:") as controller:
    ...     shop = controller.population("shop", policy="bass", dim=2)
    ...     controller.populations()
    ['shop']
    """

    def __init__(
        self,
        store: Store,
        *,
        read_only: bool = False,
        lease: float = LEASE,
        forgotten: str | os.PathLike[str] | None = None,
        owner: str | None = None,
        snapshot_every: int = 0,
        url: str = "",
    ) -> None:
        self.store = store
        self._snapshot_every, self._url = snapshot_every, url
        self._lease = lease
        self._patience = 1.5 * lease
        self._owner = owner or f"process {os.getpid()} on {socket.gethostname()}"
        self._populations: dict[str, Population] = {}
        self._lock = threading.RLock()
        self._forgotten = None if forgotten is None else Path(forgotten)
        self.committer: Committer | None = None
        if not read_only:
            self.committer = Committer(store, lease, self._beat)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def populations(self) -> list[str]:
        """Names of the populations."""
        return list(self.store.populations())

    def population(
        self,
        name: str,
        policy: str | None = None,
        dim: int | None = None,
        *,
        explore: float | None = None,
        reward_range: tuple[float, float] | None = None,
        reward_window: float | None = None,
        default_reward: float | None = None,
        lend_after: int | None = None,
        holdout: float | None = None,
        apprentice: bool | None = None,
        by: str = "",
        **parameters: Any,
    ) -> Population:
        """A population, made at first use. What is given later must agree with what is recorded.

        Parameters
        ----------
        name : str
        policy : str
            Name of a policy, or `module:Class`.
        dim : int
            Dimension of the arms.
        explore : float, default 0.02
            Share of decisions that are drawn uniformly, so that other policies can be evaluated from the
            journal. With 0, they cannot.
        reward_range : pair of floats, optional
            Rewards outside of it are refused.
        reward_window : float, optional
            Seconds after which a reward counts as missing.
        default_reward : float, optional
            What a missing reward is taken to be. Without one, nothing is learned of the decision.
        lend_after : int, default 0
            Rewards that a new agent must have before others use its samples.
        holdout : float, default 0
            Share of agents for whom the product's own rule decides, so that `uplift` can compare. Every
            decision then has to be told what that rule prefers (`baseline`).
        apprentice : bool, default False
            Whether that rule decides for everybody, and the policy only learns.
        by : str, default ""
            Who makes it, for the record.
        **parameters
            Of the policy.
        """
        checked_name("name", name)
        with self._lock:
            given = _given(
                policy=policy,
                dim=dim,
                explore=explore,
                reward_low=None if reward_range is None else reward_range[0],
                reward_high=None if reward_range is None else reward_range[1],
                reward_window=reward_window,
                default_reward=default_reward,
                lend_after=lend_after,
                holdout=holdout,
                apprentice=apprentice,
                seed=parameters.pop("seed", None),
            )
            given |= parameters  # of which None may be one to estimate
            known = self._populations.get(name)
            if known is not None and not known.owner.is_lost:
                _begin(known.owner, None, given)
                return known
            is_new = name not in self.store.populations()
            if is_new and (policy is None or dim is None):
                hint = "" if self.committer is None else "; give policy and dim to make it"
                raise no_population(self.store.url, name, self.populations(), hint)
            settings = make_settings(given, by) if is_new or (policy and dim) else None
            if self.committer is None:
                if is_new:
                    raise no_population(self.store.url, name, self.populations())
                owner = Owner(self.store, None, name, Lease(self.store.populations()[name], 0, 0, ""))
            else:
                number = self.store.create(name)
                lease, sure_until = self._take(number)
                owner = Owner(self.store, self.committer, name, lease, sure_until)
                if self._snapshot_every:
                    owner.snapshotter = Process(self._url, self._snapshot_every)
            population = Population(self, owner)
            self._populations[name] = population  # its lease is kept from here on, however long loading takes
            try:
                _begin(owner, settings, given)
                self._forget_again(owner)
            except BaseException:
                del self._populations[name]
                if self.committer is not None:
                    with contextlib.suppress(ControllerError):
                        self.store.release(owner.lease)
                raise
            return population

    def share(self, owner: str) -> None:
        """Own populations under a name, and wait for no other owner: it is alive, or another server is."""
        self._owner, self._patience = owner, 0.0

    def drop(self, name: str) -> None:
        """Let go of a population that another process has taken over."""
        with self._lock:
            population = self._populations.get(name)
            if population is None or not population.owner.is_lost:
                return
            del self._populations[name]
        population.close()

    def _take(self, number: int) -> tuple[Lease, float]:
        """Own a population, and until when for sure; wait for a previous owner that may have died."""
        deadline = time.monotonic() + self._patience
        while True:
            sure_until = uptime() + self._lease
            try:
                return self.store.take(number, self._owner, self._lease), sure_until
            except NotOwnerError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(min(0.1, self._lease / 10))

    def _beat(self) -> None:
        """Now and then: keep leases, and note which rewards are missing."""
        owners = [one.owner for one in list(self._populations.values())]  # no lock: its holder may be waiting
        own = {one.number: one for one in owners if not one.is_lost}
        sure_until = uptime() + self._lease
        committer = self.committer
        if committer is None:  # it is being made
            return
        try:
            # While nothing is committed, nothing else would notice that the store is well again, or full.
            if committer.trouble or self.store.free() < NEARLY_FULL:
                self.store.probe()
            lost = self.store.renew([one.lease for one in own.values()], self._lease)
            for number, one in own.items():
                if number in lost:
                    one.lose(NotOwnerError(f"population {one.name!r} was taken over by {lost[number]}"))
                else:
                    one.sure_until = sure_until
            committer.trouble = ""
        except Exception as error:  # the thread that beats also commits, and must go on
            committer.trouble = str(error)
        for one in own.values():
            one.miss_rewards()
            if one.snapshotter is not None:
                one.snapshotter.tend(one)

    # People who were forgotten, remembered beside the store

    def remember_forgotten(self, population: int, hashes: list[bytes]) -> None:
        """Write hashes to the file beside the store."""
        if self._forgotten is None:
            return
        with self._forgotten.open("ab") as file:
            file.write(b"".join(b"%d %s\n" % (population, one.hex().encode()) for one in hashes))
            file.flush()
            os.fsync(file.fileno())

    def _remembered(self, population: int) -> set[bytes]:
        """The hashes in the file beside the store; a line that a crash cut short is passed over."""
        if self._forgotten is None or not self._forgotten.exists():
            return set()
        whole = re.findall(rb"^(\d+) ([0-9a-f]{32})$", self._forgotten.read_bytes(), re.MULTILINE)
        return {bytes.fromhex(one.decode()) for number, one in whole if int(number) == population}

    def _forget_again(self, owner: Owner) -> None:
        """Forget again the people that a restored backup brought back."""
        if self._forgotten is None or self.committer is None:
            return
        number = owner.number
        remembered, known = self._remembered(number), set(self.store.gone(number))
        if missing := sorted(known - remembered):  # a crash came between the store and the file
            self.remember_forgotten(number, missing)
        if remembered - known:
            forget_again(owner, remembered, self.remember_forgotten)

    def verify(self, *names: str) -> dict[str, list[str]]:
        """Check journal and state of all populations, or some; what is wrong with each, usually nothing."""
        from shoal.live.population.verification import verify

        problems = {}
        numbers = self.store.populations()
        for name in names or numbers:
            if name in numbers and not self.store.last_seq(numbers[name]):
                continue  # a crash came while it was made
            try:
                problems[name] = verify(self.population(name).owner)
            except JournalError as error:
                problems[name] = [str(error)]
        return problems

    def close(self) -> None:
        """Commit what is on its way and release everything."""
        with self._lock:
            populations = list(self._populations.values())
        with ExitStack() as last_first:  # whatever fails, the rest is let go of
            last_first.callback(self.store.close)
            if self.committer is not None:
                last_first.callback(self.committer.close)
            for one in populations:
                last_first.callback(one.close)


def _begin(owner: Owner, settings: Settings | None, given: Mapping[str, Any]) -> None:
    """Load a population that is opened, or make it."""
    if not owner.is_loaded and owner.store.last_seq(owner.number) == 0:
        if settings is None:
            raise UnknownError(f"{owner.store.url} has no population {owner.name!r}")
        owner.perform(1, lambda turn: turn.write(settings))
        return
    recorded, stamp = owner.read(lambda fold: (fold.settings, fold.stamp))
    for key, value in given.items():
        known = getattr(recorded, key) if key in _OWN_SETTINGS else recorded.parameters.get(key)
        if known != value:
            raise ConflictError(
                f"population {owner.name!r} has {key} = {known!r}, not {value!r}; settings are "
                "fixed when a population is made, and only `switch` changes policy and parameters",
                known,
            )
    if owner.reads_only:
        return
    if stamp != current_stamp():
        owner.perform(1, lambda turn: turn.write(Opened(current_stamp())))
    if needs_cleaning(owner.base):
        rebuild_soon(owner)


_OWN_SETTINGS = {field.name for field in msgspec.structs.fields(Settings)}


def make_settings(given: Mapping[str, Any], by: str = "") -> Settings:
    """Settings from what was given, checked, or an error that names what is wrong."""
    own = dict(given)
    policy = own.pop("policy")
    dim = validation.positive_int("dim", own.pop("dim"))
    explore = validation.number("explore", own.pop("explore", 0.02), low=0.0, high=1.0)
    low, high = own.pop("reward_low", None), own.pop("reward_high", None)
    if low is not None:
        low, high = (validation.number("reward_range", end) for end in (low, high))
        if not low < high:
            raise ValueError(f"reward_range must be a pair of increasing numbers, got {(low, high)}")
    window = own.pop("reward_window", None)
    if window is not None:
        window = validation.number("reward_window", window, low=0.0, high=1e9, open_low=True)
    default = own.pop("default_reward", None)
    if default is not None:
        inside = {} if low is None else {"low": low, "high": high}
        default = validation.number("default_reward", default, **inside)
        if window is None:
            raise ValueError("default_reward needs a reward_window: when is a reward missing?")
    lend_after = validation.natural("lend_after", own.pop("lend_after", 0))
    apprentice = own.pop("apprentice", False)
    if not isinstance(apprentice, bool):
        raise ValueError(f"apprentice must be True or False, got {validation.show(apprentice)}")
    holdout = validation.number("holdout", own.pop("holdout", 0.0), low=0.0, high=1.0)
    own["seed"] = validation.seed_or_none("seed", own.get("seed"))
    if own["seed"] is None:
        own["seed"] = secrets.randbits(32)
    parameters = policy_parameters(policy, dim, own)
    check_default(parameters, default)
    return Settings(
        policy, dim, parameters, explore, low, high, window, default, lend_after,
        secrets.token_bytes(32), current_stamp(), holdout, apprentice, checked_by(by),
    )  # fmt: skip


def _given(**settings: Any) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if value is not None}


def no_population(store: str, name: str, there: Sequence[str], hint: str = "") -> UnknownError:
    """The error for a population that a store does not have; it lists those there are."""
    return UnknownError(f"{store} has no population {name!r}; it has {listed(there)}{hint}")


def listed(populations: Sequence[str]) -> str:
    """Populations in a sentence; of many only some."""
    more = f" and {len(populations) - MOST_NAMED:,} more" if len(populations) > MOST_NAMED else ""
    return ", ".join(map(repr, populations[:MOST_NAMED])) + more if populations else "none"


def existing(controller: Controller, name: str) -> Population:
    """A population that must be there, where none can be made."""
    there = controller.populations()
    if name not in there:
        raise no_population(controller.store.url, name, there)
    return controller.population(name)
