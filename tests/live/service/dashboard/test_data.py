"""What the page shows, against what the population says itself."""

import base64
import itertools

import msgspec
import numpy as np
import pytest
from tests.live.service.dashboard.worlds import KINDS, few, many

from shoal.core.policies import registry
from shoal.core.policies.bass import BASS
from shoal.core.types import Booleans
from shoal.live.population.controller import open as open_controller
from shoal.live.population.explaining import graph_of
from shoal.live.population.population import Population
from shoal.live.protocol.answers import Switch
from shoal.live.protocol.errors import GoneError, UnknownError
from shoal.live.service.dashboard import data, following
from shoal.live.service.dashboard.following import Follower


def pictured(population: Population) -> data.SharingPicture:
    follower = Follower(population)
    follower.catch_up()
    return data.SharingPicture(follower)


def unpacked(drawing: data.Drawing) -> Booleans:
    n = len(drawing.agents)
    bits = np.unpackbits(np.frombuffer(base64.b64decode(drawing.edges), dtype=np.uint8))[: n * (n - 1) // 2]
    edges = np.zeros((n, n), dtype=np.bool_)
    edges[np.triu_indices(n, 1)] = bits
    return np.asarray(edges | edges.T)


def cells(heat: data.HeatMap) -> np.ndarray:
    n = len(heat.labels)
    levels = np.frombuffer(base64.b64decode(heat.cells), dtype=np.uint8).reshape(n, n)
    return np.asarray(np.where(levels, 10.0 ** ((levels - 255.0) * 8 / 254), 0.0))


def test_the_graph_agent_by_agent() -> None:
    with open_controller(":memory:") as controller:
        population = few(controller)
        drawing = pictured(population).draw()
        assert isinstance(drawing, data.Drawing)
        graph = population.graph()
        assert drawing.agents == graph.agents
        assert np.array_equal(unpacked(drawing), graph.edges)
        assert drawing.n_edges == np.count_nonzero(graph.edges) // 2
        kind = np.array([int(name.split()[1]) % 2 for name in graph.agents])
        labels = np.array(drawing.labels)
        assert {(a, b) for a, b in zip(kind.tolist(), labels.tolist(), strict=True)} in (
            {(0, 0), (1, 1)},
            {(0, 1), (1, 0)},
        )
        for block in drawing.blocks:
            mine = labels == block.label
            assert block.agents == mine.sum()
            inside = graph.edges[np.ix_(mine, mine)]
            assert block.within == pytest.approx(inside.sum() / (block.agents * (block.agents - 1)))
        recent = {tuple(sorted(pair)) for pair in drawing.recent}
        assert recent
        assert not any(graph.edges[pair] for pair in recent)


def test_nobody_and_one() -> None:
    with open_controller(":memory:") as controller:
        population = controller.population("empty", policy="bass", dim=2, seed=1)
        drawing = pictured(population).draw()
        assert isinstance(drawing, data.Drawing)
        assert (drawing.agents, drawing.blocks, drawing.n_edges) == ([], [], 0)
        population.add("one")
        drawing = pictured(population).draw()
        assert isinstance(drawing, data.Drawing)
        assert [(block.label, block.agents, block.within) for block in drawing.blocks] == [(-1, 1, None)]


def test_a_heat_map_whose_agents_were_all_asked_is_exact() -> None:
    with open_controller(":memory:") as controller:
        population = many(controller, "crowd", 600, 600, 10)
        heat = pictured(population).draw()
        assert isinstance(heat, data.HeatMap)
        assert heat.asked == heat.n_agents == 600
        assert len(heat.labels) <= data.BINS <= 512
        edges = population.owner.read(graph_of).edges
        labels = pictured_labels(population)
        _, starts, group, group_labels = data.grouped(labels)
        assert [*starts.tolist(), 600] == heat.bounds
        assert group_labels.tolist() == heat.labels
        naive = cells(heat).copy()
        for one in range(len(starts)):
            for two in range(len(starts)):
                pairs = edges[np.ix_(group == one, group == two)]
                itself = np.count_nonzero(group == one) * (one == two)
                if pairs.size > itself:  # a group of one has no pairs
                    naive[one, two] = 1.0 - pairs.sum() / (pairs.size - itself)
        assert cells(heat) == pytest.approx(naive, rel=0.04)
        kinds = np.array([int(name.split()[1]) % KINDS for name in population.agents])
        for block in heat.blocks[:KINDS]:
            mine = labels == block.label
            assert np.bincount(kinds[mine]).max() > 0.98 * block.agents
            within = edges[np.ix_(mine, mine)].sum() / (mine.sum() * (mine.sum() - 1))
            assert block.within == pytest.approx(within, abs=1e-4)
            assert block.beyond == pytest.approx(edges[np.ix_(mine, ~mine)].mean(), abs=1e-4)
        assert heat.asked == heat.n_agents
        for pair in heat.between:
            apart = ~edges[np.ix_(labels == pair.one, labels == pair.two)]
            if pair.one == pair.two:
                apart = apart[np.triu_indices(len(apart), 1)]
            assert (pair.pairs, pair.parted) == pytest.approx((apart.size, np.count_nonzero(apart)))


def test_a_few_partings_of_very_many_pairs_are_seen() -> None:
    """Every one of them, however small its share of a cell."""
    with open_controller(":memory:") as controller:
        population = many(controller, "crowd", 3_000, 30, 12)
        heat = pictured(population).draw()
        assert isinstance(heat, data.HeatMap)
        n_cuts = population.owner.read(lambda fold: fold.count_cuts())
        assert 100 < n_cuts < 3e-4 * 3_000**2 / 2
        assert sum(pair.parted for pair in heat.between) == pytest.approx(n_cuts, abs=1e-6)
        sizes = np.diff(heat.bounds)
        counted = (cells(heat) * (np.outer(sizes, sizes) - np.diag(sizes))).sum() / 2
        assert counted == pytest.approx(n_cuts, rel=0.04)


def pictured_labels(population: Population) -> np.ndarray:
    picture = pictured(population)
    picture.draw()
    return np.asarray(picture._labels[picture.there.indices])


def test_a_heat_map_of_a_sample_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_controller(":memory:") as controller:
        population = many(controller, "crowd", 600, 600, 16)
        exact = pictured(population).draw()
        monkeypatch.setattr(data, "SAMPLE", 200)
        monkeypatch.setattr(data, "CUTS", 0)  # partings that were not seen
        near = pictured(population).draw()
        assert isinstance(near, data.HeatMap)
        assert isinstance(exact, data.HeatMap)
        assert near.asked == 200
        assert [block.agents for block in near.blocks] == pytest.approx(
            [b.agents for b in exact.blocks], abs=12
        )
        assert [block.within for block in near.blocks[:3]] == pytest.approx(
            [block.within for block in exact.blocks[:3]], abs=0.03
        )


@pytest.mark.parametrize("seen", [0, following.CUTS])
def test_a_heat_map_of_an_earlier_moment(seen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "CUTS", seen)
    with open_controller(":memory:") as controller:
        population = many(controller, "crowd", 600, 600, 10)
        picture = pictured(population)
        half = population.sequence // 2
        heat = picture.draw(half)
        assert isinstance(heat, data.HeatMap)
        edges = population.graph(half).edges
        labels = pictured_labels(population)
        found = sum(one.agents * (one.agents - 1) * (one.within or 0.0) for one in heat.blocks) / 2
        naive = sum(edges[np.ix_(labels == one, labels == one)].sum() for one in set(labels.tolist())) / 2
        assert found == pytest.approx(naive, rel=0.02)
        assert heat.at is not None
        first = picture.draw(700)  # when not all had joined
        assert isinstance(first, data.HeatMap)
        assert first.n_agents == len(population.graph(700).agents) < 600


def test_groups_hold_one_block_each_and_all_agents() -> None:
    rng = np.random.default_rng(1)
    for n in (501, 2_000, 20_000):
        labels = rng.choice([-2, -1, 0, 1, 2, 7], size=n, p=[0.1, 0.1, 0.3, 0.3, 0.19, 0.01])
        order, starts, group, group_labels = data.grouped(labels)
        assert sorted(order.tolist()) == list(range(n))
        assert len(starts) <= data.BINS
        assert np.array_equal(group_labels[group], labels)
        assert (np.diff(group[order]) >= 0).all()
        assert [one for one, _ in itertools.groupby(group_labels.tolist())][-2:] == [-1, -2]


def test_going_back_where_no_cuts_are_recorded() -> None:
    with open_controller(":memory:") as controller:
        population = controller.population("clubs", policy="cluster_mixture", dim=2, seed=1)
        rng = np.random.default_rng(0)
        for k in range(300):
            x = rng.normal(size=2)
            population.observe(f"agent {k % 6}", x, float(x[k % 2]))
        picture = pictured(population)
        assert picture.span == (1, population.sequence)
        for at in (50, 150, 300):
            drawing, graph = picture.draw(at), population.graph(at)
            assert isinstance(drawing, data.Drawing)
            assert np.array_equal(unpacked(drawing), graph.edges)
        for at in (0, population.sequence + 1):
            with pytest.raises(UnknownError, match="the page can go back to records 1"):
                picture.draw(at)


def test_figures_and_tables_of_an_earlier_moment_are_those_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    with open_controller(":memory:") as controller:
        population = few(controller, seconds=20.0)
        then = pictured(population)
        shown = then.draw()
        assert isinstance(shown, data.Drawing)
        at, before = (
            population.sequence,
            (data.overview(then.follower, 5), data.arms(then.follower), then.page()),
        )
        for k in range(40):
            made = population.decide(
                f"later {k}" if k < 5 else "shop 3", {"a": [1.0, 0, 0, 0], "b": [0, 1.0, 0, 0]}
            )
            population.reward(made.id, 1.0)
        picture = pictured(population)
        found = picture.moment(at)
        assert (found.overview.sizes, found.overview.dividend, found.arms) == (
            before[0].sizes,
            before[0].dividend,
            before[1],
        )
        page = picture.page(at=at)
        assert [(one.name, one.samples, one.borrowed, one.lenders) for one in page.agents] == [
            (one.name, one.samples, one.borrowed, one.lenders) for one in before[2].agents
        ]
        drawn = picture.draw(at)
        assert isinstance(drawn, data.Drawing)
        assert [one.block for one in page.agents] == drawn.labels
        assert picture.moment(population.sequence).overview.sizes.sequence == population.sequence
        for wrong in (0, population.sequence + 1):
            with pytest.raises(UnknownError, match="the population has records 1"):
                picture.moment(wrong)
        monkeypatch.setattr(data, "REPLAYED", 10)
        with pytest.raises(UnknownError, match="take a journal of up to 10 records"):
            picture.moment(at)


def test_an_agent_and_lists_of_them() -> None:
    with open_controller(":memory:") as controller:
        population = few(controller)
        picture = pictured(population)
        agent, said = picture.agent("shop 4"), population.explain("shop 4")
        assert agent.text == str(said)
        assert (agent.samples, agent.borrowed) == (said.samples, said.borrowed)  # type: ignore[union-attr]
        assert agent.n_lenders + agent.n_stopped == 19
        assert {one.name for one in agent.around} == {f"shop {k}" for k in range(20)} - {"shop 4"}
        assert {one.name for one in agent.around if one.cut} == {one.agent for one in agent.stopped}
        # why this arm: what the policy compares, the arm that it would choose first
        index = population.agents.index("shop 4")
        features = np.array(list(population.catalogue.values()))
        names = list(population.catalogue)
        scores, choice = population.owner.read(
            lambda fold: (fold.policy.scores(index, features), fold.policy.choose(index, features))
        )
        assert agent.opinions[0].arm == names[choice.arm]
        assert agent.opinions[0].own == pytest.approx(choice.own)
        assert {one.arm: (one.pooled, one.bonus) for one in agent.opinions} == {
            name: (scores.mean[k], scores.width[k]) for k, name in enumerate(names)
        }
        page = picture.page("SHOP 1")
        assert [one.name for one in page.agents] == [name for name in population.agents if "shop 1" in name]
        line = next(one for one in picture.page().agents if one.name == "shop 4")
        assert (line.samples, line.borrowed, line.lenders) == (agent.samples, agent.borrowed, agent.n_lenders)
        with pytest.raises(UnknownError, match="no agent 'nobody'"):
            picture.agent("nobody")
        population.forget("shop 4")
        with pytest.raises(GoneError):
            picture.agent("shop 4")


def test_a_neighbourhood_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "MOST_AROUND", 30)
    monkeypatch.setattr(data, "MOST_LISTED", 8)
    with open_controller(":memory:") as controller:
        agent = pictured(many(controller, "crowd", 90, 90, 14)).agent("agent 3")
        assert len(agent.around) == 30
        assert sum(one.cut for one in agent.around) == 15
        assert (len(agent.lenders), len(agent.stopped)) == (8, 8)
        assert agent.n_lenders + agent.n_stopped == 89


def test_settings_without_the_secret() -> None:
    with open_controller(":memory:") as controller:
        population = few(controller)
        population.set_arms({"ware 0": [1.0, 0.0, 0.0, 0.0]}, by="key of Ada")
        found = data.settings(pictured(population).follower)
        assert found.settings["gamma"] == 1.0
        assert "key" not in found.settings
        assert population.settings.key.hex() not in str(msgspec.json.encode(found))
        assert [one.what for one in found.events] == ["catalogue of arms changed"] * 2
        assert [one.by for one in found.events] == ["key of Ada", ""]
        assert "by" not in found.settings


def test_all_changes_of_settings_are_listed_however_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "RECENT", 5)
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, noise_scale=None, seed=1)
        shop.switch(by="key of Ada", gamma=3.0, delta=0.05)
        shop.switch("independent", by="key of Bob", alpha=0.1234567)
        for _ in range(20):
            shop.observe("ada", [1.0, 0.0], 0.5)
        found = data.settings(pictured(shop).follower)
        assert found.since > shop.switches[-1].sequence
        bob, ada, made = found.changes
        assert [one.by for one in found.changes] == ["key of Bob", "key of Ada", ""]
        assert [one.sequence for one in found.changes] == [one.sequence for one in shop.switches[::-1]]
        assert [one.at for one in found.changes] == [one.at for one in shop.switches[::-1]]
        assert (made.policy, made.differences) == ("bass", [])
        bass = shop.switches[0].parameters
        assert {one.name: (one.before, one.after) for one in ada.differences} == {
            "gamma": (bass["gamma"], 3.0),
            "delta": (bass["delta"], 0.05),
        }
        told = {one.name: (one.before, one.after) for one in bob.differences}
        assert next(iter(told)) == "policy"  # which comes first
        assert told == {
            "policy": ("bass", "independent"),
            "alpha": (bass["alpha"], 0.1234567),
            "gamma": (3.0, msgspec.UNSET),  # it has none, which is not the same as none given
            "noise_scale": (None, 1.0),
            "delta": (0.05, msgspec.UNSET),
            **{name: (bass[name], msgspec.UNSET) for name in ("level", "radius", "param_norm")},
        }
        monkeypatch.setattr(data, "MOST_LISTED", 2)
        fewer = data.settings(pictured(shop).follower)
        assert (fewer.changes, fewer.n_changes) == ([bob, ada], 3)


def test_long_values_are_cut_short() -> None:
    before = Switch(1, "mine", {"labels": [0] * 5_000, "alpha": 0.5}, "", None)
    after = Switch(9, "mine", {"labels": [*[0] * 4_999, 1], "alpha": 0.5}, "", None)
    (labels,) = data.differences(before, after)
    assert labels.name == "labels"
    assert labels.after[:9] == "[0, 0, 0,"
    assert len(labels.after) == data.LONGEST + 1


def test_candidates_are_the_policies_that_an_evaluation_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mine(BASS):
        name = "mine"

    class Bare:
        """Which no journal can be played into."""

        select = update = print

    monkeypatch.setattr(registry._registry, "_known", dict(registry._registered))
    registry.register_policy("mine", Mine)
    registry.register_policy("bare", Bare)
    monkeypatch.setitem(registry._registry._known, "gone", "no_such_module_is_there:Policy")
    with open_controller(":memory:") as controller:
        shop = controller.population("shop", policy="bass", dim=2, explore=0.5, seed=1)
        for _ in range(5):
            made = shop.decide("ada", {"tea": [1.0, 0.0], "coffee": [0.0, 1.0]})
            shop.reward(made.id, 1.0)
        found = data.settings(pictured(shop).follower).candidates
        assert set(found) == {"independent", "bass", "cluster_mixture", "mine"}
        for name in found:
            assert shop.evaluate(name).policy == name


def test_a_summary_and_an_overview() -> None:
    with open_controller(":memory:") as controller:
        picture = pictured(few(controller))
        found = data.summary(picture, 3, 4, [])
        assert (found.refused, found.unmatched) == (3, 4)
        assert sum(found.decisions) == 900
        assert sum(block.agents for block in found.blocks) == found.sizes.agents == 20
        assert found.dividend == picture.population.dividend()
        assert len(data.overview(picture.follower, 5, 2).starts) == 2
        paid = data.overview(picture.follower, 900).paid
        assert [paid[end][-1] for end in ("mean", "low", "high")] == pytest.approx(
            [found.dividend.mean, found.dividend.low, found.dividend.high]
        )
        with pytest.raises(ValueError, match="step must be one of 5, 60, 900, got 7"):
            data.overview(picture.follower, 7)
