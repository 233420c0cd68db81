"""Progress of an experiment: a bar on a terminal, lines elsewhere."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from shoal.lab.experiments.runner import Progress

LINE_SECONDS = 10.0
MOST_WORKERS = 16
"""Workers that get a bar of their own."""


@contextlib.contextmanager
def progress_display() -> Iterator[Any]:
    """A function that shows progress: on a terminal, bars for the total and each worker; else lines."""
    from rich.console import Console

    from shoal.core.jit.narration import say_nothing_of_compiling

    say_nothing_of_compiling()  # the progress names what is being compiled
    console = Console(stderr=True)
    if not console.is_terminal:
        yield ProgressLines()
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    speed = TextColumn("{task.fields[speed]}")
    with Bar(*columns, speed, TimeRemainingColumn(compact=True), console=console, transient=True) as bar:
        task = bar.add_task("starting", total=None, speed="")
        rows: dict[str, Any] = {}

        def show(progress: "Progress") -> None:
            cells = f"{progress.cells_done}/{progress.cells_total} cells"
            what = f"{cells}, compiling {progress.compiling}" if progress.compiling else cells
            speed = f"{progress.rounds_per_second:,.0f} rounds/s"
            bar.update(
                task,
                completed=progress.rounds_done,
                total=progress.rounds_total,
                description=what,
                speed=speed,
            )
            for worker, rounds in by_worker(progress).items():
                if worker not in rows:
                    rows[worker] = bar.add_task("", total=None, speed="")
                own = f"{rounds / max(progress.seconds, 1e-9):,.0f} rounds/s"
                bar.update(
                    rows[worker], completed=rounds, total=progress.rounds_total, description=worker, speed=own
                )

        yield show


def by_worker(progress: "Progress") -> dict[str, int]:
    """Rounds by worker, for the first to finish something; all others are added up."""
    listed = list(progress.workers.items())
    shown = dict(listed[:MOST_WORKERS])
    if len(listed) > MOST_WORKERS:
        shown["other workers"] = sum(rounds for _, rounds in listed[MOST_WORKERS:])
    return shown


@contextlib.contextmanager
def drawing_display() -> Iterator[Any]:
    """A function that shows how far a report is: a live line on a terminal, else a line now and then."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status("writing the report") as status:
            yield lambda done, total, title: status.update(
                f"writing the report: figure {done + 1} of {total}, {escape(title)}"
            )
        return
    yield _now_and_then(lambda done, total: f"writing the report: figure {done + 1} of {total}")


@contextlib.contextmanager
def runs_display() -> Iterator[Any]:
    """A function that shows how many runs are finished: a bar on a terminal, else a line now and then."""
    from rich.console import Console

    from shoal.core.jit.narration import say_nothing_of_compiling

    say_nothing_of_compiling()
    console = Console(stderr=True)
    if console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        with Bar(*columns, TimeRemainingColumn(compact=True), console=console, transient=True) as bar:
            task = bar.add_task("reading and compiling", total=None)
            yield lambda done, total, what: bar.update(task, completed=done, total=total, description=what)
        return
    yield _now_and_then(lambda done, total: f"{done} of {total} runs")


def _now_and_then(text: Callable[[int, int], str]) -> Callable[[int, int, str], None]:
    """Without a terminal, print how much is done every ten seconds."""
    due = time.monotonic() + LINE_SECONDS

    def show(done: int, total: int, what: str) -> None:
        nonlocal due
        if time.monotonic() >= due:
            due = time.monotonic() + LINE_SECONDS
            print(text(done, total), file=sys.stderr, flush=True)

    return show


class ProgressLines:
    """Prints a line for each tenth done, every ten seconds, and when another policy is compiled."""

    def __init__(self) -> None:
        self._tenth = 0
        self._compiling: str | None = None
        self._printed = time.monotonic()

    def __call__(self, progress: "Progress") -> None:
        now = time.monotonic()
        tenth = 10 * progress.rounds_done // max(progress.rounds_total, 1)
        if progress.compiling not in (None, self._compiling):
            self._compiling = progress.compiling
            print(f"compiling {progress.compiling}", file=sys.stderr, flush=True)
        ended = progress.cells_done == progress.cells_total
        if ended or tenth > self._tenth or now - self._printed > LINE_SECONDS:
            self._tenth, self._printed = tenth, now
            playing = 0 < progress.rounds_done < progress.rounds_total
            speed = f", {progress.rounds_per_second:,.0f} rounds/s"
            if playing:
                speed += f", {progress.seconds_left:.0f} s left"
            elif not ended and progress.rounds_total:
                speed = ", all rounds played"
            cells = f"{progress.cells_done}/{progress.cells_total} cells"
            print(cells + speed, file=sys.stderr, flush=True)
