"""Run the paper's experiments with everything their report needs, and choose the right report."""

from pathlib import Path
from typing import Any

from shoal.lab.experiments import report as harness
from shoal.lab.experiments.measurements import Measurement
from shoal.lab.experiments.runner import Completion, run_experiment
from shoal.lab.experiments.spec import ExperimentSpec
from shoal.lab.experiments.stored import load_results
from shoal.lab.paper import field, illustrations, measuring, real_data, report
from shoal.lab.paper.presets import is_preset
from shoal.reporting import render


def measurements(spec: ExperimentSpec) -> list[Measurement]:
    """What the report of a preset needs besides its grid; the theory is the paper's, not our policy's."""
    about_paper = (
        [] if spec.name == report.OURS else [*measuring.measurements(), *illustrations.measurements()]
    )
    return [*about_paper, *real_data.measurements(spec)]


def reproduce(spec: ExperimentSpec, out: Path, **how: Any) -> Completion:
    """`run_experiment` for a preset: its grid and its measurements."""
    return run_experiment(spec, out, measurements=measurements(spec), **how)


def write_report(out: Path, drawing: render.Drawing = lambda done, total, title: None) -> Path:
    """Write the report on the results in `out` into `out/report`; the paper's presets have further sections.

    Parameters
    ----------
    out : Path
        A directory that an experiment was run into.
    drawing : callable
        Called with the number of figures drawn so far, their total, and the next title.

    Returns
    -------
    Path
        `out/report/index.html`. Beside it are `tables.md`, and `figures/*.png` and `*.pdf`.

    Raises
    ------
    ResultsError, SpecError
        If there are no results, or they or their spec cannot be read.
    """
    found = load_results(out)
    if found.spec.name == field.FIELD:
        page = field.document(found)
    else:
        own = is_preset(found.spec)
        page = report.document(report.reproduction(found)) if own else harness.document(found)
    return render.write(page, found.directory / "report", drawing)
