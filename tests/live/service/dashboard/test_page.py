"""The page in a browser: what it draws, what clicks and keys do, and whether it stays quick."""

import io
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import matplotlib.image
import numpy as np
import pytest
from tests.browser import needs_browser
from tests.live.service.dashboard.worlds import few
from tests.live.service.running import InProcess

from shoal.core.policies import registry
from shoal.core.policies.bass import BASS
from shoal.live.protocol.answers import Explanation

pytestmark = [needs_browser, pytest.mark.slow]
FRAMES = """() => new Promise((done) => {
  const gaps = [], tasks = [];
  const note = (list) => tasks.push(...list.getEntries().map((one) => one.duration));
  const watch = new PerformanceObserver(note);
  watch.observe({ entryTypes: ["longtask"] });
  const start = performance.now();
  let last = start;
  const frame = (now) => {
    gaps.push(now - last);
    last = now;
    if (now - start < 5000) requestAnimationFrame(frame);
    else done({ gaps, long: tasks.reduce((sum, one) => sum + one, 0) });
  };
  requestAnimationFrame(frame);
})"""
"""Milliseconds between frames during five seconds, and those spent in tasks of more than 50 ms."""
SIZES = {"shops": 20, "500 agents": 500, "20,000 agents": 20_000}


class Page:
    """A page with everything it complained about or asked for."""

    def __init__(self, browser: Any, url: str, population: str = "", **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1400, "height": 1000}, **options})
        self.view = self.context.new_page()
        self.view.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.answers: list[Any] = []
        self.view.on("console", self._listen)
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("response", lambda answer: self.answers.append(answer))
        self.url = url
        self.view.goto(f"{url}/#/{population}")
        if population:
            self.view.wait_for_selector(".stage canvas")
            self.view.wait_for_selector(".agent")
            self.view.wait_for_selector("#pulse:not([hidden])")

    def _listen(self, message: Any) -> None:
        if "GL Driver Message" not in message.text:  # a software renderer tells how quick it is
            self.complaints.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.view.locator(selector).first.inner_text())

    def figure(self, title: str) -> str:
        """One of the figures at the head."""
        return str(
            self.view.locator(".figures div", has_text=title).locator("dd").evaluate("e => e.firstChild.data")
        )

    def rows(self, caption: str) -> list[list[str]]:
        """The table with a caption, without its heading."""
        script = "t => [...t.tBodies[0].rows].map(r => [...r.cells].map(c => c.innerText.trim()))"
        found: list[list[str]] = self.view.locator("table", has_text=caption).first.evaluate(script)
        return found

    def pixels(self, selector: str) -> Any:
        """What is drawn, shape (height, width, 3), between 0 and 1."""
        return matplotlib.image.imread(io.BytesIO(self.view.locator(selector).screenshot()))[..., :3]

    def close(self) -> None:
        assert self.complaints == []
        assert {answer.url.split("/", 3)[2] for answer in self.answers} == {self.url.split("/", 3)[2]}
        self.context.close()


@pytest.fixture
def opened(running: InProcess, browser: Any) -> Iterator[Any]:
    pages: list[Page] = []

    def open_page(population: str = "", **options: Any) -> Page:
        pages.append(Page(browser, running.url, population, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        page.close()


def whole(text: str) -> int:
    return int(re.sub(r"[^\d]", "", text))


@pytest.mark.parametrize("population", SIZES)
@pytest.mark.parametrize("width", [420, 2560])
def test_renders(opened: Any, population: str, width: int) -> None:
    dark = width == 2560
    page = opened(
        population, viewport={"width": width, "height": 1000}, color_scheme="dark" if dark else "light"
    )
    assert page.text("h1") == population
    assert whole(page.figure("Agents")) == SIZES[population]
    assert page.view.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.pixels(".stage").std() > 0.01
    assert (page.pixels(".figures").mean() < 0.3) == dark
    sizes = [len(answer.body()) for answer in page.answers if "/graph" in answer.url]
    assert 0 < max(sizes) < 250_000  # never the edges of many agents


def test_all_populations_and_from_one_to_the_next(opened: Any) -> None:
    page = opened()
    page.view.wait_for_selector("td >> text=20,000")
    assert page.view.locator("nav a").all_inner_texts() == sorted(SIZES)
    page.view.click("th a >> text=shops")
    page.view.wait_for_selector(".stage canvas")
    assert page.view.locator("nav a[aria-current]").inner_text() == "shops"
    page.view.click("nav >> text=500 agents")
    page.view.wait_for_selector("h1 >> text=500 agents")
    page.view.go_back()
    page.view.wait_for_selector("h1 >> text=shops")


def test_many_populations_are_searched_and_sorted(browser: Any) -> None:
    """The worst first: one with a reward that was refused, then one that gets none."""
    with InProcess() as found:
        controller = found.app.controller
        for k in range(150):
            shop = controller.population(f"shop {k:03}", policy="independent", dim=2, explore=0.5, seed=k)
            if k in (70, 80, 90):
                shop.decide("ada", {"tea": [1.0, 0.0], "coffee": [0.0, 1.0]}, id=f"d{k}")
                if k != 90:
                    shop.reward(f"d{k}", 1.0)
        path = f"{found.url}/v1/populations/shop%20080/decisions/d80/reward"
        assert httpx.put(path, json={"reward": 2.0}).status_code == 409  # another one is recorded
        page = Page(browser, found.url)
        page.view.wait_for_function(
            "() => document.querySelectorAll('tbody tr').length === 150"
            " && !document.body.innerText.includes('Reading the journal')"
        )
        rows = page.rows("Populations")
        assert len(rows) == 150
        assert [row[:2] for row in rows[:2]] == [
            ["shop 080\nindependent", "1 reward refused"],
            ["shop 090\nindependent", "no rewards in the last hour"],
        ]
        assert {row[1] for row in rows[2:]} == {"–"}
        assert page.view.evaluate("document.documentElement.scrollHeight") < 1_200  # of cards, it was 14,800
        assert page.view.locator("nav a").all_inner_texts() == ["All 150 populations"]
        page.view.click("th button >> text=rewards")
        assert {row[0][:8] for row in page.rows("Populations")[:2]} == {"shop 070", "shop 080"}
        page.view.click("th button >> text=population")
        page.view.click("th button >> text=population")
        assert page.rows("Populations")[0][0].startswith("shop 149")
        page.view.fill("input[type=search]", "SHOP 07")
        assert [row[0][:8] for row in page.rows("Populations")] == [f"shop 07{k}" for k in range(9, -1, -1)]
        page.close()


def test_tables_hold_what_pictures_show(running: InProcess, opened: Any) -> None:
    population = running.app.controller.population("shops")
    graph = population.graph()
    page = opened("shops")
    shared = re.match(r"([\d,]+) of 190 pairs share", page.text("#who-shares + p"))
    assert shared is not None
    assert whole(shared[1]) == np.count_nonzero(graph.edges) // 2
    page.view.locator("figure", has=page.view.locator("#who-shares")).locator("details summary").click()
    blocks = page.rows("Blocks of agents that share")
    assert [row[0] for row in blocks] == ["A", "B"]
    assert sum(whole(row[1]) for row in blocks) == 20
    agents = {row[0]: row for row in page.rows("Agents, and how many others each shares with")}
    degrees = dict(zip(graph.agents, graph.edges.sum(axis=1).tolist(), strict=True))
    assert {name: whole(row[3]) for name, row in agents.items()} == degrees
    for chart in page.view.locator("figure.chart").all():
        chart.locator("summary").click()
        chart.locator("tbody tr").first.wait_for()
        first = chart.locator("tbody tr").first.locator("td").all_inner_texts()
        assert first == chart.locator(".reading b").all_inner_texts()
    arms = page.rows("Arms: share of choices and mean reward")
    assert sum(whole(row[2]) for row in arms) == 900
    delays = page.rows("Rewards by their delay")
    assert sum(whole(row[2]) for row in delays) == 900 - len(population.owner.read(lambda fold: fold.pending))


def agent_in(page: Page, colour: tuple[int, int, int]) -> tuple[float, float]:
    """Where an agent of a colour is drawn, from the top left corner of the graph."""
    near = np.abs(page.pixels(".stage") * 255 - colour).max(axis=2) < 12
    solid = near[2:-2, 2:-2].copy()
    for shift in (-2, -1, 1, 2):
        solid &= near[2 + shift : len(near) - 2 + shift, 2:-2] & np.roll(near, -shift, axis=1)[2:-2, 2:-2]
    y, x = np.argwhere(solid)[0]
    return float(x + 2), float(y + 2)


def test_a_click_on_an_agent_explains_it(running: InProcess, opened: Any) -> None:
    page = opened("shops")
    page.view.wait_for_timeout(1200)  # they swim to their places
    x, y = agent_in(page, (0x0B, 0x6F, 0xB8))
    page.view.locator(".stage").click(position={"x": x, "y": y})
    page.view.wait_for_selector(".agent .why")
    name = page.text(".agent h3").split("\n")[-1]
    population = running.app.controller.population("shops")
    explained = population.explain(name)
    assert isinstance(explained, Explanation)
    assert page.text(".agent .why") == str(explained)
    assert page.text(".agent h3 .badge") == "A"
    assert whole(page.text(".agent .pair dd")) == explained.samples
    assert f"Parted from {len(explained.stopped)} agents" in page.text(".agent")
    other = page.view.locator(".agent ol button").first
    other_name = other.inner_text()
    other.click()
    page.view.wait_for_function(
        "name => document.querySelector('.agent h3').innerText.includes(name)", arg=other_name
    )
    page.view.fill(".agent input", "shop 1")  # one of many that contain it, and its whole name
    page.view.press(".agent input", "Enter")
    page.view.wait_for_function("() => document.querySelector('.agent h3')?.lastChild.data === 'shop 1'")
    rows = page.rows("Predicted reward of each arm")
    assert f"Now shop 1 would be shown {rows[0][0]}: its expected reward is {rows[0][2]}" in page.text(
        ".agent"
    )
    page.view.click(".agent button[aria-label=Close]")
    assert "Pick an agent" in page.text(".agent")


def saved(page: Any, label: str) -> str:
    """Where the browser has put what a button of this name saves."""
    with page.view.expect_download() as download:
        page.view.click(f"[aria-label='{label}']")
    return str(download.value.path())


def test_back_through_time_and_to_now(running: InProcess, opened: Any) -> None:
    population = running.app.controller.population("shops")
    page = opened("shops")
    for at in (60, 900):
        page.view.locator(".through input").evaluate(
            "(slider, at) => { slider.value = at; slider.dispatchEvent(new Event('input')) }", at
        )
        page.view.wait_for_function(
            "at => document.querySelector('.through output').innerText.includes(`After record ${at} `)",
            arg=at,
        )
        graph = population.graph(at)
        assert page.text("#who-shares + p").startswith(f"{np.count_nonzero(graph.edges) // 2} of ")
        # figures, tables and the address are of that moment, too
        page.view.wait_for_selector(f".notice >> text=after record {at} of")
        page.view.wait_for_selector(f".figures small >> text={at} records")
        assert whole(page.figure("Agents")) == len(graph.agents)
        page.view.wait_for_selector(
            f"section:has-text('Agents') >> text=1 to {len(graph.agents)} of {len(graph.agents)}"
        )
        samples = sum(whole(row[2]) for row in page.rows("Agents: their own and borrowed samples"))
        assert samples + whole(page.figure("Awaiting rewards")) == sum(
            whole(row[2]) for row in page.rows("Arms: share of choices and mean reward")
        )
        assert page.view.url.endswith(f"#/shops?at={at}")
    other = opened("shops?at=900")  # the link to that moment
    other.view.wait_for_selector(".notice >> text=after record 900 of")
    for title, heads, least in (
        ("Decisions and rewards", "from,decisions,rewards", 3),
        ("Delays of rewards", "delay,rewards", 3),
        ("Who shares with whom", "agent,block,samples", 1 + len(graph.agents)),
    ):
        lines = Path(saved(page, f"{title} as CSV")).read_text().splitlines()
        assert lines[0] == heads
        assert len(lines) >= least
    assert {line.split(",")[0] for line in lines[1:]} == set(graph.agents)
    for title in ("Decisions and rewards", "Who shares with whom"):
        picture = matplotlib.image.imread(saved(page, f"{title} as PNG"), format="png")
        assert picture.shape[0] > 200
        assert len(np.unique(picture.reshape(-1, picture.shape[-1]), axis=0)) > 20  # something is drawn
    page.view.click(".through >> text=Now")
    page.view.wait_for_selector(".through output >> text=Now, after record")
    page.view.wait_for_selector(".notice", state="hidden")
    assert page.view.url.endswith("#/shops")
    page.view.click(".through >> text=Play")
    page.view.wait_for_selector(".through output >> text=After record")
    page.view.click(".through >> text=Pause")


def test_rows_and_columns_of_500_agents_are_those_of_their_graph(running: InProcess, opened: Any) -> None:
    graph = running.app.controller.population("500 agents").graph()
    page = opened("500 agents")
    stage, places = page.view.locator(".stage canvas"), {name: k for k, name in enumerate(graph.agents)}
    side = stage.bounding_box()["width"]
    for x, y in ((0.1, 0.2), (0.1, 0.5), (0.7, 0.4), (0.9, 0.95)):
        stage.hover(position={"x": x * side, "y": y * side})
        found = re.match(r"(.*) \(.*\) and (.*) \(.*\) (share|have parted)$", page.text(".tip"))
        assert found is not None
        assert graph.edges[places[found[1]], places[found[2]]] == (found[3] == "share")
    stage.click(position={"x": 0.7 * side, "y": 0.4 * side})
    page.view.wait_for_selector(".agent .why")
    assert page.text(".agent h3").split("\n")[-1] in page.text(".tip")
    assert page.view.locator(".stage .row").is_visible()


def test_a_heat_map_leads_to_agents(running: InProcess, opened: Any) -> None:
    page = opened("20,000 agents")
    page.view.locator(".stage canvas").click(position={"x": 40, "y": 40})
    page.view.wait_for_selector(".agent ol button")
    assert re.search(r"agents? of (block|those)", page.text(".agent h4"))
    assert re.search(r"all pairs share$|pairs has parted$|of pairs share$", page.text(".tip"))
    (within,) = page.rows("Pairs of blocks, and how many pairs of their agents have parted")
    parted = running.app.controller.population("20,000 agents").owner.read(lambda fold: fold.count_cuts())
    assert (within[0], whole(within[1]), whole(within[2])) == ("within A", 199_990_000, parted)
    page.view.locator(".agent ol button").first.click()
    page.view.wait_for_selector(".agent .why")
    assert re.match(r"agent \d+ has \d+ samples? and borrows ", page.text(".agent .why"))
    page.view.fill(".agent input", "agent 19999")
    page.view.wait_for_selector(".agent ol button >> text=agent 19999")
    page.view.locator("table >> text=agent 0").first.wait_for()
    page.view.click("text=Next")
    page.view.wait_for_selector("text=101 to 200 of 20,000")


def test_by_keyboard_alone(opened: Any) -> None:
    page = opened("shops")
    seen = []
    for _ in range(16):
        page.view.keyboard.press("Tab")
        seen.append(
            page.view.evaluate(
                "() => { const e = document.activeElement, style = getComputedStyle(e);"
                " return [e.ariaLabel || e.innerText, style.outlineStyle !== 'none'] }"
            )
        )
    names = [name for name, _ in seen]
    assert names[:2] == ["Skip to the content", "shoal: all populations"]
    assert any(name.startswith("Graph of 20 agents: ") for name in names)
    assert {"Zoom in", "Point in time, by record number", "Find an agent by name"} <= set(names)
    assert all(is_visible for _, is_visible in seen), seen
    page.view.locator(".stage .plane").focus()
    page.view.keyboard.press("ArrowRight")
    page.view.wait_for_selector(".agent .why")
    first = page.text(".agent h3")
    for key in ("ArrowRight", "ArrowUp", "ArrowDown", "ArrowLeft", "ArrowLeft"):  # not back to the first
        page.view.keyboard.press(key)
    page.view.wait_for_function("first => document.querySelector('.agent h3').innerText !== first", arg=first)
    page.view.keyboard.press("Escape")
    page.view.wait_for_selector("text=Pick an agent")
    chart = page.view.locator(".plot").first
    chart.focus()
    page.view.keyboard.press("End")
    latest = page.text(".reading")
    page.view.keyboard.press("ArrowLeft")
    assert page.text(".reading") != latest
    heat = opened("20,000 agents")
    heat.view.locator(".stage canvas").focus()
    heat.view.keyboard.press("ArrowDown")
    assert re.search(r"share$|parted$", heat.view.locator(".stage canvas").get_attribute("aria-label"))
    heat.view.keyboard.press("Enter")
    heat.view.wait_for_selector(".agent ol button")


def test_everything_has_a_name_for_screen_readers(opened: Any) -> None:
    for population in SIZES:
        page = opened(population)
        nameless = page.view.evaluate(
            "() => [...document.querySelectorAll('button, input, a, table, [tabindex], [role]')]"
            ".filter(e => !(e.ariaLabel || e.innerText?.trim()"
            " || e.caption?.textContent || ['content', 'pulse'].includes(e.id)))"
            ".map(e => e.outerHTML.slice(0, 120))"
        )
        assert nameless == []
        assert page.view.locator("h1").count() == 1
        pictures = page.view.locator("figure")
        assert page.view.locator("figure:has(details.twin)").count() == pictures.count() == 5


def test_one_verdict_everywhere(running: InProcess, opened: Any) -> None:
    verdict = running.app.controller.population("shops").dividend()
    page = opened("shops")
    said = {"pays": "Pays", "harms": "Harms", "too early": "Too early to say"}[verdict.verdict]
    assert page.figure("Sharing") == said
    assert "since the start" in page.text(".figures div:has-text('Sharing') small")
    chart = page.view.locator("figure", has_text="What sharing is worth")
    assert chart.locator(".note").nth(1).inner_text() == str(verdict)
    assert chart.locator(".reading b").all_inner_texts() == [
        f"{value:.3g}".replace("-", "−") for value in (verdict.mean, verdict.low, verdict.high)
    ]
    assert page.text(".card h4 + .note") == str(verdict)


def test_another_policy_is_evaluated_when_asked_for(running: InProcess, opened: Any) -> None:
    page = opened("shops")
    page.view.select_option("select", "independent")
    page.view.click("button >> text=Evaluate")
    page.view.wait_for_selector("table >> text=what was earned")
    found = running.app.controller.population("shops").evaluate("independent")
    assert page.text("section:has(select) .why") == str(found)
    assert len(page.rows("independent: no sharing would have earned")) == 1 + len(found.estimates) + (
        found.difference is not None
    )


def test_policies_of_others_can_be_evaluated(
    running: InProcess, opened: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(BASS):
        name = "mine & yours"

    monkeypatch.setitem(registry._registered, Mine.name, Mine)
    page = opened("shops")
    page.view.select_option("select", Mine.name)
    page.view.click("button >> text=Evaluate")
    page.view.wait_for_selector("table >> text=what was earned")
    found = running.app.controller.population("shops").evaluate(Mine.name)
    assert page.text("section:has(select) .why") == str(found)
    assert page.rows("mine & yours with its defaults would have earned")[0][0] == "what was earned"
    assert (
        page.view.locator("select option[value=oracle]").count() == 0
    )  # it would have to be told the labels


def test_who_changed_which_settings_when_is_shown_live(tmp_path: Path, browser: Any) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        population = few(server.app.controller, seconds=10.0)
        admins = [server.keys.add(["admin"], ["shops"]) for _ in range(2)]
        _, reads = server.keys.add(["read"], ["shops"])

        def change(admin: int, **content: Any) -> None:
            headers = {"authorization": f"Bearer {admins[admin][1]}"}
            url = f"{server.url}/v1/populations/shops/settings"
            assert httpx.put(url, json=content, headers=headers, timeout=60.0).status_code == 200

        change(0, parameters={"gamma": 2.5, "delta": 0.00001})
        page = Page(browser, server.url)
        page.view.fill("#key", reads)
        page.view.click("button.main")
        page.view.click("th a >> text=shops")
        page.view.click("summary >> text=History: 1 change")
        first, second = admins[0][0].id, admins[1][0].id
        rows = page.rows("Changes of settings")
        assert [row[1] for row in rows] == [first, "–"]
        assert rows[0][0].splitlines()[1] == f"record {population.switches[-1].sequence}"
        assert rows[0][2].splitlines() == ["delta 0.1 → 0.00001", "gamma 1 → 2.5"]
        assert rows[1][2] == "made with bass"
        change(1, policy="independent")  # the page is told, and stays as it is otherwise
        page.view.wait_for_selector("summary >> text=History: 2 changes")
        rows = page.rows("Changes of settings")
        assert [row[1] for row in rows] == [second, first, "–"]
        lines = rows[0][2].splitlines()
        assert lines[0] == "policy bass → independent"
        assert "gamma 2.5 → not used" in lines
        assert page.text(".headline .chip") == "independent"
        assert "gamma" not in {row[0] for row in page.rows("Settings of the population")}
        page.view.set_viewport_size({"width": 420, "height": 900})
        fits = "t => t.scrollWidth <= t.parentElement.clientWidth"
        assert page.view.locator("table", has_text="Changes of settings").last.evaluate(fits)
        page.complaints = [one for one in page.complaints if "401" not in one]  # before it signed in
        page.close()


def test_refused_requests(running: InProcess, opened: Any) -> None:
    url = f"{running.url}/v1/populations/shops/decisions"
    assert [httpx.post(url, json={"agent": 5}).status_code for _ in range(3)] == [422] * 3
    page = opened("shops")
    rows = page.rows("Refused requests, by status")
    (row,) = [row for row in rows if row[0].startswith("422")]
    assert "POST …/decisions" in row[1]
    assert whole(row[2]) >= 3


def test_refused_requests_of_the_server_are_not_for_keys_of_one_population(
    tmp_path: Path, browser: Any
) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        few(server.app.controller, seconds=10.0)
        server.app.controller.population("other", policy="bass", dim=2, seed=1)
        _, reads = server.keys.add(["read"], ["shops"])
        page = Page(browser, server.url)
        page.view.fill("#key", reads)
        page.view.click("button.main")
        page.view.click("th a >> text=shops")
        card = page.view.locator("section.card", has_text="Refused requests")
        card.locator("text=rewards refused").wait_for()
        assert "a key to all populations" in card.inner_text()
        assert card.locator("table").count() == 0
        assert not any("/refusals" in answer.url for answer in page.answers)  # not even asked for
        page.complaints = [one for one in page.complaints if "401" not in one]  # before it signed in
        page.close()


def test_light_dark_and_the_systems_choice(opened: Any) -> None:
    page = opened("shops")

    def is_dark() -> bool:
        return bool(page.pixels(".figures").mean() < 0.5)

    assert not is_dark()
    page.view.emulate_media(color_scheme="dark")
    assert is_dark()
    page.view.click("#theme")
    assert page.view.locator("#theme").get_attribute("aria-label") == "Colours: light"
    assert not is_dark()
    page.view.click("#theme")
    page.view.emulate_media(color_scheme="light")
    assert is_dark()
    page.view.reload()
    page.view.wait_for_selector(".figures dd")
    assert is_dark()


def test_stays_quick_while_500_decisions_a_second_arrive(running: InProcess, opened: Any) -> None:
    population = running.app.controller.population("500 agents")
    page = opened("500 agents")
    page.view.wait_for_timeout(1500)
    before, stop, made = population.sequence, threading.Event(), [0]

    def live() -> None:
        rng = np.random.default_rng(0)
        began = time.monotonic()
        while not stop.wait(0.02):
            some = [{"agent": f"agent {k}"} for k in rng.integers(500, size=50)]
            while made[0] < 500 * (time.monotonic() - began):
                decided = population.decide_many(some)
                population.reward_many({"id": one.id, "reward": 0.1} for one in decided)  # type: ignore[union-attr]
                made[0] += 50

    thread = threading.Thread(target=live)
    thread.start()
    try:
        session = page.context.new_cdp_session(page.view)
        session.send("Performance.enable")

        def busy() -> float:
            """Processor time of the page's main thread: other programs do not add to it."""
            found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
            return float(found["ThreadTime"])

        busy_before = busy()
        found = page.view.evaluate(FRAMES)
        share = (busy() - busy_before) / 5.0
        began = time.monotonic()
        page.view.fill(".agent input", "agent 77")
        page.view.click(".agent ol button >> text=agent 77")
        page.view.wait_for_selector(".agent .why")
        took = time.monotonic() - began
    finally:
        stop.set()
        thread.join()
    gaps, longest = np.sort(found["gaps"]), found["long"] / 5000.0
    print(
        f"frames: median {np.median(gaps):.0f} ms, 95 % up to {gaps[int(0.95 * len(gaps))]:.0f} ms, "
        f"longest {gaps[-1]:.0f} ms; {longest:.1%} of the time in long tasks, {share:.1%} of a core; "
        f"an agent explained in {took:.2f} s"
    )
    assert population.sequence - before > 2_000
    assert share < 0.5
    page.view.wait_for_function(
        "() => +document.querySelectorAll('.figures dd')[2].firstChild.data.replace(/\\D/g, '') > 1000"
    )


def test_signing_in_and_out(tmp_path: Path, browser: Any) -> None:
    with InProcess(str(tmp_path / "shop.db")) as server:
        few(server.app.controller, seconds=10.0)
        made, text = server.keys.add(["read"], ["shops"])
        page = Page(browser, server.url)
        page.view.wait_for_selector("h1 >> text=Sign in")
        assert page.view.evaluate("document.activeElement.id") == "key"
        assert page.text(".sign-in code >> nth=1") == "shoal keys add STORE --scope read"
        page.view.fill("#key", "shoal_nobody_nothing")
        page.view.keyboard.press("Enter")
        page.view.wait_for_selector("text=This key is not valid here")
        page.view.fill("#key", text)
        page.view.click("button.main")
        page.view.wait_for_selector("th a >> text=shops")
        assert page.view.evaluate("document.cookie") == ""
        assert all(text not in str(value) for value in page.view.evaluate("({...localStorage})").values())
        page.view.reload()
        page.view.wait_for_selector("th a >> text=shops")
        page.view.click("text=Sign out")
        page.view.wait_for_selector("h1 >> text=Sign in")
        page.view.fill("#key", text)
        page.view.click("button.main")
        page.view.wait_for_selector("th a >> text=shops")
        server.keys.revoke(made.id)
        page.view.click("th a >> text=shops")
        page.view.wait_for_selector("h1 >> text=Sign in")
        page.complaints = [
            one for one in page.complaints if "401" not in one
        ]  # the browser reports them itself
        page.close()


def test_figures_say_what_they_leave_out(tmp_path: Path, browser: Any) -> None:
    with InProcess() as server:
        shop = server.app.controller.population("shop", policy="cluster_mixture", dim=2, seed=1)
        for n in range(20):
            shop.observe(f"agent {n % 4}", [1.0, 0.0], 1.0)
        made = shop.archive(tmp_path, before=time.time())
        assert made is not None
        shop.observe("agent 0", [0.0, 1.0], 1.0)
        page = Page(browser, server.url, "shop")
        assert page.text("#over-time + p") == f"From record {made.last + 1} on: earlier ones are archived."
        # ClusterMixture records no partings.
        small = "partings are not recorded by this policy"
        assert page.text(".figures div:has-text('Pairs that share') small") == small
        assert re.match(r"4 agents.* share", page.text(".lede")), page.text(".lede")
        parted = page.view.locator("figure", has_text="Pairs that parted")
        assert parted.locator(".reading b").first.inner_text() == "–"
        page.view.fill(".agent input", "agent 1")
        page.view.press(".agent input", "Enter")
        page.view.wait_for_selector("h4 >> text=Borrows from")
        assert "arted" not in "".join(page.view.locator(".lede, h4, .people").all_inner_texts())
        page.close()


def test_when_the_service_goes_away_the_page_says_so(browser: Any) -> None:
    server = InProcess()
    try:
        few(server.app.controller, seconds=5.0)
        page = Page(browser, server.url, "shops")
        page.view.wait_for_selector("#pulse >> text=live")
    finally:
        server.close()
    page.view.wait_for_selector("#pulse >> text=waiting for the service")
    page.complaints.clear()  # the browser reports the broken connection itself
    page.close()


def test_a_population_without_agents_and_one_that_is_not_there(running: InProcess, opened: Any) -> None:
    running.app.controller.population("empty", policy="bass", dim=2, seed=1)
    page = opened()
    page.view.goto(f"{running.url}/#/empty")
    page.view.wait_for_selector("text=No agent has joined yet.")
    page.view.goto(f"{running.url}/#/nobody")
    page.view.wait_for_selector("[role=alert] >> text=no population")
    page.complaints = [one for one in page.complaints if "404" not in one]  # the browser reports it itself
