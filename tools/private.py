"""Finds private members that are touched from another file: `one._name`, `from module import _name`.

    python tools/private.py [FOLDER]

A name with one leading underscore belongs to the file that defines it: a function, a class, a variable or an
attribute of its own `self`. Names that other files need are public. `make lint` runs this over src.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PUBLIC = {
    "_replace", "_fields", "_asdict", "_make", "_field_defaults",  # of named tuples: not to clash with fields
    "_exit",  # of `os`, documented
    "_is_owned",  # of RLock, the only way to ask whether this thread holds it; Condition uses it, too
}  # fmt: skip
"""Names that are public in spite of their underscore."""
EXEMPT = {
    "core/jit": "works on Numba's own insides, for the versions that pyproject.toml names",
}
"""Files and folders, relative to the one that is searched, that may touch what is private, and why."""


def main(folder: Path) -> int:
    """Print what is found; returns the exit code."""
    found = 0
    for path in sorted(folder.rglob("*.py")):
        place = path.relative_to(folder).as_posix()
        if any(place.startswith(f"{one}/") or place == one for one in EXEMPT):
            continue
        for line, text in touched(path.read_text()):
            print(f"{path}:{line}: {text} is private to another file; give it a public name there")
            found += 1
    return 1 if found else 0


def touched(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of each private member of another file, in a file's source."""
    tree = ast.parse(source)
    own = set(defined_in(tree))
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=module, names=names, level=level):
                for one in names:
                    if is_private(one.name):
                        yield node.lineno, f"from {'.' * level}{module or ''} import {one.name}"
            case ast.Attribute(value=value, attr=name) if is_private(name) and name not in own:
                if not is_own(value):
                    yield node.lineno, ast.unparse(node)
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr"), args=[value, ast.Constant(value=name), *_]
            ):
                if isinstance(name, str) and is_private(name) and name not in own and not is_own(value):
                    yield node.lineno, ast.unparse(node)


def defined_in(tree: ast.AST) -> Iterator[str]:
    """Names that a file defines: functions, classes, variables, attributes of `self`, slots."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Assign(targets=[ast.Name(id="__slots__")], value=ast.Tuple(elts=names)):
                yield from (one.value for one in names if isinstance(one, ast.Constant))  # type: ignore[misc]


def is_private(name: str) -> bool:
    """Whether a name has a single leading underscore that makes it private."""
    return name.startswith("_") and not name.startswith("__") and name.strip("_") != "" and name not in PUBLIC


def is_own(value: ast.expr) -> bool:
    """Whether an expression is `self`, `cls` or `super()`."""
    match value:
        case ast.Name(id="self" | "cls") | ast.Call(func=ast.Name(id="super")):
            return True
    return False


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "src/shoal")))
