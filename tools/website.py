"""What MkDocs adds to the pages in docs/: reference, changelog, notebooks, menu entries, contents, formulas.

`mkdocs.yml` names this file as a hook. Nothing here is written into docs/.
"""

import html
import inspect
import re
import struct
import subprocess
from operator import attrgetter
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import latex2mathml.converter
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation
from mkdocs.structure.pages import Page
from tools.tutorials import PAGES, notebook

import shoal

ROOT = Path(__file__).parents[1]
LONG = 2_500
"""Words above which a page begins with its contents, where the window has no room for them at the side."""
LEAST_WIDTH = 640
"""Least width of a picture on the page, in pixels, if it has that many."""

REFERENCE = {
    "policies": (
        "Policies",
        "What chooses and learns; all are called the same way.",
        ("shoal.core", "shoal.lab.rivals"),
    ),
    "environments": ("Environments", "What policies are tried in.", ("shoal.lab.environments",)),
    "simulation": (
        "Simulation and plots",
        "Playing a policy in an environment, and looking at what happened; "
        "[every plot as a picture](../tutorials/pictures.md).",
        ("shoal.lab.simulation", "shoal.lab.plots"),
    ),
    "results": (
        "Results of experiments",
        "What [a grid](../experiments.md) stored, as tables and figures.",
        ("shoal.lab.experiments",),
    ),
    "recommendation": (
        "Recommending a policy",
        "Which policy to use, from runs in your world.",
        ("shoal.lab.recommendation",),
    ),
    "theory": (
        "The test and its radius",
        "What decides whether two agents go on sharing.",
        ("shoal.lab.theory", "shoal.lab.separation"),
    ),
    "live": (
        "Live",
        "Named agents, late rewards, a journal on disk.",
        ("shoal.live",),
    ),
    "more": ("More", "Everything else.", ("shoal",)),
}
"""Pages of the reference: title, introduction, and the packages whose public names they hold."""
FURTHER = {
    "simulation": ("lab.plots.plot_explanation",),
    "results": ("lab.experiments.stored.Results",),
    "live": ("Client", "AsyncClient"),
}
"""Names that are public too, but not in `shoal.__all__`: clients need an extra, results are loaded."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """List the reference's pages, and among the guides every page of docs/ that the menu lacks."""
    assert config.nav is not None
    sections = {title: entry for item in config.nav for title, entry in item.items()}
    place = sections["Reference"].index("reference/")
    sections["Reference"][place : place + 1] = [
        "reference/index.md",
        *(f"reference/{page}.md" for page in reference_pages()),
    ]
    config.repo_url = repository()
    listed = set(re.findall(r"'([\w./-]+\.md)'", repr(config.nav)))
    pages = (path.relative_to(config.docs_dir).as_posix() for path in Path(config.docs_dir).rglob("*.md"))
    sections["How-to guides"].extend(sorted(set(pages) - listed))
    return config


def on_nav(nav: Navigation, *, files: Files, config: MkDocsConfig) -> Navigation:
    """Resolve entries such as `section:live.md#forgetting`: MkDocs itself lists only pages."""
    waiting = list(nav.items)
    while waiting:
        item = waiting.pop()
        waiting += item.children or []
        if isinstance(item, Link) and item.url.startswith("section:"):
            path, _, heading = item.url.removeprefix("section:").partition("#")
            page = files.get_file_from_path(path)
            if page is None:
                raise PluginError(f"mkdocs.yml lists a section of {path}, which does not exist")
            item.url = f"{page.url}#{heading}"
    return nav


def repository() -> str:
    """The repository's web address, from where it was cloned; empty for a clone of a directory."""
    asked = ["git", "-C", str(ROOT), "config", "--get", "remote.origin.url"]
    origin = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    found = re.fullmatch(
        r"(?:https://(?:[^@/]*@)?|(?:ssh://)?git@)([\w.-]+\.\w+)[:/](.+?)(?:\.git)?/?", origin
    )
    return f"https://{found[1]}/{found[2]}" if found else ""


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages and notebooks that are made from something else."""
    added: dict[str, str | bytes] = {
        "changelog.md": from_root((ROOT / "CHANGELOG.md").read_text()),
        "contributing.md": from_root((ROOT / "CONTRIBUTING.md").read_text()),
        "security.md": from_root((ROOT / "SECURITY.md").read_text()),
        "code-of-conduct.md": from_root((ROOT / "CODE_OF_CONDUCT.md").read_text()),
    }
    for name, text in reference_pages().items():
        added[f"reference/{name}.md"] = text
    added["reference/index.md"] = reference_index()
    for page in PAGES:
        added[f"tutorials/{page.stem}.ipynb"] = notebook(page.read_text())
    for path, content in added.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, *, page: Page, **_: Any) -> str:
    """Offer the notebook of a tutorial."""
    if page.file.src_uri in {f"tutorials/{one.stem}.md" for one in PAGES}:
        name = Path(page.file.src_uri).stem
        title, rest = markdown.split("\n", 1)
        markdown = f"{title}\n\n[As a notebook]({name}.ipynb){{ .md-button download }}\n{rest}"
    return markdown


def reference_pages() -> dict[str, str]:
    """The reference, a page for each group of public names: every name is on exactly one."""
    found: dict[str, list[str]] = {page: [] for page in REFERENCE}
    for name in shoal.__all__:
        found[page_of(getattr(shoal, name).__module__)].append(name)
    for page, names in FURTHER.items():
        found[page] += names
    return {
        page: "\n\n".join([f"# {title}", introduction, *(f"::: shoal.{name}" for name in found[page])]) + "\n"
        for page, (title, introduction, _) in REFERENCE.items()
        if found[page]
    }


def page_of(module: str) -> str:
    """The page of what is defined in a module: the first whose packages contain it."""
    return next(
        page
        for page, (_, _, homes) in REFERENCE.items()
        if any(f"{module}.".startswith(f"{home}.") for home in homes)
    )


def reference_index() -> str:
    """All public names, each with the first sentence of its docstring."""
    said = ["# Reference", "All public names, `import shoal` first."]
    for page, text in reference_pages().items():
        said.append(f"## {REFERENCE[page][0]}\n\n| name | |\n|---|---|")
        for name in re.findall(r"^::: shoal\.([\w.]+)", text, flags=re.MULTILINE):
            first = inspect.getdoc(attrgetter(name)(shoal)) or ""
            first = " ".join(first.split("\n\n")[0].split()).replace("|", "\\|")
            said[-1] += f"\n| [`{name.removeprefix('lab.')}`]({page}.md#shoal.{name}) | {first} |"
    return "\n\n".join(said) + "\n"


def from_root(text: str) -> str:
    """A page of the repository's root as a page of docs/: links lead to where the site has things."""
    text = re.sub(r"\]\(docs/", "](", text)
    return text.replace("](CONTRIBUTING.md", "](contributing.md").replace("](CHANGELOG.md", "](changelog.md")


def on_page_content(content: str, *, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Set inline mathematics, which pages write as code, in the font of the text, where accents fit letters.

    Indices in formulas and in running text go below the line. Pictures are shown at half their size, as they
    have two pixels for each of the page's.
    """
    folder = Path(config.docs_dir, page.file.src_uri).parent

    def sized(found: re.Match[str]) -> str:
        path = folder / unquote(found[1])
        if not path.is_file():  # the links' check names it
            return found[0]
        pixels = struct.unpack(">I", path.read_bytes()[16:20])[0]
        return f'{found[0]} width="{max(pixels // 2, min(pixels, LEAST_WIDTH))}"'

    content = re.sub(r'<img (?![^>]*width)[^>]*?src="([^":]+\.png)(?:#[\w-]+)?"', sized, content)
    content = re.sub(r"(?<!</span>)<code>([^<\"]*[̂̃‖√ΣΠ∈⁻ᵀ²½≤≥α-ω][^<\"]*)</code>", _in_line, content)
    parts = re.split(r"(<(pre|code|math|script|style)\b.*?</\2>|<[^>]*>)", content, flags=re.DOTALL)
    parts[::3] = [_indexed(text, 3) for text in parts[::3]]
    parts[2::3] = [""] * len(parts[2::3])  # the names of tags, which are in the parts before them
    content = "".join(parts)
    is_long = len((page.markdown or "").split()) > LONG
    return content.replace("</h1>", f"</h1>\n{contents(page)}", 1) if is_long else content


def contents(page: Page) -> str:
    """The headings of a page as links, for windows too narrow for the theme's own table at the side."""
    headings = [heading for top in page.toc for heading in top.children]
    rows = "".join(f'<li><a href="{heading.url}">{heading.title}</a></li>' for heading in headings)
    return (
        '<details class="on-this-page" data-search-exclude><summary>On this page</summary><ul>'
        f"{rows}</ul></details>"
    )


def _in_line(found: re.Match[str]) -> str:
    return f'<span class="in-line">{_indexed(found[1], 1)}</span>'


def _indexed(text: str, longest: int) -> str:
    """Indices below the line: in braces, or of up to `longest` characters, after a letter, a norm or `)`."""
    symbol, index = r"(?<![A-Za-z_])[^\W\d_][̂̃]?|[‖²)]", rf"[A-Za-z0-9α-ω∅]{{1,{longest}}}(?![A-Za-z0-9_])"
    return re.sub(rf"({symbol})_(?:\{{([^}}]*)\}}|({index}))", r"\1<sub>\2\3</sub>", text)


def formula(source: str, language: str, css_class: str, options: Any, md: Any, **_: Any) -> str:
    """A fence of TeX as MathML, which browsers draw by themselves: no script, no fonts."""
    drawn = latex2mathml.converter.convert(source.strip(), display="block")
    drawn = drawn.replace(r"<mi>\arg</mi>", "<mo>arg</mo>")  # which the converter does not know
    if "\\" in drawn:
        raise ValueError(f"this formula has a command that would be printed raw: {source}")
    drawn = re.sub(
        r"<msub>(<mo>max</mo>.*?)</msub>(?=<m)", r"<munder>\1</munder>", drawn
    )  # below, not beside
    return f'<div class="{css_class}" role="math" aria-label="{html.escape(source.strip())}">{drawn}</div>'
