"""A population: named agents that may share, under one policy. What products call.

Each command runs alone, in memory; its records are appended to the journal, and it returns when they are
committed. Whatever it returned, then, survives; whatever raised has changed nothing.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from numpy.typing import ArrayLike

from shoal.core import validation
from shoal.core.frames import Library
from shoal.core.policy.living import Sharing
from shoal.live.evaluation import alarms, candidates, contests, dividends, rehearsal
from shoal.live.evaluation import baseline as baseline_
from shoal.live.journal import snapshots
from shoal.live.journal.arms import ArmSet, checked_name
from shoal.live.journal.fold import Fold
from shoal.live.journal.records import Settings
from shoal.live.journal.stores.base import Snapshot
from shoal.live.population import exporting, forgetting, importing, retention
from shoal.live.population.commands import SHARING, Result, Turn
from shoal.live.population.explaining import Graph, explain_agent, explain_pair, graph_of
from shoal.live.population.owner import Owner
from shoal.live.population.snapshotter import log
from shoal.live.protocol.answers import (
    Alarm,
    ContestStanding,
    Decision,
    Dividend,
    Evaluation,
    Explanation,
    PairExplanation,
    Switch,
    Uplift,
    WhatIf,
)
from shoal.live.protocol.errors import ControllerError, UnknownError
from shoal.live.protocol.messages import Asked, NamedReward, NewDecision, NewObservation, request_of

if TYPE_CHECKING:
    from shoal.live.population.controller import Controller


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

    def __init__(self, controller: "Controller", owner: Owner) -> None:
        self.name = owner.name
        self.owner = owner
        """Who may act: what shoal's own parts, that do more than products do, take."""
        self._controller, self._commands = controller, owner.commands

    def __repr__(self) -> str:
        return f"<population {self.name!r} in {self.owner.store.url}>"

    # Who shares with whom

    def explain(self, agent: str, other: str | None = None) -> Explanation | PairExplanation:
        """Say whose samples an agent uses and with whom it stopped sharing, or the same of a pair."""

        def question(fold: Fold) -> Explanation | PairExplanation:
            index = self._commands.agent(fold, agent)
            if other is None:
                return explain_agent(fold, index)
            return explain_pair(fold, index, self._commands.agent(fold, other))

        return self.owner.read(question)

    def graph(self, at: int | None = None) -> Graph:
        """Who shares with whom, now or after the record `at`; those forgotten since are not in it."""
        if at is None:
            return self.owner.read(graph_of)
        at = validation.natural("at", at)
        last = self.owner.store.last_seq(self.owner.number)
        if not 1 <= at <= last:
            raise UnknownError(f"population {self.name!r} has records 1, …, {last}, got at = {at}")
        return graph_of(snapshots.load(self.owner.store, self.owner.number, at))

    # Is it paying?

    def dividend(
        self, agent: str | None = None, *, since: datetime | float | None = None, method: str = "asymptotic"
    ) -> Dividend:
        """What sharing pays, per reward: squared error of own predictions minus that of the policy's.

        With a `default_reward`, decisions count up to the first one that still waits for its reward.

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
        return dividends.dividend(self.owner, agent, since, method)

    def alarms(self) -> list[Alarm]:
        """What is wrong, or settled: from the last records and what sharing has paid each agent.

        >>> import shoal
        >>> shoal.open(":memory:").population("shop", policy="bass", dim=2).alarms()
        []
        """
        return alarms.alarms(self.owner)

    def uplift(self, *, since: datetime | float | None = None) -> Uplift:
        """What the policy earns more than the product's own rule, by `holdout` or as an `apprentice`."""
        return baseline_.uplift(self.owner, None if since is None else dividends.moment(since))

    def evaluate(
        self, policy: str | None = None, *, since: datetime | float | None = None, **parameters: Any
    ) -> Evaluation:
        """What another policy, or other parameters, would have earned; from explored decisions."""
        moment = None if since is None else dividends.moment(since)
        return candidates.evaluate_population(self.owner, policy, parameters, moment)

    def what_if(self, policy: str | None = None, **parameters: Any) -> WhatIf:
        """Who would share with whom under another policy or other parameters, and what that would pay."""
        return rehearsal.what_if(self.owner, policy, parameters)

    def switch(self, policy: str | None = None, *, by: str = "", **parameters: Any) -> int:
        """Go on with another policy or other parameters, which first learn the whole journal.

        Decisions go on meanwhile. Returns the number of the record from which they are in force; the record
        says who made it so (`by`). If they are in force already, nothing is done.
        """
        return rehearsal.switch(self.owner, policy, parameters, by)

    def switch_back(self, *, by: str = "") -> int:
        """Go on with the policy and parameters from before the last switch, as if they had always stayed."""
        return rehearsal.switch_back(self.owner, by)

    def contest(
        self,
        *candidates: str | Mapping[str, Any],
        when: str | None = None,
        share: float | None = None,
        by: str = "",
    ) -> ContestStanding | None:
        """Let candidates learn in the shadow, and compare them with the present policy on explored decisions.

        Without candidates, say how those of the present contest stand; None if there is none. A switch, by
        whomever, ends it.

        Parameters
        ----------
        candidates : str or mapping
            Policies by name, or `{"policy": name, **parameters}`; without a policy, the present one.
        when : {"surely better"}, optional
            Switch to a candidate by itself once its confidence sequence says so. In a service that is looked
            at every few seconds, otherwise whenever this is called.
        share : float, optional
            Share of decisions to explore meanwhile, if not that of the population.
        by : str
            Who does so, for the record.
        """
        if candidates:
            contests.begin(self.owner, candidates, when, share, by)
        return contests.act(self.owner)

    def end_contest(self, *, by: str = "") -> None:
        """End the contest, if there is one; nothing else changes."""
        contests.end(self.owner, by)

    @property
    def switches(self) -> list[Switch]:
        """The policies and parameters so far, the first ones included."""
        return rehearsal.switches(self.owner)

    # Settings

    @property
    def settings(self) -> Settings:
        """What the population is."""
        return self.owner.read(lambda fold: fold.settings)

    @property
    def sequence(self) -> int:
        """Number of the last record."""
        return self.owner.read(lambda fold: fold.seq)

    @property
    def is_evaluable(self) -> bool:
        """Whether decisions are explored, so that other policies can be evaluated from the journal."""
        return self.owner.read(lambda fold: fold.explore) > 0.0

    # Agents

    @property
    def agents(self) -> list[str]:
        """Names of the agents, in the order in which they joined."""
        return self.owner.read(lambda fold: [name for name in fold.called if name is not None])

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
        self.owner.perform(1, lambda turn: self._commands.joining(turn, agent, sharing))

    def sharing(self, agent: str) -> Sharing:
        """How an agent shares: "both", "borrow" or "none"."""
        return self.owner.read(lambda fold: fold.sharing[self._commands.agent(fold, agent)])

    def set_features(self, agent: str, agent_features: ArrayLike | Sequence[float | None]) -> None:
        """Say what is known of an agent, who joins if it is new: `agent_dim` numbers, NaN where nothing is.

        They may change at any time; the same again writes nothing.
        """
        checked_name("agent", agent)
        self.owner.perform(2, lambda turn: self._commands.describe(turn, agent, agent_features))

    def features_of(self, agent: str) -> list[float]:
        """What is known of an agent, NaN where nothing is."""

        def question(fold: Fold) -> list[float]:
            return [float(z) for z in fold.policy.features_of(self._commands.agent(fold, agent))]

        return self.owner.read(question)

    def rename(self, agent: str, name: str) -> None:
        """Give an agent another name."""
        checked_name("name", name)
        self.owner.perform(1, lambda turn: self._commands.rename(turn, agent, name))

    def merge(self, agent: str, other: str) -> None:
        """Two agents are one person: the samples of both are `agent`'s, and `other` is another name of it."""
        self.owner.perform(1, lambda turn: self._commands.merge(turn, agent, other))

    # Arms

    @property
    def catalogue(self) -> dict[str, list[float]]:
        """The arms that the population keeps, with their features."""

        def question(fold: Fold) -> dict[str, list[float]]:
            arms = self._commands.offers.catalogue(fold)
            if arms is None or arms.names is None:
                return {}
            return dict(zip(arms.names, arms.features.tolist(), strict=True))

        return self.owner.read(question)

    def set_arms(self, arms: Mapping[str, ArrayLike], *, by: str = "") -> None:
        """Add arms to the catalogue, or change their features; the record says who did (`by`)."""
        given = ArmSet.of(dict(arms), self.settings.dim)
        self.owner.perform(1, lambda turn: self._commands.set_arms(turn, given, by))

    def retire(self, *names: str, by: str = "") -> None:
        """Take arms out of the catalogue; decisions about them stay. The record says who did it (`by`)."""
        self.owner.perform(1, lambda turn: self._commands.retire(turn, names, by))

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
        agent_features: ArrayLike | Sequence[float | None] | None = None,
        baseline: str | int | Sequence[str | int] | None = None,
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
        agent_features : array of shape (agent_dim,), optional
            What is known of the agent, if it should be different from before; see `set_features`.
        baseline : str or int, or a list of them, optional
            The arm that the product's own rule would show: needed if the population has a `holdout` or is an
            `apprentice`. For a ranking, a list of `top` arms.
        """
        request = NewDecision(
            agent,
            arms,
            id=id,
            top=top,
            scores=scores,
            sharing=sharing,
            agent_features=agent_features,
            baseline=baseline,
        )
        return self.owner.perform(self._commands.DECIDES, lambda turn: self._commands.decide(turn, request))

    def cancel(self, id: str) -> None:
        """Take back a decision that was never shown; no reward can come for it."""
        self.owner.perform(1, lambda turn: self._commands.cancel(turn, id))

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
        request = NamedReward(id, reward, replaces=replaces, arm=arm)
        self.owner.perform(self._commands.REWARDS, lambda turn: self._commands.reward(turn, request))

    def observe(self, agent: str, x: ArrayLike, reward: float, *, id: str | None = None) -> None:
        """Let an agent learn from an arm `x`, shape (d,), that was not decided here.

        With an `id`, the same call again is counted once.
        """
        request = NewObservation(agent, reward, x, id=id)
        self.owner.perform(self._commands.OBSERVES, lambda turn: self._commands.observe(turn, request))

    # Many at once

    def decide_many(self, requests: Iterable[Mapping[str, Any]]) -> list[Decision | Exception]:
        """`decide` for many requests, each a mapping of its arguments, in one commit.

        A request that is refused has its error in the result's place; the others are decided.
        """
        return self._many(self._commands.DECIDES, NewDecision, requests, self._commands.decide)

    def reward_many(self, rewards: Iterable[Mapping[str, Any]]) -> list[Exception | None]:
        """`reward` for many decisions, each a mapping of its arguments, in one commit; of each, its error."""
        return _errors(self._many(self._commands.REWARDS, NamedReward, rewards, self._commands.reward))

    def observe_many(self, samples: Iterable[Mapping[str, Any]]) -> list[Exception | None]:
        """`observe` for many samples, each a mapping of its arguments, in one commit; of each, its error."""
        observe = self._commands.observe
        return _errors(self._many(self._commands.OBSERVES, NewObservation, samples, observe))

    def _many(
        self, n_rows: int, kind: type[Asked], given: Iterable[Any], command: Callable[[Turn, Asked], Result]
    ) -> list[Result | Exception]:
        """Execute a command for each of several requests, or mappings of their fields, in one commit."""
        return self.owner.perform_each(n_rows, given, lambda turn, one: command(turn, request_of(kind, one)))

    def import_log(
        self,
        path: Any,
        *,
        agent: str = "agent",
        reward: str = "reward",
        features: str | Sequence[str] | None = None,
        arm: str | None = None,
        arms: Any = None,
        id: str | None = None,
        skip_bad: bool = False,
        progress: "importing.Progress | None" = None,
    ) -> "importing.Imported":
        """Learn from a log of what was done elsewhere, as `observe` does, row by row.

        docs/your-data.md says how the files must look.

        All rows are checked before the first is learned. Importing the same log again, whole or after an
        import that was interrupted, counts no row twice.

        Parameters
        ----------
        path : path or frame
            A CSV file with a heading, or a Parquet file; or a mapping of columns or a data frame (pandas,
            polars, Arrow).
        agent, reward : str
            Columns with the agents' names and the rewards.
        features : str or sequence of str, optional
            The column with the features of the arm as a list (in a CSV file such as `"[0.5, 1.0]"`), or one
            column for each of them. By default the column `features`; in the file `arms`, if it has no such
            column, all columns but the one with the names.
        arm : str, optional
            The column with the arm's name, instead of features.
        arms : path, frame or mapping of names to features, optional
            Features of these arms: a file or frame with their names in a column that is called as in the
            log. The catalogue, if not given.
        id : str, optional
            A column with ids of the rows. Without one, a row's id is made of the log's content and the line,
            so that a log that has changed or grown is another one, of which all rows are new.
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
            self, path, agent=agent, reward=reward, features=features, arm=arm, arms=arms, id=id,
            skip_bad=skip_bad, progress=progress,
        )  # fmt: skip

    def export(self, path: str | os.PathLike[str], *, archived: bool = True) -> int:
        """Write what was decided and observed to a file, a row for each arm; how many.

        Parameters
        ----------
        path : path
            A .parquet file or, as JSON lines, a .jsonl file. It appears when it is complete.
        archived : bool
            Also what has been archived; its files must be there.
        """
        return exporting.export(self.owner, path, archived)

    def frame(self, library: Library = "pyarrow", *, archived: bool = True) -> Any:
        """What was decided and observed as a data frame, a row for each arm: the columns of `export`.

        Parameters
        ----------
        library : "pyarrow", "pandas" or "polars"
            Whose frame it is; it must be installed, and pyarrow with it.
        archived : bool
            Also what has been archived; its files must be there.

        Examples
        --------
        >>> import shoal
        >>> shop = shoal.open(":memory:").population("shop", policy="bass", dim=2)
        >>> first = shop.decide("ada", arms={"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}, id="first")
        >>> shop.reward("first", 1.0)
        >>> shop.frame("polars").select("agent", "status", "reward").rows()
        [('ada', 'rewarded', 1.0)]
        """
        return exporting.frame(self.owner, library, archived)

    # Forgetting

    def forget(self, agent: str) -> None:
        """Forget a person: no number, name or row of theirs stays.

        Their samples leave the live state at once, their rows in the journal become tombstones, snapshots
        that hold them are deleted, and the state is rebuilt, in the background, as if they had never been
        there. So are archives, if they can be reached; one that cannot keeps their rows until it can be when
        the population is opened, and until then what others learned from them is withdrawn, but not undone.
        Rewards that come later are answered with `GoneError`. A new agent may have the same name.
        """
        forgetting.forget(self.owner, agent, self._controller.remember_forgotten)

    def settle(self) -> None:
        """Wait until what goes on in the background, such as rebuilding after `forget`, is done."""
        self.owner.wait_until_rebuilt()

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
            Where to write the file, which is Parquet, complete or not there, and checksummed. It is made if
            it is missing.
        before : datetime with a time zone, or seconds since 1970
            Rows of earlier times are moved.
        """
        return retention.archive(self.owner, directory, before)

    # Snapshots

    def snapshot(self) -> int:
        """Keep the present state, so that opening is faster; its sequence number."""
        owner = self.owner
        owner.wait_until_rebuilt()
        content, seq = owner.packed()
        owner.store.save_snapshot(owner.number, Snapshot(owner.lease.epoch, seq, content))
        snapshots.prune(owner.store, owner.number)
        owner.snapshot_seq = seq
        return seq

    def close(self) -> None:
        """Commit what is on its way, and let go of the population."""
        owner = self.owner
        owner.wait_until_rebuilt()
        if owner.snapshotter is not None:
            owner.snapshotter.close()
            if owner.is_loaded and owner.snapshotter.due_at_close(owner):
                try:
                    self.snapshot()
                except (ControllerError, OSError) as error:  # it would only have saved time
                    log.warning("population %r: no snapshot was written: %s", self.name, error)
        owner.close()


def _errors(results: list[Any]) -> list[Exception | None]:
    return [one if isinstance(one, Exception) else None for one in results]
