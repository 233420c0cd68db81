"""What if, and switching live: the journal played into another policy, and what must survive it."""

import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.live.evaluation.shops import play, shop
from tests.live.places import Place, sound

import shoal
from shoal.live.evaluation import rehearsal
from shoal.live.journal import snapshots
from shoal.live.journal.records import Decided, Joined, Observed, Rewarded, decode
from shoal.live.journal.records import vector as vector_of
from shoal.live.population.owner import Owner
from shoal.live.population.population import Population
from shoal.live.population.snapshotter import Sample
from shoal.live.protocol.errors import ConflictError, JournalError


def by_hand(one: Population, policy: Any) -> list[tuple[float, float, float]]:
    """Play the records of a journal into a policy, call by call; what it predicts of each decision."""
    pending: dict[str, Any] = {}
    predicted = []
    for row in one.owner.store.read(one.owner.number, 0):
        record = decode(row.body)
        match record:
            case Joined():
                policy.add_agents(1)
            case Decided():
                pending[record.id] = record, *policy.predict(record.agent, vector_of(record.x))
                policy.begin(record.agent, vector_of(record.x))
            case Rewarded():
                decided, own, pooled = pending[record.id]
                predicted.append((own, pooled, record.reward))
                policy.update(decided.agent, vector_of(decided.x), record.reward, begun=True)
            case Observed():
                policy.update(record.agent, vector_of(record.x), record.reward)
    return predicted


def squared_errors(predicted: list[tuple[float, float, float]]) -> np.ndarray[Any, Any]:
    own, pooled, reward = np.array(predicted).T
    return np.array([(own - reward) ** 2, (pooled - reward) ** 2])


def test_what_if_is_what_would_have_been() -> None:
    one = shop()
    play(one, 30)
    found = one.what_if(gamma=1.0, delta=0.5)
    other = shoal.BASS(0, 3, **{**one.settings.parameters, "gamma": 1.0, "delta": 0.5})
    errors = squared_errors(by_hand(one, other))
    assert found.other.mean == pytest.approx((errors[0] - errors[1]).mean())
    recorded = squared_errors(by_hand(one, shoal.BASS(0, 3, **one.settings.parameters)))
    assert found.present.mean == pytest.approx((recorded[0] - recorded[1]).mean())
    assert found.present.mean == pytest.approx(one.dividend().mean)
    assert found.improvement.mean == pytest.approx((recorded[1] - errors[1]).mean())
    graph = one.graph()
    present = {
        (a, b) for a in graph.agents for b in graph.agents if graph.edges[_at(graph, a), _at(graph, b)]
    }
    for i, a in enumerate(one.agents):
        for j, b in enumerate(one.agents[:i]):
            would = bool(other.graph[i, j])
            assert ((b, a) in found.gained) == (would and (a, b) not in present)
            assert ((b, a) in found.lost) == (not would and (a, b) in present)
    assert found.lost
    assert re.match(r"\d+ edges? gained, ", str(found))
    worse = one.what_if(gamma=50.0).improvement
    assert worse.mean < 0.0
    size = f"larger by {-worse.mean:.3g} [{-worse.high:.3g}, {-worse.low:.3g}] over {worse.count} rewards"
    assert size in str(one.what_if(gamma=50.0))
    nothing = one.what_if()
    assert (nothing.gained, nothing.lost, nothing.improvement.mean) == ([], [], 0.0)
    with pytest.raises(ValueError, match="gamma"):
        one.what_if(gamma=-1.0)
    with pytest.raises(ValueError, match="epsilon must be 0"):
        one.what_if(epsilon=0.1)
    with pytest.raises(ValueError, match="exploration must be 'ucb', got 'sample': a population explores by"):
        one.what_if(exploration="sample")
    with pytest.raises(ValueError, match="policy 'oracle' is not for populations"):
        one.switch("oracle", labels=[])


def _at(graph: Any, name: str) -> int:
    return int(graph.agents.index(name))


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made = Place(request.param, tmp_path / "shop.db" if request.param == "sqlite" else None)
    yield made
    made.close()


def options(place: Place) -> dict[str, Any]:
    return {"sync": "normal"} if place.url else {}


def test_switching_there_and_back(place: Place) -> None:
    one = shop(place.open(**options(place)))
    play(one, 10)
    one.decide("agent 1", id="open")
    before = one.sequence
    assert one.switch("cluster_mixture", scatter=0.0, by="Ada") == before + 1
    assert (
        one.switch("cluster_mixture", scatter=0.0, by="Ben") == before + 1 == one.sequence
    )  # it is in force
    by_itself = shoal.ClusterMixture(0, 3, **one.settings.parameters)
    by_hand(one, by_itself)
    fold = one.owner._fold
    assert fold is not None
    np.testing.assert_array_equal(fold.policy.graph, by_itself.graph)
    for agent in range(10):
        np.testing.assert_array_equal(fold.policy.estimate(agent), by_itself.estimate(agent))
    one.reward("open", 1.0)
    play(one, 5, first=50)
    assert sound(one._controller)
    one.snapshot()
    play(one, 1, first=60)
    content = one.owner.packed()[0]
    place.crash(one._controller)
    one = place.open(**options(place)).population("shop")
    assert one.owner.packed()[0] == content
    for epoch, seq in one.owner.store.snapshots(one.owner.number):
        one.owner.store.delete_snapshot(one.owner.number, epoch, seq)
    assert snapshots.pack(snapshots.load(one.owner.store, one.owner.number)) == content
    assert one.settings.policy == "cluster_mixture"
    one.switch_back(by="Cleo")
    assert [(each.sequence, each.policy, each.by) for each in one.switches] == [
        (1, "bass", ""), (before + 1, "cluster_mixture", "Ada"), (one.sequence, "bass", "Cleo"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="by must be a text"):
        one.switch("independent", by=7)  # type: ignore[arg-type]
    # As if it had always stayed: the very state of a population that lived through the same records.
    straight = shoal.BASS(0, 3, **one.settings.parameters)
    by_hand(one, straight)
    fold = one.owner._fold
    assert fold is not None
    np.testing.assert_array_equal(fold.policy.graph, straight.graph)
    np.testing.assert_array_equal(fold.policy.pulls, straight.pulls)
    play(one, 2, first=70)
    assert sound(one._controller)
    assert len(one.graph(at=before).agents) == 10  # under the policy of that time
    with pytest.raises(ConflictError, match="has policy = 'bass', not 'cluster_mixture'"):
        one._controller.population("shop", policy="cluster_mixture", dim=3)


def test_what_was_there_before_the_switch_is_passed_over(tmp_path: Path) -> None:
    """A snapshot of the old policy, a reader that follows, and a second process that checks predictions."""
    place = Place("sqlite", tmp_path / "shop.db")
    one = shop(place.open(sync="normal"))
    play(one, 6)
    one.snapshot()
    reader = place.open(read_only=True)
    looked_on = reader.population("shop")
    assert looked_on.settings.policy == "bass"
    one.switch("cluster_mixture")
    play(one, 2, first=20)
    assert looked_on.settings.policy == "cluster_mixture"
    assert looked_on.owner.packed() == one.owner.packed()
    sample = Sample(one_in=1)
    fold = snapshots.load(one.owner.store, one.owner.number, watch=sample)
    assert sample.differences(fold) == []
    assert sample.checked == 20  # those of the policy in force
    content = one.owner.packed()[0]
    place.crash(one._controller)
    assert place.open(sync="normal").population("shop").owner.packed()[0] == content
    place.close()


def test_decisions_go_on_while_the_other_policy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop()
    play(one, 4)
    real = rehearsal.refold

    def slow(*arguments: Any, **options: Any) -> Any:
        found = real(*arguments, **options)
        play(one, 1, first=50 + one.sequence)  # meanwhile
        return found

    monkeypatch.setattr(rehearsal, "refold", slow)
    before = one.sequence
    assert one.switch("cluster_mixture") > before + 1
    assert sound(one._controller)
    assert one.dividend().count > 40


def test_switching_among_threads(tmp_path: Path) -> None:
    """Nobody waits for anybody else for ever, and all that was acknowledged is there."""
    place = Place("sqlite", tmp_path / "shop.db")
    one = shop(place.open(sync="normal"))
    play(one, 3)
    stop, made = threading.Event(), list[int]()

    def serve(n: int) -> None:
        count = 0
        while not stop.is_set():
            decision = one.decide(f"agent {n}", id=f"thread {n} {count}")
            one.reward(decision.id, 1.0)
            count += 1
        made.append(count)

    threads = [threading.Thread(target=serve, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    before = one.dividend().count
    for policy in ("cluster_mixture", "bass", "independent"):
        one.switch(policy)
    stop.set()
    for thread in threads:
        thread.join(timeout=60)
    assert len(made) == 6
    assert one.dividend().count >= before
    assert one.dividend().count == 26 + sum(made)
    assert sound(one._controller)
    place.close()


def test_a_population_that_never_switched_cannot_go_back() -> None:
    one = shop()
    with pytest.raises(ConflictError, match="has never been switched"):
        one.switch_back()
    with pytest.raises(ValueError, match="policy"):
        one.switch("nonsense")
    assert one.sequence == 2


def test_the_forgotten_stay_forgotten(tmp_path: Path) -> None:
    place = Place("sqlite", tmp_path / "shop.db")
    one = shop(place.open(sync="normal"))
    play(one, 6)
    one.decide("ada", id="secret of ada")
    one.reward("secret of ada", 2.0)
    one.switch("cluster_mixture")
    one.forget("ada")
    one.settle()
    one.switch_back()
    assert "ada" not in one.agents
    assert sound(one._controller)
    with pytest.raises(shoal.GoneError):
        one.reward("secret of ada", 1.0)
    one.switch("cluster_mixture", scatter=0.0)
    assert sound(one._controller)
    place.close()
    for path in tmp_path.iterdir():
        assert b"secret of ada" not in path.read_bytes()


def test_switching_after_archiving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    place = Place("sqlite", tmp_path / "shop.db")
    one = shop(place.open(sync="normal"))
    play(one, 5)
    now[0] += 10_000_000
    boundary = now[0] / 1e6
    play(one, 3, first=20)
    (tmp_path / "old").mkdir()
    archived = one.archive(tmp_path / "old", before=boundary)
    assert archived is not None
    one.switch("cluster_mixture")
    play(one, 2, first=40)
    assert sound(one._controller)
    content = one.owner.packed()[0]
    place.crash(one._controller)
    away = Path(archived.path).rename(tmp_path / "away")  # the base is the new policy's: it needs no archive
    one = place.open(sync="normal").population("shop")
    assert one.owner.packed()[0] == content
    with pytest.raises(JournalError):
        one.switch_back()
    assert one.owner.packed()[0] == content
    away.rename(archived.path)
    assert one.evaluate().decisions > 60  # archived ones too
    now[0] += 10_000_000
    assert one.archive(tmp_path / "old", before=now[0] / 1e6) is not None  # with the switch itself
    play(one, 1, first=60)
    one.forget("agent 3")
    one.settle()
    assert sound(one._controller)
    one.switch_back()
    assert sound(one._controller)
    place.close()


def test_archiving_what_was_before_a_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1_800_000_000_000_000]
    monkeypatch.setattr(Owner, "now", lambda _: now[0])
    place = Place("sqlite", tmp_path / "shop.db")
    one = shop(place.open(sync="normal"))
    play(one, 5)
    now[0] += 10_000_000
    one.switch("cluster_mixture")
    play(one, 2, first=20)
    content = one.owner.packed()[0]
    archived = one.archive(tmp_path, before=now[0] / 1e6)
    assert archived is not None
    assert sound(one._controller)
    place.crash(one._controller)
    Path(archived.path).unlink()  # the base is that of the policy in force
    assert place.open(sync="normal").population("shop").owner.packed()[0] == content
    place.close()


def test_a_switch_that_cannot_be_committed_has_not_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    one = shop()
    play(one, 4)
    content = one.owner.packed()[0]
    real = one.owner.store.append
    monkeypatch.setattr(one.owner.store, "append", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(shoal.UnavailableError):
        one.switch("cluster_mixture")
    monkeypatch.setattr(one.owner.store, "append", real)
    assert one.settings.policy == "bass"
    assert one.owner.packed()[0] == content


def test_a_level_takes_the_place_of_gamma_and_gamma_that_of_a_level(tmp_path: Path) -> None:
    with shoal.open(tmp_path / "shop.db") as controller:
        shop = controller.population("shop", policy="bass", dim=3, alpha=0.3)
        for agent in ("ada", "ben"):
            shop.observe(agent, [1.0, 0.0, 0.0], 1.0)
        shop.switch(level=0.05)
        assert (shop.settings.parameters["level"], shop.settings.parameters["gamma"]) == (0.05, None)
        assert shop.what_if(gamma=1.0).parameters["level"] is None
        with pytest.raises(ValueError, match="level sets gamma"):
            shop.switch(level=0.05, gamma=1.0)
        assert controller.verify() == {"shop": []}
    with shoal.open(tmp_path / "shop.db") as controller:  # the journal's settings, replayed
        shop = controller.population("shop", policy="bass", dim=3, level=0.05)
        assert shop.settings.parameters["level"] == 0.05
        assert controller.verify() == {"shop": []}
        shop.switch(gamma=1.5)
        assert shop.settings.parameters["level"] is None
        assert shop.settings.parameters["radius"] == "beta"
