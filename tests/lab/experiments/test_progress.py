"""Progress of an experiment, on a terminal: of all, and of each worker."""

import io

import pytest
import rich.console

from shoal.cli.progress import MOST_WORKERS, ProgressLines, by_worker, progress_display
from shoal.lab.experiments.runner import Progress


def reading(workers: dict[str, int]) -> Progress:
    return Progress(3, 1, 8, sum(workers.values()), 80_000, 2.0, workers=workers)


def test_each_worker_has_a_line_up_to_many() -> None:
    few = {"node1/7": 3_000, "node2/9": 1_000}
    assert by_worker(reading(few)) == few
    many = {f"node/{k}": 100 for k in range(MOST_WORKERS + 5)}
    shown = by_worker(reading(many))
    assert list(shown) == [f"node/{k}" for k in range(MOST_WORKERS)] + ["other workers"]
    assert sum(shown.values()) == sum(many.values())


def test_lines_give_no_speed_once_all_rounds_are_played(capsys: pytest.CaptureFixture[str]) -> None:
    show = ProgressLines()
    for seconds, cells in ((2.0, 3), (60.0, 3), (90.0, 8)):
        show._printed -= 60.0
        show(Progress(cells, 1, 8, 80_000, 80_000, seconds))
    assert capsys.readouterr().err.splitlines() == [
        "3/8 cells, all rounds played",
        "3/8 cells, all rounds played",
        "8/8 cells, 889 rounds/s",
    ]


@pytest.mark.parametrize("terminal", [True, False])
def test_workers_are_shown_on_a_terminal_only(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], terminal: bool
) -> None:
    drawn = io.StringIO()
    console = rich.console.Console(file=drawn, force_terminal=terminal, width=100)
    monkeypatch.setattr(rich.console, "Console", lambda **_: console)
    with progress_display() as show:
        show(reading({"node1/7": 30_000, "node2/9": 10_000}))
    said = drawn.getvalue() + capsys.readouterr().err
    assert "3/8 cells" in said
    assert ("node2/9" in said) == ("5,000 rounds/s" in said) == terminal
