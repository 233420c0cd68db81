"""Nobody touches what is private to another file; what `make lint` finds if somebody does."""

from pathlib import Path

import pytest
from tools import private

ROOT = Path(__file__).parents[1]


def test_ours_touch_nothing_private(capsys: pytest.CaptureFixture[str]) -> None:
    assert private.main(ROOT / "src" / "shoal") == 0, capsys.readouterr().out


def test_lint_runs_it() -> None:
    assert "tools/private.py" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize("place", private.EXEMPT)
def test_what_is_let_through_exists(place: str) -> None:
    assert (ROOT / "src" / "shoal" / place).exists()


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("one._lock.acquire()", ["one._lock"]),
        ("self.other._lock = None", ["self.other._lock"]),
        ("from shoal.live import _hidden", ["from shoal.live import _hidden"]),
        ("getattr(one, '_lock', None)", ["getattr(one, '_lock', None)"]),
        ("class One:\n    def f(self):\n        self._a = self._b = cls._c = super()._d", []),
        ("class One:\n    def f(self, other):\n        self._a = other._a", []),
        ("class One:\n    __slots__ = ('_a',)\ndef f(one):\n    return one._a", []),
        ("def _f(): ...\nmodule._f", []),
        ("row._replace(a=1); os._exit(1); __version__; one.__class__; one._", []),
    ],
)
def test_what_is_found(source: str, found: list[str]) -> None:
    assert [text for _, text in private.touched(source)] == found


def test_it_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "own.py").write_text("class Own:\n    def f(self):\n        self._a = 1\n")
    assert private.main(tmp_path) == 0
    (tmp_path / "other.py").write_text("\nown._a\n")
    assert private.main(tmp_path) == 1
    said = f"{tmp_path}/other.py:2: own._a is private to another file; give it a public name there\n"
    assert capsys.readouterr().out == said
