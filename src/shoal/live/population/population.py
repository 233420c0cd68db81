"""A population: named agents that may share, under one policy. What products call.

Each command runs alone, in memory; its records are appended to the journal, and it returns when they are
committed. Whatever it returned, then, survives; whatever raised has changed nothing.
"""

import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.policy.base import Sharing
from shoal.live.evaluation import baseline as baseline_
from shoal.live.evaluation import candidates, dividends, rehearsal
from shoal.live.journal import snapshots
from shoal.live.journal.archives import Base, base_of
from shoal.live.journal.arms import ArmSet, checked_by, checked_name
from shoal.live.journal.committer import Committer, Ticket, uptime
from shoal.live.journal.fold import Fold, Standing, current_stamp
from shoal.live.journal.forgetting import keyed_hash, merged_into, names_with, traces
from shoal.live.journal.records import (
    Catalogue,
    Forgotten,
    Merged,
    Missed,
    Opened,
    Renamed,
    Settings,
)
from shoal.live.journal.stores.base import Batch, Lease, Snapshot, Store
from shoal.live.population import exporting, importing, retention
from shoal.live.population.commands import MICRO, SHARING, Commands, Turn
from shoal.live.population.explaining import Graph, explain_agent, explain_pair, graph_of
from shoal.live.population.line import Line
from shoal.live.population.snapshotter import Process, log
from shoal.live.protocol.answers import (
    Decision,
    Dividend,
    Evaluation,
    Explanation,
    PairExplanation,
    Switch,
    Uplift,
    WhatIf,
)
from shoal.live.protocol.errors import (
    ConflictError,
    ControllerError,
    NotOwnerError,
    UnavailableError,
    UnknownError,
)

if TYPE_CHECKING:
    from shoal.live.population.controller import Controller

Result = TypeVar("Result")
PATIENCE = 10.0
"""Seconds that a command waits for a place in the queue."""
MOST_AT_ONCE = 1_000
"""Requests that are taken together."""
MISSES_AT_ONCE = 256
"""Missing rewards that are written down together."""


class Population:
    """Named agents that may share. Made by `Controller.population`; any number of threads may use it.

    Examples
    --------
    >>> import shoal
    >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
    >>> first = shop.decide("ada", arms=[[1.0, 0.0], [0.0, 1.0]], id="first")
    >>> shop.reward("first", 1.0)
    >>> print(shop.explain("ada"))
    ada has 1 sample and borrows none.
    """

    def __init__(self, controller: "Controller", name: str, number: int, *, lease: Lease | None) -> None:
        self.name = name
        self._controller = controller
        self._number = number
        self._store: Store = controller.store
        self._committer: Committer | None = controller.committer
        self.lease = lease or Lease(number, 0, 0, "")
        """The right to append, with what is committed so far."""
        self.sure_until = 0.0
        """By `uptime`; until then the lease cannot have ended."""
        self._reads_only = lease is None
        self._is_leased = lease is not None and not self._store.is_local
        self._lock = threading.RLock()
        self._line = Line(self._lock)
        self._fold: Fold | None = None
        self._life = object()
        self._lost: ControllerError | None = None
        self._ticket = Ticket(done=True)
        self._commands = Commands(name, self._store, number, lambda: self._base)
        self._clock_ahead = self._store.now() - int(uptime() * MICRO)
        self._rebuilding: threading.Thread | None = None
        self._snapshot_seq = 0
        self.snapshotter: Process | None = None
        self._base = Base()
        """What is known of the part of the journal that was archived."""
        self._retaining = threading.Lock()
        """Held while archives are written."""

    def __repr__(self) -> str:
        return f"<population {self.name!r} in {self._store.url}>"

    # Who shares with whom

    def explain(self, agent: str, other: str | None = None) -> Explanation | PairExplanation:
        """Say whose samples an agent uses and with whom it stopped sharing, or the same of a pair."""

        def question(fold: Fold) -> Explanation | PairExplanation:
            index = self._commands.agent(fold, agent)
            if other is None:
                return explain_agent(fold, index)
            return explain_pair(fold, index, self._commands.agent(fold, other))

        return self._read(question)

    def graph(self, at: int | None = None) -> Graph:
        """Who shares with whom, now or after the record `at`; those forgotten since are not in it."""
        if at is None:
            return self._read(graph_of)
        at = validation.natural("at", at)
        last = self._store.last_seq(self._number)
        if not 1 <= at <= last:
            raise UnknownError(f"population {self.name!r} has records 1, …, {last}, got at = {at}")
        return graph_of(snapshots.load(self._store, self._number, at))

    # Is it paying?

    def dividend(
        self, agent: str | None = None, *, since: datetime | float | None = None, method: str = "asymptotic"
    ) -> Dividend:
        """What sharing pays, per reward: squared error of own predictions minus that of the policy's.

        Parameters
        ----------
        agent : str, optional
            One agent; without it, all of them.
        since : datetime with a time zone, or seconds since 1970, optional
            Only decisions made from then on; read from the journal.
        method : {"asymptotic", "bernstein"}
            Of the confidence sequence: for rewards of any size, in the limit; or for those in a
            `reward_range`, exactly. See docs/evaluation.md.
        """
        return dividends.dividend(self, agent, since, method)

    def uplift(self, *, since: datetime | float | None = None) -> Uplift:
        """What the policy earns more than the product's own rule, by `holdout` or as an `apprentice`."""
        return baseline_.uplift(self, None if since is None else dividends.moment(since))

    def evaluate(
        self, policy: str | None = None, *, since: datetime | float | None = None, **parameters: Any
    ) -> Evaluation:
        """What another policy, or other parameters, would have earned; from explored decisions."""
        moment = None if since is None else dividends.moment(since)
        return candidates.evaluate_population(self, policy, parameters, moment)

    def what_if(self, policy: str | None = None, **parameters: Any) -> WhatIf:
        """Who would share with whom under another policy or other parameters, and what that would pay."""
        return rehearsal.what_if(self, policy, parameters)

    def switch(self, policy: str | None = None, *, by: str = "", **parameters: Any) -> int:
        """Go on with another policy or other parameters, which first learn the whole journal.

        Decisions go on meanwhile. Returns the number of the record from which they are in force; the record
        says who made it so (`by`). If they are in force already, nothing is done.
        """
        return rehearsal.switch(self, policy, parameters, by)

    def switch_back(self, *, by: str = "") -> int:
        """Go on with the policy and parameters from before the last switch, as if they had always stayed."""
        return rehearsal.switch_back(self, by)

    @property
    def switches(self) -> list[Switch]:
        """The policies and parameters so far, the first ones included."""
        return rehearsal.switches(self)

    # Running commands

    def _run(self, n_rows: int, command: Callable[[Turn], Result]) -> Result:
        """Run a command that appends up to so many rows, and wait until they are committed."""
        committer = self._writer()
        committer.reserve(n_rows, PATIENCE)
        return self._line.run(lambda: self._perform(committer, n_rows, command))

    def _perform(
        self, committer: Committer, n_rows: int, command: Callable[[Turn], Result]
    ) -> tuple[Result, Ticket]:
        """Run a command for whose rows there are places; its result holds once the ticket is done."""
        turn = None
        ticket = self._ticket
        try:
            with self._lock:
                turn = Turn(self._state(), self._now)
                try:
                    result = command(turn)
                except (ValueError, ControllerError):
                    self._vouch(turn)
                    raise  # nothing was changed, or a first part, which is complete and recorded
                except BaseException as error:  # the state may be half changed
                    turn.rows.clear()
                    self.lose(UnavailableError(f"the command failed: {error!r}"))
                    raise
                else:
                    self._vouch(turn)
                finally:
                    if turn.rows:
                        ticket = committer.submit(self, self._life, turn.rows, turn.arms)
                        self._ticket = ticket
                    else:
                        ticket = self._ticket  # what the answer rests on may still be on its way
        finally:
            committer.give_back(n_rows - (len(turn.rows) if turn else 0))
        return result, ticket

    def _vouch(self, turn: Turn | None = None) -> None:
        """Ask the store whether we are still the owner, if that is not sure and no rows will tell.

        Without this, an answer could rest on a state that is not the present one any more.
        """
        if (turn is not None and turn.rows) or self.is_sure:
            return
        seconds = self._writer().lease
        sure_until = uptime() + seconds
        if lost := self._store.renew([self.lease], seconds):
            error = NotOwnerError(f"population {self.name!r} was taken over by {lost[self._number]}")
            self.lose(error)
            raise error
        self.sure_until = sure_until

    @property
    def is_sure(self) -> bool:
        """Whether it is known, without asking the store, that nobody else has taken the population over."""
        return not self._is_leased or uptime() < self.sure_until

    def _writer(self) -> Committer:
        """Whoever commits for this population, if it may be changed here."""
        if self._committer is None or self._reads_only:
            raise NotOwnerError(f"population {self.name!r} is open for reading only")
        return self._committer

    def _state(self) -> Fold:
        """The state in memory; rebuilt if the last one was dropped. Call it with the lock held."""
        if isinstance(self._lost, NotOwnerError):
            raise NotOwnerError(*self._lost.args)
        if self._fold is None or self._lost is not None:
            self._recover()
        assert self._fold is not None
        return self._fold

    def _recover(self) -> None:
        """Build the state from the store."""
        with contextlib.suppress(ControllerError):
            self._ticket.wait()  # nothing of the old state is on its way any more
        fold = snapshots.load(self._store, self._number)
        self._fold, self._life, self._lost = fold, object(), None
        self._base = base_of(self._store, self._number)
        self.lease = self.lease._replace(last_seq=fold.seq)
        self._ticket = Ticket(done=True)
        self._commands.clear()
        if not self._reads_only:
            self._finish_forgetting(fold)
        if fold.differences:
            warnings.warn(
                f"population {self.name!r}: {'; '.join(fold.differences[:3])}, as the journal was written by "
                f"{fold.stamp} and read by {current_stamp()}",
                RuntimeWarning,
                stacklevel=3,
            )

    def lose(self, error: ControllerError) -> None:
        """Drop the state in memory; the next command rebuilds it. Takes no lock: the committer calls it."""
        self._lost = error

    def _now(self) -> int:
        """The store's clock, as it was when the population was opened: setting the clock changes nothing."""
        return int(uptime() * MICRO) + self._clock_ahead

    def _read(self, question: Callable[[Fold], Result]) -> Result:
        """Ask something of the state."""
        with self._lock:
            if self._reads_only:
                self._follow()
            answer = question(self._state())
            self._vouch()
            return answer

    def _follow(self) -> None:
        """Take in what the owner has committed since."""
        last = self._store.last_seq(self._number)
        fold = self._fold
        if fold is not None and fold.seq == last:
            return
        if fold is None or fold.seq > last or not snapshots.catch_up(fold, self._store, self._number, last):
            self._fold = snapshots.load(self._store, self._number)

    # Settings

    @property
    def settings(self) -> Settings:
        """What the population is."""
        return self._read(lambda fold: fold.settings)

    @property
    def sequence(self) -> int:
        """Number of the last record."""
        return self._read(lambda fold: fold.seq)

    @property
    def is_evaluable(self) -> bool:
        """Whether decisions are explored, so that other policies can be evaluated from the journal."""
        return self.settings.explore > 0.0

    def _begin(self, settings: Settings | None, given: Mapping[str, Any]) -> None:
        """Load the population, or make it, when it is opened."""
        with self._lock:
            if self._fold is None and self._store.last_seq(self._number) == 0:
                if settings is None:
                    raise UnknownError(f"{self._store.url} has no population {self.name!r}")
                snapshots.own_snapshots(self._store, self._number)  # there are none: others' are deleted
                self._fold = Fold()
                self._run(1, lambda turn: turn.write(settings))
                return
            fold = self._state()
            for key, value in given.items():
                recorded = _recorded(fold.settings, key)
                if recorded != value:
                    raise ConflictError(
                        f"population {self.name!r} has {key} = {recorded!r}, not {value!r}; settings are "
                        "fixed when a population is made, and only `switch` changes policy and parameters",
                        recorded,
                    )
            if not self._reads_only and fold.stamp != (stamp := current_stamp()):
                self._run(1, lambda turn: turn.write(Opened(stamp)))
            if not self._reads_only and retention.needs_cleaning(self._base):
                self._rebuild_soon()

    # Agents

    @property
    def agents(self) -> list[str]:
        """Names of the agents, in the order in which they joined."""
        return self._read(lambda fold: [name for name in fold.called if name is not None])

    def add(self, agent: str, *, sharing: Sharing = "both") -> None:
        """Let an agent join before its first decision, or change how it shares.

        Parameters
        ----------
        agent : str
        sharing : {"both", "borrow", "none"}
            "borrow": nobody else uses its samples; "none": it uses nobody else's either.
        """
        checked_name("agent", agent)
        validation.one_of("sharing", sharing, SHARING)
        self._run(1, lambda turn: self._commands.joining(turn, agent, sharing))

    def sharing(self, agent: str) -> Sharing:
        """How an agent shares: "both", "borrow" or "none"."""
        return self._read(lambda fold: fold.sharing[self._commands.agent(fold, agent)])

    def rename(self, agent: str, name: str) -> None:
        """Give an agent another name."""
        checked_name("name", name)

        def command(turn: Turn) -> None:
            index = self._commands.agent(turn.fold, agent)
            if turn.fold.called[index] == name:
                return
            if turn.fold.names.get(name, index) != index:  # one of its own may become its first
                raise ConflictError(
                    f"population {self.name!r} has an agent {name!r} already; merge them?", name
                )
            turn.write(Renamed(index, name), agent=index)

        self._run(1, command)

    def merge(self, agent: str, other: str) -> None:
        """Two agents are one person: the samples of both are `agent`'s, and `other` is another name of it."""

        def command(turn: Turn) -> None:
            first, second = self._commands.agent(turn.fold, agent), self._commands.agent(turn.fold, other)
            if first == second:
                return
            turn.write(Merged(first, second), agent=first)
            self._commands.closed.clear()  # decisions of `other` are `agent`'s now

        self._run(1, command)

    # Arms

    @property
    def catalogue(self) -> dict[str, list[float]]:
        """The arms that the population keeps, with their features."""

        def question(fold: Fold) -> dict[str, list[float]]:
            arms = self._commands.offers.catalogue(fold)
            if arms is None or arms.names is None:
                return {}
            return dict(zip(arms.names, arms.features.tolist(), strict=True))

        return self._read(question)

    def set_arms(self, arms: Mapping[str, ArrayLike], *, by: str = "") -> None:
        """Add arms to the catalogue, or change their features; the record says who did (`by`)."""
        given = ArmSet.of(dict(arms), self.settings.dim)

        def command(turn: Turn) -> None:
            present = self._commands.offers.catalogue(turn.fold)
            features = (
                {} if present is None else dict(zip(present.names or (), present.features, strict=True))
            )
            features.update(zip(given.names or (), given.features, strict=True))
            self._set_catalogue(turn, ArmSet(np.array(list(features.values())), list(features)), by)

        self._run(1, command)

    def retire(self, *names: str, by: str = "") -> None:
        """Take arms out of the catalogue; decisions about them stay. The record says who did it (`by`)."""

        def command(turn: Turn) -> None:
            present = self._commands.offers.catalogue(turn.fold)
            known = () if present is None or present.names is None else present.names
            for name in names:
                if name not in known:
                    raise UnknownError(f"population {self.name!r} has no arm {name!r} in its catalogue")
            stay = [name for name in known if name not in names]
            if not stay:
                raise ValueError("a catalogue must keep at least one arm")
            assert present is not None
            rows = [present.position(name) for name in stay]
            self._set_catalogue(turn, ArmSet(np.ascontiguousarray(present.features[rows]), stay), by)

        self._run(1, command)

    def _set_catalogue(self, turn: Turn, arms: ArmSet, by: str) -> None:
        checked_by(by)
        turn.fold.policy.check_scale("arms", arms.features)
        turn.arms += self._commands.offers.news(turn.fold, arms)
        turn.write(Catalogue(arms.digest, by))

    # Decisions

    def decide(
        self,
        agent: str,
        arms: Any = None,
        *,
        id: str | None = None,
        top: int = 1,
        scores: bool = False,
        sharing: Sharing | None = None,
        baseline: str | int | None = None,
    ) -> Decision:
        """Choose an arm for an agent, who joins if it is new.

        Parameters
        ----------
        agent : str
        arms : mapping of names to features, array of shape (K, d), names of arms in the catalogue, or None
            None stands for the whole catalogue.
        id : str, optional
            The decision's id, if the caller has one. The same request again returns the same decision, with
            scores, which are not recorded, of now.
        top : int
            How many arms to choose, as a ranking. A ranking is not explored, and cannot be evaluated.
        scores : bool
            Also return mean, width and index of every arm.
        sharing : {"both", "borrow", "none"}, optional
            How the agent shares, if it should be different from before.
        baseline : str or int, optional
            The arm that the product's own rule would show: needed if the population has a `holdout` or is an
            `apprentice`.
        """
        return self._run(
            3, lambda turn: self._commands.decide(turn, agent, arms, id, top, scores, sharing, baseline)
        )

    def cancel(self, id: str) -> None:
        """Take back a decision that was never shown; no reward can come for it."""
        self._run(1, lambda turn: self._commands.cancel(turn, id))

    # Rewards

    def reward(
        self, id: str, reward: float, *, replaces: float | None = None, arm: str | int | None = None
    ) -> None:
        """Report the reward of a decision: now, hours later, twice, from another thread; it counts once.

        Parameters
        ----------
        id : str
            The decision's.
        reward : float
        replaces : float, optional
            The reward that is recorded, if this one corrects it.
        arm : str or int, optional
            Of a ranking, which arm the reward is for.
        """
        self._run(1, lambda turn: self._commands.reward(turn, id, reward, replaces, arm))

    def observe(self, agent: str, x: ArrayLike, reward: float, *, id: str | None = None) -> None:
        """Let an agent learn from an arm `x`, shape (d,), that was not decided here.

        With an `id`, the same call again is counted once.
        """
        self._run(2, lambda turn: self._commands.observe(turn, agent, x, reward, id))

    # Many at once

    def decide_many(self, requests: Iterable[Mapping[str, Any]]) -> list[Decision | Exception]:
        """`decide` for many requests, each a mapping of its arguments, in one commit.

        A request that is refused has its error in the result's place; the others are decided.
        """
        return self._many(requests, 3, self._commands.decide_one)

    def reward_many(self, rewards: Iterable[Mapping[str, Any]]) -> list[Exception | None]:
        """`reward` for many decisions, each a mapping of its arguments, in one commit; of each, its error."""
        return self._many(rewards, 1, self._commands.reward_one)

    def observe_many(self, samples: Iterable[Mapping[str, Any]]) -> list[Exception | None]:
        """`observe` for many samples, each a mapping of its arguments, in one commit; of each, its error."""
        return self._many(samples, 2, self._commands.observe_one)

    def _observe_all(self, samples: Iterable[Any]) -> list[Exception | bool]:
        """As `observe_many`, for samples that have been checked; of each its error, or whether it is new."""
        return self._many(
            samples, 2, lambda turn, one: self._commands.observe(turn, one.agent, one.x, one.reward, one.key)
        )

    def import_log(
        self,
        path: str | os.PathLike[str],
        *,
        agent: str = "agent",
        reward: str = "reward",
        features: str | Sequence[str] = "features",
        arm: str | None = None,
        arms: str | os.PathLike[str] | Mapping[str, Any] | None = None,
        id: str | None = None,
        skip_bad: bool = False,
        progress: "importing.Progress | None" = None,
    ) -> "importing.Imported":
        """Learn from a log of what was done elsewhere, as `observe` does, row by row.

        All rows are checked before the first is learned. Importing the same file again, whole or after an
        import that was interrupted, counts no row twice.

        Parameters
        ----------
        path : path
            A .csv file with a heading, or a .parquet file.
        agent, reward : str
            Columns with the agents' names and the rewards.
        features : str or sequence of str
            The column with the features of the arm as a list (in a CSV file such as `"[0.5, 1.0]"`), or one
            column for each of them.
        arm : str, optional
            The column with the arm's name, instead of features.
        arms : path or mapping of names to features, optional
            Features of these arms: a file with the columns `arm` and `features`. The catalogue, if not given.
        id : str, optional
            A column with ids of the rows. Without one, a row's id is made of the file's content and the line,
            so that a file that has changed or grown is another file, of which all rows are new.
        skip_bad : bool
            Pass over rows that cannot be learned, instead of importing nothing.
        progress : callable, optional
            Called with the number of rows done and of all.

        Raises
        ------
        ValueError
            With file, line and reason of the first rows that are bad.
        """
        return importing.import_log(
            self,
            path,
            agent=agent,
            reward=reward,
            features=features,
            arm=arm,
            arms=arms,
            id=id,
            skip_bad=skip_bad,
            progress=progress,
        )

    def export(self, path: str | os.PathLike[str], *, archived: bool = True) -> int:
        """Write what was decided and observed to a file, a row for each arm; how many.

        Parameters
        ----------
        path : path
            A .parquet file or, as JSON lines, a .jsonl file. It appears when it is complete.
        archived : bool
            Also what has been archived; its files must be there.
        """
        return exporting.export(self, path, archived)

    def _many(self, requests: Iterable[Any], n_rows: int, one: Callable[[Turn, Any], Any]) -> list[Any]:
        items = list(requests)
        return self._run(n_rows * len(items), self._each(items, one)) if items else []

    def _each(self, items: Sequence[Any], one: Callable[[Turn, Any], Any]) -> Callable[[Turn], list[Any]]:
        """A command that takes several requests; the result of each, or its error."""
        if len(items) > MOST_AT_ONCE:
            raise ValueError(f"requests must be at most {MOST_AT_ONCE:,} at once, got {len(items):,}")

        def command(turn: Turn) -> list[Any]:
            results: list[Any] = []
            for item in items:
                try:
                    results.append(one(turn, item))
                except (ValueError, ControllerError) as error:
                    results.append(error)
            return results

        return command

    # Rewards that do not come

    def miss_rewards(self) -> int:
        """Write down which rewards did not come within the window, oldest decisions first; how many.

        The controller calls this now and then; a bounded number are taken at a time.
        """
        if not self._lock.acquire(blocking=False):  # the committer's thread must not wait for a command
            return 0
        try:
            fold = self._fold
            window = None if fold is None or self._lost else fold.settings.reward_window
            if fold is None or window is None or self._committer is None:
                return 0
            due = max(fold.at, self._now()) - int(window * MICRO)
            late: list[tuple[Standing, int]] = []
            for standing in fold.pending.values():
                if standing.at > due or len(late) >= MISSES_AT_ONCE:
                    break
                late += [(standing, place) for place in range(len(standing.decided.shown))]
            late = [(standing, place) for standing, place in late if standing.is_open(place)]
            if not late:
                return 0
            self._committer.reserve(len(late), 0.0)
            turn = Turn(fold, self._now)
            for standing, place in late:
                decided = standing.decided
                record = Missed(decided.id, place, fold.settings.default_reward, fold.policy.rounds)
                turn.write(record, decided.agent, decided.id)
                if not standing.is_pending:
                    self._commands.close(standing)
            self._ticket = self._committer.submit(self, self._life, turn.rows, turn.arms)
            return len(late)
        except UnavailableError:
            return 0  # the store is busy; there will be another time
        except Exception as error:  # the state may be half changed; the committer's thread must go on
            if self._committer is not None:
                self._committer.give_back(len(late))
            self.lose(UnavailableError(f"missing rewards could not be written: {error!r}"))
            return 0
        finally:
            self._lock.release()

    # Forgetting

    def forget(self, agent: str) -> None:
        """Forget a person: no number, name or row of theirs stays.

        Their samples leave the live state at once, their rows in the journal become tombstones, snapshots
        that hold them are deleted, and the state is rebuilt, in the background, as if they had never been
        there. So are archives, if they can be reached; one that cannot keeps their rows until it can be when
        the population is opened, and until then what others learned from them is withdrawn, but not undone.
        Rewards that come later are answered with `GoneError`. A new agent may have the same name.
        """
        committer = self._writer()
        with self._lock:
            fold = self._state()
            index = self._commands.agent(fold, agent)
            self._ticket.wait()  # all rows are in the store
            agents = {index, *(other for other in fold.merged if merged_into(fold, other) == index)}
            tombstones, hashes, arms = traces(self._store, self._number, fold, agents)
            hashes += [hashed for hashed, agent_ in self._base.joined if agent_ in agents]
            hashes += [keyed_hash(fold, "agent", name) for name, i in fold.names.items() if i in agents]
            turn = Turn(fold, self._now)
            turn.write(Forgotten(tuple(sorted(agents))))
            batch = Batch(self.lease, turn.rows, [])
            try:
                base = retention.base_without(self, agents)
                self._store.forget(batch, tombstones, hashes, arms, committer.lease, base)
            except Exception as error:
                self.lose(error if isinstance(error, ControllerError) else UnavailableError(str(error)))
                raise
            self.lease = self.lease._replace(last_seq=fold.seq)
            self._controller.remember_forgotten(self._number, hashes)
            self._commands.forget(agents)
            if self.snapshotter is not None:
                self.snapshotter.stop()
            for epoch, seq in self._store.snapshots(self._number):
                self._store.delete_snapshot(self._number, epoch, seq)
            self._snapshot_seq = 0
        self._store.scrub()
        self._rebuild_soon()

    def _finish_forgetting(self, fold: Fold) -> None:
        """Do what a crash may have kept `forget` from doing after its commit."""
        stale = [one for one in self._store.snapshots(self._number) if one[1] < fold.forgotten_at]
        for epoch, seq in stale:
            self._store.delete_snapshot(self._number, epoch, seq)
        if stale or 0 < fold.forgotten_at == fold.seq:
            with contextlib.suppress(UnavailableError):  # a reader keeps the write-ahead file
                self._store.scrub()

    def _rebuild_soon(self) -> None:
        """Fold the journal again in a thread, now that rows in it have become tombstones."""
        thread = threading.Thread(target=self._rebuild, name=f"shoal-rebuild-{self.name}", daemon=True)
        self._rebuilding = thread
        thread.start()

    def _rebuild(self) -> None:
        try:
            retention.clean(self)
            fold = snapshots.load(self._store, self._number)
            with self._lock:
                if threading.current_thread() is not self._rebuilding or self._lost is not None:
                    return  # somebody else was forgotten meanwhile, or the state will be rebuilt anyway
                self._ticket.wait()
                if snapshots.catch_up(fold, self._store, self._number, self._state().seq):
                    self._fold = fold
                    self._commands.closed.clear()
        except ControllerError as error:
            self.lose(error if isinstance(error, NotOwnerError) else UnavailableError(str(error)))

    def forget_again(self, hashes: set[bytes]) -> None:
        """Forget whoever is back, by a restored backup, although they were forgotten."""
        with self._lock:
            names = names_with(self._store, self._number, self._state(), hashes)
        for name in names:
            self.forget(name)

    @property
    def is_rebuilding(self) -> bool:
        """Whether the state is being rebuilt since somebody was forgotten."""
        return self._rebuilding is not None and self._rebuilding.is_alive()

    def settle(self) -> None:
        """Wait until what goes on in the background, such as rebuilding after `forget`, is done."""
        thread = self._rebuilding
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # Retention

    def archive(
        self, directory: str | os.PathLike[str], *, before: datetime | float
    ) -> "retention.Archived | None":
        """Move old rows of the journal to a file; what was moved, or None if there was nothing.

        The state stays as it is, and is from now on folded from a base in the store. Decisions that await
        rewards stay; of those that were closed, rewards and repeated requests are no longer known.
        `export`, `graph(at=…)`, a complete `verify` and forgetting without a trace need the file.

        Parameters
        ----------
        directory : path
            Where to write the file, which is Parquet, complete or not there, and checksummed.
        before : datetime with a time zone, or seconds since 1970
            Rows of earlier times are moved.
        """
        return retention.archive(self, directory, before)

    # Snapshots

    def packed(self) -> tuple[bytes, int]:
        """The present state, all of it committed, as the bytes of a snapshot, and its sequence number."""
        with self._lock:
            if self._reads_only:
                self._follow()
            fold = self._state()
            self._ticket.wait()
            return snapshots.pack(fold), fold.seq

    def snapshot(self) -> int:
        """Keep the present state, so that opening is faster; its sequence number."""
        self.settle()
        content, seq = self.packed()
        self._store.save_snapshot(self._number, Snapshot(self.lease.epoch, seq, content))
        snapshots.prune(self._store, self._number)
        self._snapshot_seq = seq
        return seq

    def close(self) -> None:
        """Commit what is on its way, and let go of the population."""
        self.settle()
        if self.snapshotter is not None:
            self.snapshotter.close()
            if self._lost is None and self._fold is not None and self.snapshotter.due_at_close(self):
                try:
                    self.snapshot()
                except (ControllerError, OSError) as error:  # it would only have saved time
                    log.warning("population %r: no snapshot was written: %s", self.name, error)
        with self._lock:
            lost, self._lost = self._lost, NotOwnerError(f"population {self.name!r} has been closed")
            if not self._reads_only and lost is None and self._fold is not None:
                try:
                    self._ticket.wait()
                finally:
                    self._store.release(self.lease)


def _recorded(settings: Settings, key: str) -> Any:
    """A setting as it was given, the policy's parameters among them."""
    return settings.parameters.get(key) if key not in _OWN_SETTINGS else getattr(settings, key)


_OWN_SETTINGS = {field.name for field in msgspec.structs.fields(Settings)}
