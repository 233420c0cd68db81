"""Tables as LaTeX, in the style of booktabs."""

import re

from shoal.reporting.sections import Table

_ESCAPES = {
    "\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
}  # fmt: skip
_SYMBOLS = {
    "α": r"\alpha", "β": r"\beta", "γ": r"\gamma", "δ": r"\delta", "Δ": r"\Delta", "ε": r"\varepsilon",
    "θ": r"\theta", "λ": r"\lambda", "ρ": r"\rho", "σ": r"\sigma", "ω": r"\omega",
    "±": r"\pm", "−": "-", "×": r"\times", "≤": r"\leq", "≥": r"\geq", "√": r"\surd", "²": "^2",
    "ₑ": "_{\\mathrm{e}}", "∞": r"\infty",
}  # fmt: skip
_WORDS = {"–": "--", "…": r"\dots{}", "“": "``", "”": "''", "’": "'"}


def with_symbols(text: str) -> str:
    r"""A text whose Greek letters and signs are formulas that any LaTeX can set; nothing is escaped.

    Examples
    --------
    >>> with_symbols("CLUB γ=Δ/4")
    'CLUB $\\gamma$=$\\Delta$/4'
    """
    return re.sub("|".join(_SYMBOLS), lambda found: f"${_SYMBOLS[found[0]]}$", text)


def pgf_text(text: str) -> str:
    r"""A text of a figure as LaTeX, for matplotlib's PGF, which itself escapes % and ^; formulas stay.

    Examples
    --------
    >>> pgf_text("$R_t$ of my_policy, α=1")
    '$R_t$ of my\\_policy, $\\alpha$=1'
    """
    parts = re.split(r"((?<!\\)\$.*?(?<!\\)\$)", text)
    plain = [with_symbols(re.sub(r"[&#_{}]", lambda found: f"\\{found[0]}", part)) for part in parts[::2]]
    parts[::2] = plain
    return "".join(parts)


def latex_text(text: str) -> str:
    r"""A text as LaTeX that shows it verbatim.

    Examples
    --------
    >>> latex_text("50% of T_e")
    '50\\% of T\\_e'
    """
    escaped = re.sub(r"[\\~^&%$#_{}]", lambda found: _ESCAPES[found[0]], text)
    return re.sub("|".join(_WORDS), lambda found: _WORDS[found[0]], with_symbols(escaped))


def latex_table(table: Table, *, label: str = "", caption: str | None = None) -> str:
    r"""A table as LaTeX, for a document with `\usepackage{booktabs}`.

    Parameters
    ----------
    table : Table
        Bold cells become bold, and its `key` follows the caption.
    label : str
        Its name for `\ref`; none by default.
    caption : str, optional
        By default the table's own.
    """
    strong = set(table.strong)
    lines = [
        [
            rf"\textbf{{{latex_text(text)}}}" if (row, place) in strong else latex_text(text)
            for place, text in enumerate(line)
        ]
        for row, line in enumerate(table.lines)
    ]
    said = " ".join(filter(None, (_sentence(table.caption if caption is None else caption), table.key)))
    rows = "\n".join(f"    {' & '.join(line)} \\\\" for line in lines)
    return "\n".join(
        [
            "% \\usepackage{booktabs}",
            r"\begin{table}[t]",
            r"  \centering",
            rf"  \caption{{{latex_text(said)}}}",
            *([rf"  \label{{{label}}}"] if label else []),
            rf"  \begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
            r"    \toprule",
            f"    {' & '.join(map(latex_text, table.header))} \\\\",
            r"    \midrule",
            rows,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
            "",
        ]
    )


def latex_picture(file: str, caption: str, *, label: str = "") -> str:
    """A figure environment that includes a file, for a document with `graphicx`."""
    return "\n".join(
        [
            "% \\usepackage{graphicx}",
            r"\begin{figure*}[t]",
            r"  \centering",
            rf"  \includegraphics{{{file}}}",
            rf"  \caption{{{latex_text(_sentence(caption))}}}",
            *([rf"  \label{{{label}}}"] if label else []),
            r"\end{figure*}",
            "",
        ]
    )


def _sentence(text: str) -> str:
    return text if not text or text.endswith(".") else f"{text}."
