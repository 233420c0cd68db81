"""Build the version that src/shoal/__init__.py states, try its wheel, tag it: `make release`.

Nothing is tagged until the wheel, installed alone into a fresh environment, has run the README's example.
Nothing is published: push the tag and upload `dist/` yourself.
"""

import re
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]


class ReleaseError(Exception):
    """Why there is no release."""


def main() -> None:
    """Check, build, try, tag."""
    try:
        version = stated_version()
        notes = changelog_section((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), version)
        check_repository(version)
        wheel = build(version)
        try_wheel(wheel, version)
        run("git", "tag", "--annotate", f"v{version}", "--message", f"shoal {version}\n\n{notes}")
    except ReleaseError as reason:
        sys.exit(f"release: {reason}")
    print(f"tagged v{version}; {wheel.name} and the source archive are in dist/")


def stated_version() -> str:
    """The version, which is stated in one place."""
    text = (ROOT / "src" / "shoal" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(\d+\.\d+\.\d+)"$', text, re.MULTILINE)
    if found is None:
        raise ReleaseError("src/shoal/__init__.py states no version of the form 1.2.3")
    return found[1]


def changelog_section(text: str, version: str) -> str:
    """The changelog of a version, which must be dated, and the first after an empty "Unreleased"."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    titles = [section.partition("\n")[0] for section in sections]
    wanted = re.compile(rf"{re.escape(version)} - \d{{4}}-\d{{2}}-\d{{2}}")
    listed = [title for title in titles if title != "Unreleased"]
    if not listed or not wanted.fullmatch(listed[0]):
        raise ReleaseError(
            f"the first section of CHANGELOG.md must be titled '{version} - YYYY-MM-DD', found {listed[:1]}"
        )
    if titles[0] == "Unreleased" and sections[0].partition("\n")[2].strip():
        raise ReleaseError(f"CHANGELOG.md lists unreleased changes; move them into the section of {version}")
    notes = sections[titles.index(listed[0])].partition("\n")[2].strip()
    if not notes:
        raise ReleaseError(f"CHANGELOG.md says nothing about {version}")
    return notes


def check_repository(version: str) -> None:
    """Refuse a tree with changes, and a version that has been released."""
    if run("git", "status", "--porcelain").strip():
        raise ReleaseError("the working tree has changes that are not committed")
    if run("git", "tag", "--list", f"v{version}").strip():
        raise ReleaseError(f"v{version} has been tagged already; state the next version")


def build(version: str) -> Path:
    """Build source archive and wheel into dist/; return the wheel."""
    run(sys.executable, "-m", "build", "--outdir", "dist")
    (wheel,) = (ROOT / "dist").glob(f"shoal-{version}-*.whl")
    return wheel


def try_wheel(wheel: Path, version: str) -> None:
    """Install the wheel into a fresh environment and run the README's example, far from the sources."""
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    if example is None:
        raise ReleaseError("README.md has no example to try")
    with tempfile.TemporaryDirectory() as directory:
        home = Path(directory)
        venv.create(home / "venv", with_pip=True)
        python = home / "venv" / "bin" / "python"
        constraints = str(ROOT / "constraints.txt")
        run(str(python), "-m", "pip", "install", "--quiet", "--constraint", constraints, str(wheel))
        (home / "example.py").write_text(example[1], encoding="utf-8")
        for command in (
            [str(python), "-c", f"import shoal; assert shoal.__version__ == '{version}', shoal.__version__"],
            [str(python), "-W", "error", "example.py"],
            [str(home / "venv" / "bin" / "shoal"), "list"],
        ):
            run(*command, cwd=home)


def run(*command: str, cwd: Path = ROOT) -> str:
    """Run a command and return what it printed."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ReleaseError(f"{' '.join(command[:4])} … failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
