"""The site: built with warnings as errors, complete, offline; its tutorials run and show what they give."""

import functools
import http.server
import itertools
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from tests.browser import needs_browser, open_browser
from tests.core.attack.common import SCALE
from tools.tutorials import PAGES, PICTURE, parts
from tools.website import FURTHER

import shoal

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


SHORTER = {"choosing": [("10, 6_000", "10, 200"), ("range(100, 110)", "range(100, 102)")]}
"""What takes a minute is played for less, and gives other numbers; `make chaos` compares these, too."""


def without_numbers(output: str) -> str:
    return re.sub(r"[ \d.,%±−-]+", " ", output)


@pages
def test_a_tutorial_runs_and_shows_what_it_gives(page: Path, tmp_path: Path) -> None:
    program = (
        "import json, pathlib, sys, warnings\n"
        "from tools.tutorials import play\n"
        "warnings.simplefilter('error')\n"
        "printed = list(play(sys.stdin.read(), pathlib.Path(sys.argv[1])))\n"
        "print(json.dumps(printed))\n"
    )
    text = played = page.read_text()
    shorter = SHORTER.get(page.stem, []) if SCALE == 1 else []
    for old, new in shorter:
        assert old in played
        played = played.replace(old, new)
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path],
        input=played, capture_output=True, text=True, cwd=ROOT, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    # A day is named where a population says when something happened.
    shown = [re.sub(r"\d{4}-\d\d-\d\d at \d\d:\d\d", "then", part.output) for part in parts(text)]
    printed = [re.sub(r"\d{4}-\d\d-\d\d at \d\d:\d\d", "then", output) for output in json.loads(done.stdout)]
    if shorter:
        shown, printed = list(map(without_numbers, shown)), list(map(without_numbers, printed))
    assert shown == printed
    pictures = PICTURE.findall(text)
    assert pictures
    for picture in pictures:
        assert (tmp_path / picture).stat().st_size > 1_000, picture
        assert (page.parent / picture).stat().st_size < 100_000, picture


class Links(HTMLParser):
    """Where a page leads, and where one can get to on it."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.targets: set[str] = set()
        self.anchors: set[str] = set()
        self.sources: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what an element leads to, loads, or is called."""
        found = dict(attributes)
        for key in ("id", "name"):
            self.anchors.add(found.get(key) or "")
        if tag == "a" and found.get("href"):
            self.targets.add(str(found["href"]))
        loads = found.get("src") or (found.get("href") if tag == "link" else None)
        if loads:
            self.sources.add(loads)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", directory],
        capture_output=True, text=True, cwd=ROOT, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return directory


@pytest.fixture(scope="module")
def links(site: Path) -> dict[Path, Links]:
    return {page: Links(page) for page in site.rglob("*.html")}


def test_every_link_and_anchor_leads_somewhere(site: Path, links: dict[Path, Links]) -> None:
    followed = 0
    for page, found in links.items():
        if page.name == "404.html":  # its links are those of the server's root
            continue
        for target in found.targets | found.sources:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                assert target in found.targets, f"{page.name} loads {target} from elsewhere"
                continue
            there = (page.parent / unquote(parts.path)).resolve() if parts.path else page
            there = there / "index.html" if there.is_dir() else there
            assert there.exists(), f"{page.relative_to(site)}: {target}"
            if parts.fragment and there in links:
                anchor = unquote(parts.fragment)
                assert anchor in links[there].anchors, f"{page.relative_to(site)}: {target}"
            followed += 1
    assert followed > 1_000


def test_every_public_name_has_its_place_in_the_reference(site: Path, links: dict[Path, Links]) -> None:
    reference = [found.anchors for page, found in links.items() if page.parent.name == "reference"]
    for name in (*shoal.__all__, *itertools.chain(*FURTHER.values())):
        assert sum(f"shoal.{name}" in anchors for anchors in reference) == 1, name
    text = (site / "reference" / "policies.html").read_text()
    assert "Scale of the ellipsoids: larger values share longer." in text  # from the struct of parameters


def test_every_page_is_reached_from_the_navigation(site: Path, links: dict[Path, Links]) -> None:
    start = site / "index.html"
    reached = {(start.parent / target).resolve() for target in links[start].targets}
    for page in (ROOT / "docs").rglob("*.md"):
        built = site / page.relative_to(ROOT / "docs").with_suffix(".html")
        built = built.with_name("index.html") if page.stem == "README" else built
        assert built in reached, page.name


TASKS = {"Late rewards", "Clicks", "A new user", "Several machines", "Erase a person", "My own policy"}


def test_a_task_is_found_in_the_menu_by_its_name(site: Path) -> None:
    menu = (site / "index.html").read_text().partition("md-nav--primary")[2].partition("md-content")[0]
    named = {
        re.sub(r"<[^>]*>|\s+", " ", text).strip() for text in re.findall(r"<a [^>]*>(.*?)</a>", menu, re.S)
    }
    assert named >= TASKS
    assert "section:" not in menu


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("Thompson sampling", "how-to/index.html#use-thompson-sampling"),
        ("GDPR", "how-to/index.html#erase-a-person-gdpr"),
        ("Delayed reward", "how-to/index.html#delayed-rewards"),
    ],
)
def test_a_search_finds_the_page_on_it(site: Path, words: str, page: str) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]
    assert page in {entry["location"] for entry in entries if words in entry["title"]}


def test_a_long_page_begins_with_its_contents(site: Path) -> None:
    service, start = ((site / f"{name}.html").read_text() for name in ("service", "index"))
    shown = service.partition('class="on-this-page"')[2].partition("</details>")[0]
    assert '<a href="#keys">Keys</a>' in shown
    assert "on-this-page" not in start


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    for name in ("algorithms", "theory"):
        text = (site / f"{name}.html").read_text()
        source = (ROOT / "docs" / f"{name}.md").read_text()
        assert text.count("<math ") == source.count("```math\n") > 5
        assert "\\frac" not in re.sub(r'aria-label="[^"]*"', "", text)
    assert "n<sub>k</sub> active members" in (site / "algorithms.html").read_text()


@pages
def test_a_tutorial_is_also_a_notebook(site: Path, page: Path) -> None:
    found = json.loads((site / "tutorials" / f"{page.stem}.ipynb").read_text())
    assert (found["nbformat"], found["nbformat_minor"]) == (4, 5)
    cells = found["cells"]
    assert len({cell["id"] for cell in cells}) == len(cells)
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    text = page.read_text()
    assert [one for one in code if "IPython" not in one] == [part.code.strip("\n") for part in parts(text)]
    assert sum("Image(" in one for one in code) == len(PICTURE.findall(text))
    for one in code:
        compile(one, page.name, "exec")


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    thread.join()
    server.server_close()


@needs_browser
def test_pages_fit_a_desk_and_a_phone_and_search_works_without_a_network(address: str) -> None:
    tried = [
        "index",
        "tutorials/ten-users",
        "algorithms",
        "reference/policies",
        "results/index",
        "comparison",
    ]
    with open_browser() as browser:
        for width in (1400, 400):
            view = browser.new_page(viewport={"width": width, "height": 900})
            asked: list[str] = []
            complaints: list[str] = []
            view.on("request", lambda request, asked=asked: asked.append(request.url))
            view.on("pageerror", lambda error, complaints=complaints: complaints.append(str(error)))
            for name in tried:
                view.goto(f"{address}{name}.html")
                wide = view.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0, f"{name} is {wide} px wider than {width}"
            assert all(url.startswith((address, "data:")) for url in asked)
            assert not complaints
            view.close()
        view = browser.new_page()
        view.goto(f"{address}index.html")
        view.locator("input.md-search__input").first.focus()
        meta = "document.querySelector('.md-search-result__meta').textContent"
        view.wait_for_function(
            f"!{meta}.includes('Initializing')", timeout=120_000
        )  # the index is being read
        view.locator("input.md-search__input").first.press_sequentially("witness")  # it listens for keys
        view.locator(".md-search-result__link[href*='algorithms.html']").first.wait_for(timeout=120_000)
        view.close()
