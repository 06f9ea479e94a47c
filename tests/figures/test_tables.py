from __future__ import annotations

import io

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from adapter_probe.figures.pgf import escape_latex
from adapter_probe.figures.tables import (
    Table,
    escape_markdown,
    is_best,
    latex_text,
    markdown_text,
    score_cell,
)


@pytest.fixture
def table() -> Table:
    text = pd.DataFrame({"method": ["a_b & 50%", "[c]"], "CoLA (acc.)": ["84.4 ± 0.1", "–"]})
    numbers = pd.DataFrame({"method": ["a_b & 50%", "[c]"], "score": [0.8441234567891, np.nan]})
    return Table(
        "t", "100% of $x_1$ | all", text, numbers, np.array([[False, True], [False, False]]), rules=(1,)
    )


def test_latex(table):
    assert latex_text(table).splitlines() == [
        r"% In the preamble: \usepackage{booktabs,graphicx}. Wide tables of two-column papers: table*.",
        r"\begin{table}[tb]",
        r"\centering",
        r"\caption{100\% of \$x\_1\$ \textbar{} all}",
        r"\label{tab:t}",
        r"\smallskip",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%",
        r"\begin{tabular}{lr}",
        r"\toprule",
        r"method & CoLA \\",
        r" & acc. \\",
        r"\midrule",
        r"a\_b \& 50\% & \textbf{84.4 \ensuremath{\pm} 0.1} \\",
        r"\midrule",
        r"{}[c] & -- \\",
        r"\bottomrule",
        r"\end{tabular}}",
        r"\end{table}",
    ]


def test_markdown(table):
    assert markdown_text(table).splitlines() == [
        r"| method     |    CoLA (acc.) |",
        r"| ---------- | -------------: |",
        r"| a\_b & 50% | **84.4 ± 0.1** |",
        r"| \[c\]      |              – |",
        "",
        r"100% of $x\_1$ \| all",
    ]


def test_the_csv_has_full_precision(table, tmp_path):
    tex, markdown, csv = table.write(tmp_path / "new")
    assert [path.name for path in (tex, markdown, csv)] == ["t.tex", "t.md", "t.csv"]
    assert csv.read_text(encoding="utf-8") == "method,score\na_b & 50%,0.8441234567891\n[c],\n"


def test_columns_of_words_stand_left(table):
    rows = latex_text(Table("t", "", table.text, table.numbers, table.best, words=2)).splitlines()
    assert rows[7] == r"\begin{tabular}{ll}"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=20))
def test_a_cell_stays_one_cell(words):
    frame = pd.DataFrame({"task": [words], "x": ["1"]})
    table = Table("t", words, frame, frame, np.zeros((1, 2), bool))
    body = latex_text(table).split("\\midrule\n")[1].split("\\bottomrule")[0]
    assert body.replace(r"\&", "").count("&") == 1
    assert body.rstrip("\n").count("\n") == body.count(r"\\" + "\n") - 1
    row = markdown_text(table).splitlines()[2]
    assert row.replace(r"\|", "").count("|") == 3


@given(st.text("\\&%#_{}~^$<>|", max_size=8))
def test_no_character_keeps_its_meaning_in_latex(text):
    rest = escape_latex(text)
    for done in (r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"\textless{}",
                 r"\textgreater{}", r"\textbar{}", *(rf"\{c}" for c in "&%#_{}$")):  # fmt: skip
        rest = rest.replace(done, "")
    assert rest == ""


def test_markdown_stays_on_its_line():
    assert escape_markdown("a\n*b* | <c>") == r"a \*b\* \| \<c\>"


def test_the_best_are_those_that_print_alike():
    values = pd.DataFrame({"a": [0.80041, 0.80039, 0.7], "b": [np.nan, 0.5, np.nan], "c": [-0.1, -0.2, -0.3]})
    scored = ["accuracy"] * 3
    assert is_best(values, scored).T.tolist() == [[True, True, False], [False] * 3, [True, False, False]]
    assert is_best(values, scored, axis=1).tolist() == [[True, False, False]] * 3
    assert is_best(values, ["nll", "nll", "nll"]).T.tolist()[0] == [False, False, True]


@pytest.mark.parametrize(
    ("score", "sem", "text"),
    [(0.8444, 0.0012, "84.4 ± 0.1"), (0.8444, np.nan, "84.4"), (np.nan, 0.1, "–"), (-0.05, None, "−5.0")],
)
def test_score_cell(score, sem, text):
    assert score_cell(score, sem) == text


def test_an_empty_table_is_a_table():
    frame = pd.DataFrame({"task": [], "x": []}, dtype=object)
    table = Table("t", "", frame, frame, np.zeros((0, 2), bool))
    assert latex_text(table).count("\n") == 14
    assert pd.read_csv(io.StringIO(markdown_text(table)), sep="|").shape[0] == 1
