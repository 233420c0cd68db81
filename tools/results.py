"""Write docs/results from full runs of the presets: `python tools/results.py results/tables results/paper …`.

For each directory of results this writes the report, copies its Markdown and its pictures to docs/results,
and renews the numbers in docs/results/README.md, between the comments that name the preset. The sentence on
the published figures in README.md comes from the preset `tables`. No number there is typed by hand.
"""

import argparse
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from shoal.lab.experiments.report import Column, table_of
from shoal.lab.experiments.spec import cells
from shoal.lab.experiments.stored import Results, load_results
from shoal.lab.experiments.summaries import SummaryRow
from shoal.lab.paper import beyond, field, report
from shoal.lab.paper.comparison import is_ours, reference_row
from shoal.lab.paper.presets import is_preset
from shoal.lab.paper.real_data import reading_parts
from shoal.lab.paper.report import (
    Reproduction,
    agreement_sentence,
    f1_sentence,
    order_sentence,
    reproduction,
)
from shoal.lab.paper.reproduce import write_report
from shoal.reporting.render import markdown_text
from shoal.reporting.sections import Table
from shoal.reporting.words import EMPTY, duration, plus_minus

ROOT = Path(__file__).parents[1]
PAGES = ("tables.md", "theory.md")
PRINTED = "tables"
"""The preset whose scenarios have printed figures that ours are compared with."""


class ResultsError(Exception):
    """Why results are not published."""


def main() -> None:
    """Publish the directories on the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("directories", nargs="+", type=Path)
    args = parser.parse_args()
    try:
        for directory in args.directories:
            publish(directory, ROOT)
            print(f"{directory}: in docs/results")
    except ResultsError as reason:
        sys.exit(f"results: {reason}")


def publish(directory: Path, root: Path) -> None:
    """Copy the report on a directory of results to `root`/docs/results, and renew the numbers there."""
    found = whole_preset(load_results(directory))
    name = found.spec.name
    page = write_report(directory)
    target = root / "docs" / "results" / name
    shutil.rmtree(target, ignore_errors=True)
    (target / "figures").mkdir(parents=True)
    for file in PAGES:
        if (page.parent / file).exists():
            shutil.copy(page.parent / file, target)
    shown = set(
        re.findall(r"\(figures/([^)]+)\)", "".join(path.read_text("utf-8") for path in target.glob("*.md")))
    )
    for picture in shown:
        shutil.copy(page.parent / "figures" / picture, target / "figures")
    numbers = root / "docs" / "results" / "README.md"
    if name == field.FIELD:
        renew(numbers, name, field_block(found))
        return
    own = reproduction(found)
    renew(numbers, name, block(own))
    if name == PRINTED:
        renew(root / "README.md", "reproduced", reproduced(own))


def whole_preset(found: Results) -> Results:
    """The results, if they are those of a preset with nothing missing."""
    expected = sum(cell.environment.id not in found.skipped for cell in cells(found.spec))
    if not (is_preset(found.spec) or found.spec.name == field.FIELD):
        raise ResultsError(f"{found.directory}: {found.spec.name!r} is not a preset")
    if found.cells_done < expected:
        raise ResultsError(
            f"{found.directory}: {found.cells_done} of {expected} cells are finished; run the command again"
        )
    return found


def renew(page: Path, name: str, text: str) -> None:
    """Replace the text between the comments `<!-- name -->` and `<!-- /name -->` of a page."""
    old = page.read_text(encoding="utf-8")
    first, last = f"<!-- {name} -->", f"<!-- /{name} -->"
    if old.count(first) != 1 or old.count(last) != 1:
        raise ResultsError(f"{page}: has no place for {name} ({first} … {last})")
    before, rest = old.split(first)
    page.write_text(f"{before}{first}\n{text}\n{last}{rest.split(last)[1]}", encoding="utf-8")


def reproduced(own: Reproduction) -> str:
    """The sentence of README.md."""
    said = markdown_text(agreement_sentence(own))
    return f"The published figures are reproduced ([docs/results](docs/results/README.md)). {said}"


def field_block(found: Results) -> str:
    """What docs/results/README.md says about the benchmark of the field: the ranks of all methods."""
    page = field.document(found)
    tables = [part for part in page.sections[0].parts if isinstance(part, Table)]
    return "\n\n".join([provenance(found), f"- {markdown_text(page.lead)}", *map(as_markdown, tables)])


def block(own: Reproduction) -> str:
    """What docs/results/README.md says of a preset."""
    found = own.found
    said = [agreement_sentence(own), order_sentence(own), f1_sentence(own), beyond.summary(own.contests)]
    if found.spec.name == PRINTED:
        compared = [published_table(own), *report.exploration_parts(own)]
    else:
        compared = [*reading_parts(found, report.sized_rows(own))]
    tables = [part for part in (*compared, scenario_table(own)) if isinstance(part, Table)]
    parts = [
        provenance(found),
        "\n".join(f"- {markdown_text(text)}" for text in said if text),
        *map(as_markdown, tables),
    ]
    return "\n\n".join(part for part in parts if part)


def provenance(found: Results) -> str:
    """The command, what it ran, and how long it took."""
    known, spec, name = found.provenance, found.spec, found.spec.name
    pages = [f"[report]({name}/tables.md)"]
    if name not in (report.OURS, field.FIELD):
        pages.append(f"[theory]({name}/theory.md)")
    wall, cpu = duration(known.get("wall_seconds", 0.0)), duration(known.get("cpu_seconds", 0.0))
    text = (
        f"`shoal reproduce {name}` ({', '.join(pages)}): {found.cells_done:,} cells of {spec.runs} runs of "
        f"{spec.horizon:,} rounds. Wall time {wall} with {known.get('executor', '?')}, processor time {cpu}; "
        f"shoal {known.get('versions', {}).get('shoal', '?')}, commit {known.get('commit') or 'unknown'}."
    )
    for environment, reason in found.skipped.items():
        text += f" {environment} was left out: {reason.rstrip('.')}."
    return text


def published_table(own: Reproduction) -> Table | None:
    """Every method of the paper as published, with the printed mean in brackets, by scenario."""
    shown = [key for key in own.found.environments if own.comparable(key)]
    if not shown:
        return None
    methods = {row.method: row.label for row in own.as_published.values() if row.environment in shown}

    def column(environment: str) -> Column:
        def text(method: str) -> str:
            row = own.as_published.get((environment, method))
            if row is None:
                return EMPTY
            printed = own.regret(row)
            mean = f"{row.regret.mean:,.0f}"
            return mean if printed is None else f"{mean} ({printed.printed.value:,.0f})"

        return Column(f"{own.found.title(environment)}: as published (in print)", text)

    columns = [Column("final regret, mean", methods.__getitem__), *map(column, shown)]
    return table_of("", columns, list(methods))


def scenario_table(own: Reproduction) -> Table:
    """Ind, Oracle, BASS and ours at their best, by scenario."""
    wanted: dict[str, Callable[[Sequence[SummaryRow]], SummaryRow | None]] = {
        "Ind": lambda rows: first(rows, "independent"),
        "Oracle": lambda rows: first(rows, "oracle"),
        "BASS δ=0.1": reference_row,
        "ClusterMixture (ours)": lambda rows: next((row for row in rows if is_ours(row)), None),
    }

    def column(name: str) -> Column:
        def text(environment: str) -> str:
            row = wanted[name](own.found.of(environment))
            return EMPTY if row is None else plus_minus("{:,.0f}", row.regret.mean, row.regret.std)

        return Column(name, text)

    columns = [Column("at its best, mean ± std", own.found.title), *map(column, wanted)]
    return table_of("", columns, own.found.environments)


def first(rows: Sequence[SummaryRow], policy: str) -> SummaryRow | None:
    """The first row of a policy."""
    return next((row for row in rows if row.policy == policy), None)


def as_markdown(table: Table | None) -> str:
    """A table in Markdown, below its caption."""
    if table is None:
        return ""
    rule = ["---", *("---:" for _ in table.header[1:])]
    lines = [table.header, rule, *table.lines]
    text = "\n".join("| " + " | ".join(text.replace("|", r"\|") for text in line) + " |" for line in lines)
    return f"{markdown_text(table.caption).rstrip('.')}:\n\n{text}" if table.caption else text


if __name__ == "__main__":
    main()
