"""The report's page in a browser, where there is one."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium here: the page is not tried in a browser"
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """A browser that asks for nothing from the network."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield launched
        launched.close()


class Opened:
    """A page with everything it complained about or asked for."""

    def __init__(self, browser: Any, path: Path, **options: Any) -> None:
        self.view = browser.new_page(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.view.on("console", lambda message: self.complaints.append(message.text))
        self.view.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.view.on("request", lambda request: self.requests.append(request.url))
        self.view.goto(path.as_uri())
        self.first = self.view.locator("figure.live").first
        self.first.scroll_into_view_if_needed()

    def pixels(self) -> bytes:
        """The first chart's picture, as drawn."""
        return bytes(self.first.locator(".plot canvas").first.screenshot())

    def round(self) -> int:
        """The round that the first chart's list is about."""
        found = re.search(r"Round ([\d,]+)", self.first.locator(".reading").inner_text())
        assert found is not None
        return int(found[1].replace(",", ""))

    def value(self, label: str) -> str:
        """What the first chart's list says of a method."""
        row = self.first.locator("ul.methods li", has_text=label)
        return str(row.locator("output").inner_text())
