"""Tables as text: LaTeX with booktabs, Markdown, CSV. Frame in, text out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from adapter_probe.metrics import sign_of
from adapter_probe.results.atomic import make_folder, write_csv, write_text
from adapter_probe.wording import number_of, rounded

from .drawing import without_noise_of_points
from .pgf import escape_latex

_UNIT = re.compile(r"(.+) \((.+)\)")
# At its own size where it fits, else as wide as the text.
_SHRUNK = r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%" + "\n"
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~])")


@dataclass(frozen=True, eq=False)
class Table:
    """One table, ready to be written.

    Attributes:
        text: formatted cells; the column names are the header.
        numbers: the underlying numbers in full precision, for CSV.
        best: bool, same shape as `text`, cells to set in bold.
        words: number of text columns from the left; the others are right-aligned.
        rules: rows that are preceded by a rule.
    """

    stem: str
    caption: str
    text: pd.DataFrame
    numbers: pd.DataFrame
    best: np.ndarray
    words: int = 1
    rules: tuple[int, ...] = ()

    def renamed(self, suffix: str) -> Table:
        """The table with a suffix at its file name."""
        return replace(self, stem=f"{self.stem}{suffix}")

    def write(self, folder: str | Path) -> tuple[Path, ...]:
        """Write ``<stem>.tex``, ``.md`` and ``.csv``; return their paths."""
        folder = make_folder(folder)
        tex, markdown, csv = (folder / f"{self.stem}.{ending}" for ending in ("tex", "md", "csv"))
        write_text(tex, latex_text(self))
        write_text(markdown, markdown_text(self))
        write_csv(csv, without_noise_of_points(self.numbers))
        return tex, markdown, csv


def is_best(values: pd.DataFrame, metrics: Sequence[str], *, axis: int = 0) -> np.ndarray:
    """Whether a number is the best of its column (axis 0) or row (axis 1), bool of the shape of `values`.

    Scores, fractions or NaN, that are printed the same, to one decimal of a hundredth, count as equal. A line
    with fewer than two numbers has no best. Where a line's metric is a loss, less is better.
    """
    signs = np.array([sign_of(metric) for metric in metrics])
    printed = values.map(lambda score: number_of(rounded(100 * score))).to_numpy(float)
    shown = printed * (signs if axis == 0 else signs[:, None])
    known = ~np.isnan(shown)
    top = np.where(known, shown, -np.inf).max(axis=axis, keepdims=True, initial=-np.inf)
    return known & (shown == top) & (known.sum(axis=axis, keepdims=True) > 1)


def score_cell(score: float, sem: float | None = None) -> str:
    """A score in hundredths, with its standard error if there is one: `84.4 ± 0.1`; a dash if undefined."""
    if np.isnan(score):
        return "–"
    spread = "" if sem is None or np.isnan(sem) else f" ± {rounded(100 * sem)}"
    return f"{rounded(100 * score)}{spread}"


def latex_text(table: Table) -> str:
    """A ``table`` with its caption and label, for the packages booktabs and graphicx."""
    columns = "l" * table.words + "r" * (table.text.shape[1] - table.words)
    lines = [
        r"% In the preamble: \usepackage{booktabs,graphicx}. Wide tables of two-column papers: table*.",
        r"\begin{table}[tb]",
        r"\centering",
        rf"\caption{{{escape_latex(table.caption)}}}",
        rf"\label{{tab:{table.stem.removeprefix('table-')}}}",
        r"\smallskip",  # the class article has no room between caption and table
        rf"{_SHRUNK}\begin{{tabular}}{{{columns}}}",
        r"\toprule",
        *_latex_header([str(name) for name in table.text.columns]),
        r"\midrule",
    ]
    for index, (cells, bold) in enumerate(zip(table.text.itertuples(index=False), table.best)):
        if index in table.rules:
            lines.append(r"\midrule")
        escaped = [escape_latex(cell) for cell in cells]
        lines.append(_latex_row([rf"\textbf{{{c}}}" if b else c for c, b in zip(escaped, bold)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table}", ""])


def _latex_header(names: Sequence[str]) -> list[str]:
    """The header: names, with bracketed parts on a second line."""
    split = [_UNIT.fullmatch(name) for name in names]
    upper = [escape_latex(found[1] if found else name) for found, name in zip(split, names)]
    if not any(split):
        return [_latex_row(upper)]
    return [_latex_row(upper), _latex_row([escape_latex(found[2]) if found else "" for found in split])]


def _latex_row(cells: Sequence[str]) -> str:
    # A cell that begins with a bracket would be read as an argument of the line's end before it.
    guarded = [f"{{}}{cell}" if cell.startswith(("[", "*")) else cell for cell in cells]
    return " & ".join(guarded) + r" \\"


def markdown_text(table: Table) -> str:
    """A pipe table, padded so that it also reads as plain text, and the caption below."""
    header = [escape_markdown(str(name)) for name in table.text.columns]
    rows = [
        [f"**{escape_markdown(c)}**" if b else escape_markdown(c) for c, b in zip(cells, bold)]
        for cells, bold in zip(table.text.itertuples(index=False), table.best)
    ]
    widths = [max(3, *(len(row[index]) for row in [header, *rows])) for index in range(len(header))]
    marks = ["-" * width if i < table.words else "-" * (width - 1) + ":" for i, width in enumerate(widths)]
    lines = []
    for row in (header, marks, *rows):
        padded = [c.ljust(w) if i < table.words else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths))]
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join([*lines, "", escape_markdown(table.caption), ""])


def escape_markdown(text: str) -> str:
    """Plain text as Markdown prints it, on one line."""
    return _MARKDOWN.sub(r"\\\1", " ".join(text.split()))
