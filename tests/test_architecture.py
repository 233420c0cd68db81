"""The map in docs/architecture.md is that of the tree."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"


def mapped() -> set[str]:
    """The folders of the map, by their paths: two spaces are one level."""
    found, path = set(), list[str]()
    text = PAGE.read_text(encoding="utf-8")
    block = text.split("```\nsrc/shoal/\n")[1].split("```")[0]
    for line in block.splitlines():
        name = re.match(r"( +)(\w+)/ ", line)
        assert name, line
        path[len(name[1]) // 2 - 1 :] = [name[2]]
        found.add("/".join(path))
    return found


def test_the_map_has_every_folder_and_no_other() -> None:
    package = ROOT / "src" / "shoal"
    folders = {path.parent.relative_to(package).as_posix() for path in package.rglob("*.py")} - {"."}
    assert mapped() - {"lab/paper/presets"} == folders


def test_files_that_the_page_names_exist() -> None:
    named = set(
        re.findall(r"`((?:core|lab|live|reporting|cli)/[\w/]+\.py)`", PAGE.read_text(encoding="utf-8"))
    )
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "src" / "shoal" / name).exists()]


def test_a_public_class_name_exists_once() -> None:
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src" / "shoal").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert not {name: places for name, places in homes.items() if len(places) > 1}
