from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ablation_facts import record_of

from adapter_probe.analysis import sweeps
from adapter_probe.analysis.published import published_glue, published_tasks
from adapter_probe.figures.table_layouts import (
    glue_table,
    lay_out_removable,
    lay_out_sizes,
    lay_out_tradeoff,
    tasks_table,
)


@pytest.fixture(scope="module")
def trials(tradeoff_trials) -> pd.DataFrame:
    return tradeoff_trials()


@pytest.fixture(scope="module")
def tradeoff(trials) -> pd.DataFrame:
    return sweeps.tradeoff_table(trials)


def cell(table, row: str, column: str) -> str:
    first = table.text.columns[0]
    return table.text.set_index(first).loc[row, column]


def mean_of(trials, task, rate=3e-4, **which) -> float:
    """By hand: the mean over seeds of one method's trials."""
    chosen = trials[(trials["task"] == task) & (trials["learning_rate"] == rate)]
    for name, value in which.items():
        chosen = chosen[chosen[name] == value]
    return float(np.mean(chosen["score"]))


def test_the_tradeoff_has_a_row_a_method_and_a_column_a_task(trials, tradeoff):
    table = lay_out_tradeoff(tradeoff)
    assert len(table.text) == tradeoff["label"].nunique()
    score = cell(table, "adapters 64", "CoLA (acc.)").split(" ± ")[0]
    assert float(score) == pytest.approx(100 * mean_of(trials, "cola", method="adapters", size=64), abs=0.051)
    counts = [int(text.replace(",", "")) for text in table.text["parameters"]]
    assert counts == sorted(counts)
    for column, name in enumerate(table.text.columns[3:], start=3):
        shown = [float(text.split(" ")[0]) for text in table.text[name]]
        assert table.best[:, column].tolist() == [score == max(shown) for score in shown]
    assert "n = 2" in table.caption


def test_what_a_task_lacks_is_a_dash(tradeoff):
    lacking = tradeoff[(tradeoff["task"] != "mnli") | (tradeoff["label"] != "full fine-tuning")]
    table = lay_out_tradeoff(lacking)
    assert cell(table, "full fine-tuning", "MNLI-m (acc.)") == "–"
    assert cell(table, "full fine-tuning", "CoLA (acc.)") != "–"


def test_sizes(trials):
    sizes = sweeps.size_table(trials)
    table = lay_out_sizes(sizes, sweeps.tradeoff_table(trials))
    one = np.mean([mean_of(trials, task, method="adapters", size=8) for task in ("cola", "mnli")])
    assert float(cell(table, "8", "mean").split(" ± ")[0]) == pytest.approx(100 * one, abs=0.051)
    assert list(table.text.columns) == ["size", "mean", "CoLA", "MNLI-m"]
    assert "2 tasks" in table.caption


def test_removable_spans():
    frame = pd.DataFrame(
        [
            {"tolerance_points": 0.5, "basis": "estimate", "first": 1, "last": 3, "n_layers": 3,
             "delta_points": -0.25, "bound_low_points": -1.5},
            {"tolerance_points": 1, "basis": "estimate", "first": 2, "last": 2, "n_layers": 1,
             "delta_points": 0.31, "bound_low_points": np.nan},
            {"tolerance_points": 1, "basis": "interval"},
        ]
    ).astype(dict.fromkeys(("first", "last", "n_layers"), "Int64"))  # fmt: skip
    rows = lay_out_removable(frame, record_of(pd.DataFrame())).text.to_numpy().tolist()
    assert rows == [
        ["0.5 points", "estimate", "1–3", "3", "0.3", "1.5"],
        ["1 point", "estimate", "2", "1", "−0.3", "–"],
        ["1 point", "95% bound", "none", "–", "–", "–"],
    ]


def test_totals_are_one_base_and_every_tasks_own(trials, tradeoff):
    table = glue_table(tradeoff)
    base = trials["base_parameters"].iloc[0]
    own = trials[(trials["method"] == "adapters") & (trials["size"] == 64)]["trained_parameters_without_head"]
    row = table.numbers.set_index("method").loc["adapters 64"]
    assert row["total_multiple"] == pytest.approx((base + 2 * own.iloc[0]) / base)
    assert row["trained_percent"] == pytest.approx(100 * own.iloc[0] / base)
    full = table.numbers.set_index("method").loc["full fine-tuning"]
    assert (full["total_multiple"], full["trained_percent"]) == (2, 100)  # a whole base a task


def test_the_papers_totals_come_out_of_the_papers_shares():
    """Table 1: nine tasks at 3.6 % each are 1.3 bases."""
    row = published_glue().set_index("method").loc["Adapters (8–256)"]
    assert 1 + 9 * row["trained_percent"] / 100 == pytest.approx(row["total_multiple"], abs=0.05)


def test_the_average_counts_mnli_once(tradeoff_trials):
    tradeoff = sweeps.tradeoff_table(tradeoff_trials(("cola", "mnli", "mnli-mm")))
    numbers = glue_table(tradeoff).numbers
    expected = (numbers["CoLA (acc.)"] + (numbers["MNLI-m (acc.)"] + numbers["MNLI-mm (acc.)"]) / 2) / 2
    np.testing.assert_allclose(numbers["average"], expected)


def test_glue_needs_two_of_its_tasks(tradeoff):
    assert glue_table(tradeoff[tradeoff["task"] == "cola"]) is None


def test_the_best_of_several_is_the_greatest_mean(trials, tradeoff):
    means = [
        mean_of(trials, "cola", method="adapters", size=size) for size in trials["size"].dropna().unique()
    ]
    row = tasks_table(tradeoff).numbers.set_index("task").loc["cola"]
    (label,) = [name for name in row.index if name.startswith("adapters, best of") and "sem" not in name]
    assert row[label] == pytest.approx(max(means))


def test_glue_with_the_papers_rows_below(tradeoff):
    table = glue_table(tradeoff, paper=True)
    theirs = [name for name in table.text["method"] if name.startswith("Houlsby et al.: ")]
    assert len(theirs) == len(published_glue())
    assert cell(table, "Houlsby et al.: BERT-large", "MNLI-m (acc.)") == "86.7"
    # Ours is accuracy, theirs Matthews correlation: not comparable, so not shown.
    assert cell(table, "Houlsby et al.: BERT-large", "CoLA (acc.)") == "–"
    assert not table.best[table.rules[0] :].any()
    assert "test server" in table.caption


def test_tasks_with_the_papers_columns_beside(tradeoff_trials):
    tradeoff = sweeps.tradeoff_table(tradeoff_trials(("crowdflower_airline", "mnli")))
    table = tasks_table(tradeoff, paper=True)
    paper = published_tasks().set_index("task").loc["Crowdflower airline"]
    shown = cell(table, table.text.iloc[0, 0], "Houlsby et al.: adapters")
    assert shown == f"{paper['adapters']:.1f} ± {paper['adapters_sem']:.1f}"
    assert "test accuracy" in table.caption
    plain = tasks_table(tradeoff[tradeoff["task"] == "mnli"], paper=True)
    assert not any(name.startswith("Houlsby") for name in plain.text)
    assert "Houlsby" not in plain.caption


def test_of_a_loss_the_lowest_is_the_best():
    methods = {
        "full": (pd.NA, 2.0),
        "top_layers": (1, 2.6),
        "top layers": (2, 2.2),
        "layernorm_only": (pd.NA, 2.4),
    }
    rows = [
        {"task": "sft", "metric": "nll", "method": name.replace(" ", "_"), "size": pd.NA, "k": k,
         "label": f"{name} {k}", "n": 1, "mean": mean, "sem": np.nan, "diverged": 0, "trained_parameters": n,
         "trained_parameters_without_head": n, "percent_of_base": float(n)}
        for n, (name, (k, mean)) in enumerate(methods.items(), start=1)
    ]  # fmt: skip
    frame = pd.DataFrame(rows).astype({"size": "Int64", "k": "Int64"})
    assert lay_out_tradeoff(frame).best[:, -1].tolist() == [True, False, False, False]
    table = tasks_table(frame)
    assert table.text.loc[0, "best top layers"] == "220.0"
    assert table.text.columns[table.best[0]].tolist() == ["full fine-tuning"]
    sizes = pd.DataFrame(
        {"size": [8, 64], "n_tasks": 1, "mean_score": [2.5, 2.1], "sem": np.nan, "sft": [2.5, 2.1]}
    )
    assert lay_out_sizes(sizes, frame).best[:, 1:].tolist() == [[False, False], [True, True]]
